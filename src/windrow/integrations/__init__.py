"""Other people's environments, unmodified: each module makes one package's worlds into tasks, environments and scorers.

Nothing here is imported before a source, a row or a scorer names it: the names stand in `windrow.registry`.
"""
