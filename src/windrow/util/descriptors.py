"""The system's limit on open files: each episode needs a connection."""

from __future__ import annotations

import resource

SPARE = 256  # for files, pipes and the descriptors of environments


def make_room(episodes: int) -> str | None:
    """Raise this process's soft limit so that each episode can have a connection; a warning if that is impossible."""
    wanted = episodes + SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return None
    reach = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (reach, hard))
    except (OSError, ValueError):
        reach = soft
    if reach >= wanted:
        return None
    return (
        f"this system allows {reach:,} open files to a process, too few for {episodes:,} episodes at a time: beyond "
        f"about {max(1, reach - SPARE):,} connections calls fail. Raise the limit (ulimit -Hn) or lower --concurrency"
    )
