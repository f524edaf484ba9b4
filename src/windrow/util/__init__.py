"""Small tools that the rooms above share. They know nothing of runs, engines, vendors or the command line.

Here belong redaction of secrets, the hash index, blobs and frozen copies, atomic files and directory swaps, the file layer
(`disk`), guards around user code, cancellation, deadlines, threads, descriptors, the event loop, and the reaper of
processes. A tool imports only other tools, `errors` and `records`. Code that one room alone needs belongs in that room.
"""
