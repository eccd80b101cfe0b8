"""Where the wrong elements of an output lie: told only where it is exact.

A place is a set of indices of one axis: from one on, below one, a run, one alone, every odd or even
one, the multiples of a tile. It is told if it is not the whole axis, every wrong element lies in
it, and each of its indices has a wrong element.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tightrope.formats import Array

TILES = (128, 64, 32, 16)
ROWS = {"dk": "key", "dv": "key"}


def place(outputs: Mapping[str, Array], budgets: Mapping[str, Any]) -> str:
    """Sentences of all outputs, "" if nothing exact can be said."""
    told = []
    for name, actual in outputs.items():
        if name in budgets:
            with np.errstate(all="ignore"):
                right = budgets[name].inside(actual, 1.0) & budgets[name].replayed(actual)
            told += list(_told(name, ~right))
    return " ".join(told)


def _told(name: str, wrong: Array) -> Iterator[str]:
    if wrong.sum() < 2:  # its index is told anyway
        return
    parts = []
    for axis, word in enumerate(_words(name, wrong.ndim)):
        lines = np.asarray(wrong.any(tuple(i for i in range(wrong.ndim) if i != axis)))
        found = next(_places(lines, word), "")
        parts += [found] if found else []
    if parts:
        yield f"{name} is wrong only {', and '.join(parts)}."


def _words(name: str, ndim: int) -> tuple[str, ...]:
    """What the axes of an output are called."""
    row = ROWS.get(name, "row")
    if name == "lse":
        return {3: ("batch", "head", row), 2: ("head", "token")}.get(ndim, ("row",) * ndim)
    if ndim == 4:
        return "batch", "head", row, "feature"
    if name in ("cos", "sin"):
        return "token", "column"
    return ("token", "head", "feature") if ndim == 3 else ("axis",) * ndim


def _places(lines: Array, word: str) -> Iterator[str]:
    """Of the indices (length,) that have a wrong element; nothing if all have."""
    at, length = np.flatnonzero(lines), len(lines)
    if len(at) == length:
        return
    first, last = int(at[0]), int(at[-1])
    if last - first + 1 == len(at):
        yield _run(first, last, length, word)
    for parity, name in ((0, "even"), (1, "odd")):
        if length > 3 and np.array_equal(at, np.arange(parity, length, 2)):
            yield f"where {word} is {name}"
    for tile in TILES:
        if length > tile and np.array_equal(at, np.arange(0, length, tile)):
            yield f"where {word} is a multiple of {tile}"
        if length > tile and np.array_equal(at, np.delete(np.arange(length), slice(0, None, tile))):
            yield f"where {word} is no multiple of {tile}"


def _run(first: int, last: int, length: int, word: str) -> str:
    if first == last:
        return f"at {word} {first}" + (" (the last)" if last == length - 1 else "")
    if last == length - 1:
        for tile in TILES:
            if length > tile and length % tile and first == length // tile * tile:
                return f"where {word} >= {first} (the last partial tile of {tile})"
        half = " (the second half)" if 2 * first == length else ""
        return f"where {word} >= {first}{half}"
    if first == 0:
        half = " (the first half)" if 2 * (last + 1) == length else ""
        return f"where {word} < {last + 1}{half}"
    return f"where {first} <= {word} <= {last}"
