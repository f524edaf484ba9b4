"""tinker-cookbook: its rollout summaries and its training datums, written from rollouts.

`summaries` makes a line a trajectory, `traces` what a step of it holds of prompt, reply and rewards, `datums` the training data.
"""
