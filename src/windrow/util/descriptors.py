"""File descriptors: a connection an episode, and the system's limit on them."""

from __future__ import annotations

import resource

SPARE = 256  # for files, pipes and whatever an environment opens


def make_room(episodes: int) -> str | None:
    """Raise this process's soft limit so that each episode may have its connection; what is wrong where it cannot be."""
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
