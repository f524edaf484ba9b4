"""Collecting: `windrow.collect` from a configuration to delivered rollouts.

Read it in this order: `resolve` (a configuration becomes one frozen run), `opening` (the run directory is locked and compared),
`execution` (services, leftovers, pending slots), `delivery` (from the disk to `events`), `running` and `api` (the caller's side).
Replaying, merging and importing runs belong here too, since they resolve or open a run. How one episode is played belongs into
`engine/`, how a run directory is written into `store/`, how a rollout is judged into `grading/`.
"""
