"""Experiment trackers: what a run says in numbers, and its rollouts, sent to where a team looks.

Everything here happens once the rollouts are on disk. Whatever goes wrong is a warning: no run is lost for it, and no exit
code changes. Each tracker's package is imported when the tracker is named.
"""
