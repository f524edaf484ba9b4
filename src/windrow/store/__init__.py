"""The run directory: its manifest, append-only logs, locks, task file and blobs; reading it back, resuming, merging.

Everything that knows a file name or a byte of the run directory belongs here. Nothing here plays an episode, grades a
rollout, or computes statistics: those rooms lie above and use this one.
"""
