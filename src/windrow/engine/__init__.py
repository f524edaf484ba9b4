"""Runs the plan: one atom, `run_episode`, and one scheduler over it."""
