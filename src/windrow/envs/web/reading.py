"""What our script found in a page, as far as it can be believed: a hostile page may have meddled with all that it calls."""

from __future__ import annotations

from typing import Any

MORE_CHARS = 100  # that the last line may have over the limit of all
_TEXTS = {"title": 500, "url": 4_000, "beginning": 2_000}
_COUNTS = ("above", "below", "hidden", "nodes", "found", "text", "captcha")


class Unreadable(Exception):
    """The page has changed what our script relies on."""


def read(seen: Any, max_chars: int) -> dict[str, Any]:
    """What was seen, of the kinds and within the bounds that it must have; Unreadable where it is something else."""
    try:
        left, lines = max_chars + MORE_CHARS, []
        for text, number in seen["lines"]:
            line = one_line(text[:left])
            left -= len(line)
            lines.append([line, int(number)])
            if left <= 0:
                break
        texts = {name: one_line(str(seen[name])[:most]) for name, most in _TEXTS.items()}
        counts = {name: int(seen[name] or 0) for name in _COUNTS}
        return {
            **counts,
            **texts,
            "lines": lines,
            "cut": bool(seen["cut"]),
            "status": None if seen["status"] is None else int(seen["status"]),
            "scroll": [int(seen["scroll"][place]) for place in range(3)],
            "boxes": [
                (int(number), [float(box[place]) for place in range(4)]) for number, box in seen["boxes"]
            ],
        }
    except (TypeError, ValueError, LookupError, AttributeError, OverflowError):
        raise Unreadable("the page does not let itself be read") from None


def one_line(text: str) -> str:
    """In one line, which cannot pose as another one, and without halves of characters, which no record holds."""
    return whole(" ".join(text.split()))


def whole(text: str) -> str:
    """The text with a sign in the place of each half of a character: a page cuts where it likes."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
