"""Tasks: reading rows from files and other sources, checking them, selecting and sharing them, and the plan of a run.

How a task is played belongs in `envs/` and `engine/`; where the tasks of a run are written down belongs in `store/`.
"""
