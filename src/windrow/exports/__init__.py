"""Files for trainers: the rollouts of a run in the form that another program reads.

An exporter is found by name (`sft`), by import path (`my_pkg.my_export:Mine`) or by entry point (`windrow.exporters`).
"""
