"""Runs a plan: plays each slot's episode, records it, and decides which slot starts next.

- What episodes are given: `components` makes what the configuration names, `context` is the run context that holds it.
- One attempt, in reading order: `attempt`, `episode` (or `match` and `referee` for games), `session`, which makes
  `model_calls` and `tool_calls` within `episode_limits`, `recorder`, `episode_scoring`, and `record_building`, which makes
  the rollout.
- A run, in reading order: `scheduler`, `slot_queue` (what may start), `adaptive_limit` (how many), `commit_queue` (to disk, and
  then to the observer).
- Ending a run: `control` stops or cancels it, `stop_conditions` says when it does so by itself.

Does not belong here: what users implement (`envs`, `agents`, `policies`, `tools`), where rollouts are stored (`store`), scoring
after the commit (`grading`), and what a caller is given (`collecting`).
"""
