"""Small tools that several rooms share. They know nothing of runs, of the engine, of other systems or of the command line.

- Data: `redaction` of secrets, `freeze` (copies that user code cannot change), `hash_index`, `token_contexts`, `spelling`.
- Files: `disk` (the calls that reach it), `atomic_files`, `directory_swap`, `blobs` (large bytes by their hash).
- Time and user code: `guard`, `cancellation`, `deadlines`, `threads`, `event_loop`.
- Processes: `reaper` ends them with their parent, `descriptors` makes room for open files.

A tool imports only other tools, `errors` and `records`. Code that one room alone needs belongs in that room.
"""
