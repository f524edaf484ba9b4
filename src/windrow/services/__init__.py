"""Servers that a run needs, started for it: awaited, watched, and gone when it is over, however that was."""

from __future__ import annotations

from windrow.services.plan import Service, addresses, plan_services
from windrow.services.serving import serving

__all__ = ["Service", "addresses", "plan_services", "serving"]
