"""A training sequence as a datum of Tinker, in the form in which its own types are written as JSON."""

from __future__ import annotations

from collections.abc import Sequence

from windrow.records import Json


def datum_row(
    ids: Sequence[int], *, logprobs: Sequence[float], advantages: Sequence[float], mask: Sequence[float]
) -> dict[str, Json]:
    """The lists are as long as `ids`. Each id is predicted from those before it: inputs are all but the last, the rest is said of all
    but the first."""
    return {
        "model_input": {"chunks": [{"type": "encoded_text", "tokens": ids[:-1]}]},
        "loss_fn_inputs": {
            "target_tokens": _tensor(ids[1:], "int64"),
            "logprobs": _tensor(logprobs[1:], "float32"),
            "advantages": _tensor(advantages[1:], "float32"),
            "mask": _tensor(mask[1:], "float32"),
        },
    }


def _tensor(data: Sequence[float], dtype: str) -> dict[str, Json]:
    return {"data": data, "dtype": dtype, "shape": [len(data)]}
