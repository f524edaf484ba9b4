"""A process that answers each question with its process id; asked to, it ends instead."""

from __future__ import annotations

import json
import os
import sys

for line in sys.stdin:
    question = json.loads(line)
    if question.get("end"):
        os._exit(7)
    print(os.getpid(), flush=True)
