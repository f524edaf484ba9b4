"""The command `windrow`: one module per subcommand, and the terminal (display, streams, signals, flags).

A module here turns arguments into a call of the library and the result into text and an exit code. Anything that a
program would also need from Python belongs in the room that does the work; nothing below imports this one.
"""
