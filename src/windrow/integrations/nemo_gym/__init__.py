"""NeMo Gym, from its documentation: its rows, files and agent servers.

`rows` reads a row, `items` the output of a response, `results` a whole answer of an agent; each both ways.
"""
