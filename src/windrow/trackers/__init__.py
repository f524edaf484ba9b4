"""Experiment trackers: the metrics of a run, and its rollouts, sent to W&B, MLflow or TensorBoard.

`names` reads `--track`, `reporting` sends a run, `base` is what a tracker implements; each tracker is one module, whose
package is imported when the tracker is named. Trackers run once the rollouts are on disk: a failure gives a warning, loses
no rollout and changes no exit code. The numbers themselves are computed in `stats`.
"""
