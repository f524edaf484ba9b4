"""Confinement: what a process may no longer do once it has given up the right to it, by the kernel's word and for good.

- `rights` has the one door, `confine()`: it gives up what this system lets a process give up, and can say what that is.
- `seccomp`: system calls that are not on a list fail: no network, no program, no process, no thread, no signal.
- `landlock`: paths that are not on a list cannot be opened, and other processes cannot be looked into.
- `system_calls`: the list, with its numbers.

The two packages that bind these calls did not fit: pyseccomp (last released in 2021) needs a libseccomp on the system, and
the one called landlock has only had development releases. The kernel's own interfaces are stable, and small from here. What runs in such a
process, and how it is started, belongs to `fork_server`.
"""

from __future__ import annotations

from windrow.util.confinement.rights import Confinement, confine, holding, make_ready

__all__ = ["Confinement", "confine", "holding", "make_ready"]
