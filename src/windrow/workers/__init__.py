"""Episodes in other processes: `--workers N`.

`pool` is the parent's side: it keeps the plan, leases slots to the workers, and counts what they have committed. `process` is
one worker process as the parent sees it, `worker` the program that runs in it, `messages` what they send each other, and
`spec` describes a run so that a worker can build the same run context. Each worker writes a log segment of its own.

How an episode is played or scheduled belongs in `engine`, which knows nothing of processes; which slots are run belongs in
`collecting`. Servers that a run starts are in `services`.
"""
