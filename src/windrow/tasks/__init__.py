"""Tasks: where they are read from, which of them a run takes, and the plan of slots that they make.

- Reading: `loaders` finds the reader for a path; `rows`, `delimited`, `arrow`, `hub` and `datasets` read; `spool` and
  `cache` keep rows that cannot be read twice, or only slowly.
- Understanding a row: `mapping` renames its fields, `row_formats` recognises rows of other systems, `rubrics` reads
  criteria, `prompts` fills templates, `trust` decides what a row may name beside data, and `row_problems` says what is wrong with rows.
- Choosing: `scan` checks and identifies every row in one pass; `blocklist`, `sampling`, `selection` and `sharding` decide
  which tasks a call runs.
- `plan`: tasks × samples as slots, and the ledger of the slots that are done.

Not here: how another system writes its rows (`integrations`), how a task is played (`engine`), and the file in which a run
keeps its tasks (`store/task_file.py`).
"""
