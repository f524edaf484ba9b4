"""The run directory: its manifest, append-only logs, locks, task file and blobs; reading it back, resuming, merging.

- Writing: `run_directory` opens a run; `manifest` is run.json, `log` and `segments` the logs, `sinks` what appends to them,
  `lock` and `locks` who may write, `task_file` tasks.jsonl, `blobs` large bytes, `judgements` the replies of judges,
  `rank_progress` how far each rank is; `run_names` finds the directory.
- Reading: `reader` gives the rollouts of a run, in the order of `line_order`, with their gradings (`gradings`, `folding`);
  `line_heads` decodes only the beginning of a line, and `where` selects rollouts.
- Resuming: `resume` says what earlier calls have done. What is slow to find out is kept in index files: `resume_index`,
  `ledger_index`, `verdict_index`, `scan_index`, over `index_files`.
- `merging/`: several runs made into one.

Everything that knows a file name or a byte of the run directory belongs here. Nothing here plays an episode, grades a
rollout, or computes statistics: those rooms use this one.
"""
