"""`windrow.collect`, from a configuration to delivered rollouts.

The way of one call, in reading order:

1. `api`: the public functions; `iteration`: the iterator that they return, over a run in a task of its own.
2. `resolve`: the configuration becomes one frozen `ResolvedRun`, checked. It uses `rows` (one pass over the rows), `ranks`
   (this rank's share), `refusals` (settings that the run would ignore) and `fingerprints`.
3. `opening`: the run directory is locked, compared (`compatibility`) and read, which gives a `Collection` (`collection`).
4. `running`, then `execution`: services start, leftovers are graded (`grading`), and the pending slots run in the engine or
   in worker processes. Afterwards metrics.json is written, and trackers get the run.
5. `delivery`: attempts that are on disk are counted, graded and put into the stream of `events`, which the caller reads.

Here too is other work on whole runs: `importing` (a run from another system's files), `merge` (of several runs),
`rank_merge` (at the end of a run that ranks share) and `replay` (a rollout through its environment again).

This room only connects the others. How an episode is played belongs in `engine`, how one is graded in `grading`, what
stands in the run directory in `store`, and what is printed in `cli`.
"""
