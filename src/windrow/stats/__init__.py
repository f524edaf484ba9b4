"""Statistics of a run: totals, metrics.json, reward profiles, and the estimators behind them.

Everything here is computed from the logs of a run and changes none of them. Text for a terminal belongs in `cli`, and
numbers by another system's formulas belong in that system's folder of `integrations`.
"""
