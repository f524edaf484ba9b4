"""Exports: the rollouts of a run written as files for trainers.

`run` is `windrow.export`; `selection` decides which rollouts are exported; `base` is the interface of an exporter, which is
found by name (`sft`), by import path (`my_pkg.my_export:Mine`) or by entry point (`windrow.exporters`).

`sft` and `parquet` are the general formats. `conversations`, `advantages` and `tokens/` make what several formats hold: chat
messages, advantages within a group, training sequences. `task_files` writes tasks to be run again. A format of one system
belongs in `integrations`.
"""
