"""Experiment trackers: the metrics of a run, and its rollouts, sent to W&B, MLflow or TensorBoard.

Trackers run once the rollouts are on disk. A failure gives a warning: it loses no run and changes no exit code. Each
tracker's package is imported when the tracker is named. The numbers themselves are computed in `stats`.
"""
