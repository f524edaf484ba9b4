"""Building records: the rollout of a recorder whose episode has ended, and the copy of it that scorers are shown."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from windrow.engine.recorder import Recorder
from windrow.envs import Episode
from windrow.records import (
    ErrorRecord,
    Json,
    Message,
    PolicyRecord,
    Rollout,
    Status,
    Stop,
    Task,
    Timing,
    Turn,
    Usage,
    lowest_version,
