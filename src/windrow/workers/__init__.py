"""Episodes in other processes: `--workers N`. The parent keeps the plan and counts; each worker writes a segment of its own."""
