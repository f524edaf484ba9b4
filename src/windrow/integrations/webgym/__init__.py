"""WebGym, from its documentation and formats: its task rows, its metrics, its trajectory files.

`rows` reads a row, `steps` makes a rollout into its steps, `metrics` counts over them, `trajectories` writes them.
"""
