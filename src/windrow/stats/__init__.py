"""Statistics of a run: totals, metrics.json, reward profiles, and the estimators behind them.

`final_attempts` reads what counts; `tally` and `task_table` sum it up, by agent and by task; `summary` has the totals,
`metrics` writes metrics.json (`schema` is its content, `cache` saves computing it twice), and `profile` says how hard each
task is. `estimate`, `spread`, `medians` and `majority` are the formulas; `env_aggregates`
asks environments for metrics of their own.

Everything here is computed from the files of a run and changes none of its logs. Text for a terminal belongs in `cli`, and
numbers by another system's formulas belong in that system's folder of `integrations`.
"""
