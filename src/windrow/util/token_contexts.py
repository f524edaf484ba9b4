"""Token contexts: the whole prompt of a turn, rebuilt from the part that its record stores.

A turn stores only what is new: its prompt is the first `prefix` ids of the context (prompt and output) of the turn that
it `continues`, then `prompt_new`. Ids are little-endian int32, four bytes each, here as in the record.
"""

from __future__ import annotations

from collections.abc import Sequence

from windrow.errors import StoreError
from windrow.records import Tokens, Turn

ID_BYTES = 4


class BrokenContext(StoreError):
    """A turn's tokens do not fit together: the turn that it continues is missing, or is shorter than recorded."""

    kind = "tokens"


def prompt_ids(turns: Sequence[Turn], number: int) -> bytes:
    """The ids of the whole prompt of turn `number`."""
    return whole_prompt(_tokens(turns, number), turns[:number])


def context_ids(turns: Sequence[Turn], number: int) -> bytes:
    """The ids of the context at the end of turn `number`: prompt, then output."""
    return prompt_ids(turns, number) + _tokens(turns, number).output


def whole_prompt(tokens: Tokens, earlier: Sequence[Turn]) -> bytes:
    """The whole prompt of a turn that has `tokens` and follows the turns `earlier`. Takes time linear in its length."""
    pieces = [tokens.prompt_new]
    wanted = tokens.prefix * ID_BYTES
    at = len(earlier)
    while wanted:
        before = tokens.continues
        if before is None or not 0 <= before < at:
            raise BrokenContext(f"turn {at} continues {before}, which is no earlier turn")
        tokens, at = _tokens(earlier, before), before
        prefix_bytes = tokens.prefix * ID_BYTES
        new = tokens.prompt_new + tokens.output
        if wanted > prefix_bytes + len(new):
            raise BrokenContext(f"a later turn takes {wanted // ID_BYTES} ids of turn {at}, which has fewer")
        if wanted > prefix_bytes:
            pieces.append(new[: wanted - prefix_bytes])
            wanted = prefix_bytes
    return b"".join(reversed(pieces))


def _tokens(turns: Sequence[Turn], number: int) -> Tokens:
    tokens = turns[number].tokens
    if tokens is None:
        raise BrokenContext(f"turn {number} has no tokens")
    return tokens
