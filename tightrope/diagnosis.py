"""What a wrong kernel seems to compute instead: the known mistake that its outputs agree with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from tightrope.formats import FORMATS, Array, widen

MOST = 3  # mistakes that a message names
Outputs = Mapping[str, Array]


def diagnose(
    alternatives: Iterable[tuple[str, Outputs]], outputs: Outputs, budgets: Mapping[str, Any]
) -> str:
    """The known mistakes that explain every output, as a sentence; empty if none does.

    Equal in every element wins; else, of the mistakes whose outputs differ from these by no more
    than roundings may, those with the fewest elements that differ at all. A small case may not tell
    two mistakes apart: up to three are named, the likeliest first.
    """
    found: list[tuple[int, str]] = []
    for sentence, others in alternatives:
        counts = [
            differing(outputs[n], others[n], budgets[n].bound) for n in others if n in outputs
        ]
        if counts and None not in counts:
            found.append((sum(c for c in counts if c is not None), sentence))
    least = min(found, default=(0, ""))[0]
    best = [sentence for count, sentence in found if count == least][:MOST]
    return f"It computes what this would: {'; or '.join(best)}." if best else ""


def differing(actual: Array, other: Array, bound: Array | float = 0.0) -> int | None:
    """How many elements differ; None if one does by more than an ulp and twice `bound`."""
    a, b = widen(actual), widen(other)
    if a.shape != b.shape:
        return None
    fmt, same = FORMATS[actual.dtype.name], a == b
    with np.errstate(invalid="ignore"):
        near = same | (np.abs(a - b) <= fmt.ulp(np.maximum(np.abs(a), np.abs(b))) + 2 * bound)
    return int((~same).sum()) if near.all() else None
