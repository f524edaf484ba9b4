"""Exports: the rollouts of a run written as files for trainers.

An exporter is found by name (`sft`), by import path (`my_pkg.my_export:Mine`) or by entry point (`windrow.exporters`).
Which rollouts are exported, and the general formats, belong here; a format of one system belongs in `integrations`.
"""
