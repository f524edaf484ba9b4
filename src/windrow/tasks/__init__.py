"""Where work comes from: reading rows, checking them, and the plan of what is to be run."""
