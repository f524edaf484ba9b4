"""Runs a plan: plays each slot's episode, records it, and decides which slot starts next.

Belongs here: one attempt with its recorder, its limits and its scoring before the commit, and the scheduler over all
attempts. Does not belong here: what users implement (`envs`, `agents`, `policies`, `tools`), where rollouts are stored
(`store`), and scoring after the commit (`grading`).

Reading order for one attempt: `attempt`, `episode` (or `match` and `referee` for games), `session`, `recorder`, and
`record_building`, which makes the rollout. For a run: `scheduler`, then `commit_queue`.
"""
