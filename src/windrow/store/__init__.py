"""The run directory: an append-only log, locks, the materialised tasks, and reading it all back."""
