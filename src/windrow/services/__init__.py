"""Servers that a run starts for itself: models, tools, environments.

Here belong their addresses and ports, their processes, waiting until they answer, watching and stopping them. Clients that
talk to them belong to the rooms that use them; ending processes belongs to `util/reaper.py`.
"""

from __future__ import annotations

from windrow.services.plan import Service, addresses, plan_services
from windrow.services.serving import serving

__all__ = ["Service", "addresses", "plan_services", "serving"]
