"""What a query temperature is when it is useless, and known mistakes in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tightrope.formats import Array

Outputs = dict[str, Array]


def nulls(case: Any, inputs: Mapping[str, Array]) -> dict[str, Outputs]:
    """Models that do nothing useful: no temperature."""
    return {"no temperature": {"scale": np.ones(inputs["positions"].shape, np.float32)}}


def alternatives(case: Any, inputs: Mapping[str, Array]) -> Iterator[tuple[str, Outputs]]:
    """(sentence, outputs) of known mistakes, one at a time."""
    tokens = inputs["positions"].astype(np.float64) + case.shift
    a, whole = case.attn_scale, np.floor(tokens / case.floor_scale)
    late = np.floor(np.maximum(tokens - 1, 0) / case.floor_scale)
    yield "every step one position late", _stored(a * np.log1p(late))
    yield "every step one position early", _stored(a * np.log1p((tokens + 1) // case.floor_scale))
    yield "no floor", _stored(a * np.log1p(tokens / case.floor_scale))
    yield "rounded instead of floored", _stored(a * np.log1p(np.rint(tokens / case.floor_scale)))
    low = [(int(m) + 2**31) % 2**32 - 2**31 for m in inputs["positions"]]  # signed, then unsigned
    cut = np.array([(m + case.shift) % 2**64 // int(case.floor_scale) for m in low], np.float64)
    if (inputs["positions"] >= 2**31).any():
        yield "positions cut to their low 32 bits", _stored(a * np.log1p(cut))
    yield "the logarithm in base 2", _stored(a * np.log2(1 + whole))
    yield "the logarithm in base 10", _stored(a * np.log10(1 + whole))
    yield "the 1 in the logarithm left out", _stored(a * np.log(np.maximum(whole, 1)))
    yield "the 1 in front left out", _stored(a * np.log1p(whole) - 1)
    yield "attn_scale left out", _stored(np.log1p(whole))
    yield "a floor_scale of 8192 whatever was asked", _stored(a * np.log1p(tokens // 8192))


def _stored(beyond: Array) -> Outputs:
    """The temperature 1 + beyond."""
    return {"scale": (1 + beyond).astype(np.float32)}
