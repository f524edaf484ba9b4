"""Token deltas: a turn stores only the tokens of its prompt that no earlier turn of the rollout holds.

Turns that continue each other form a branch. Only the last context of a branch is held, so that memory is linear in the
tokens of an episode. A prompt that does not continue the whole of a branch starts a new one.
"""

from __future__ import annotations

from bisect import bisect_left

import msgspec

from windrow.records import Tokens
from windrow.util.token_contexts import ID_BYTES

MOST_BRANCHES = 32  # held at a time; tokens that only an older branch shares are stored again


class _Branch:
    __slots__ = ("context", "ends", "turns")

    def __init__(self, context: bytes, turn: int) -> None:
        self.context = context
        self.ends = [len(context)]  # where the contexts of its turns end
        self.turns = [turn]


class TokenDeltas:
    """Holds the contexts of a rollout's turns so far."""

    def __init__(self) -> None:
        self._branches: list[_Branch] = []

    def stored(self, prompt: bytes, tokens: Tokens, turn: int) -> Tokens:
        """The tokens to store for turn `turn`, whose whole prompt is `prompt`."""
        branch, shared = self._longest(prompt)
        continued: int | None = None
        if branch is not None and shared:
            continued = branch.turns[bisect_left(branch.ends, shared)]
        self._remember(branch, shared, prompt + tokens.output, turn)
        return msgspec.structs.replace(
            tokens, prefix=shared // ID_BYTES, prompt_new=prompt[shared:], continues=continued
        )

    def _longest(self, prompt: bytes) -> tuple[_Branch | None, int]:
        """The branch that shares the longest prefix with `prompt`, the latest of equals, and its length in bytes."""
        best, most = None, 0
        for branch in reversed(self._branches):
            # A branch can share more only if it has the same next id: most are ruled out by this comparison alone.
            following = slice(most, most + ID_BYTES)
            if best is not None and branch.context[following] != prompt[following]:
                continue
            shared = shared_bytes(branch.context, prompt)
            if best is None or shared > most:
                best, most = branch, shared
        return best, most

    def _remember(self, branch: _Branch | None, shared: int, context: bytes, turn: int) -> None:
        if branch is not None and shared == len(branch.context):
            branch.context = context
            branch.ends.append(len(context))
            branch.turns.append(turn)
            self._branches.remove(branch)
        else:
            branch = _Branch(context, turn)
        self._branches.append(branch)
        del self._branches[:-MOST_BRANCHES]


def shared_bytes(a: bytes, b: bytes) -> int:
    """The length in bytes of the common prefix, rounded down to whole ids."""
    most = min(len(a), len(b))
    if a[:most] == b[:most]:
        return most - most % ID_BYTES
    low, high = 0, most  # a[:low] == b[:low], a[:high] != b[:high]
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low - low % ID_BYTES
