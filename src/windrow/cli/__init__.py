"""The command: one module a subcommand, each a thin layer over the library."""
