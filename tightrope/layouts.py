"""How a tensor lies in memory: strides, gaps and alignment, so that laws get them free."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Placement:
    """Strides and offset in elements, and how many elements the storage spans (gaps included)."""

    strides: tuple[int, ...]
    offset: int
    extent: int


def _dense(shape: Shape, order: tuple[int, ...], inner: int = 1) -> tuple[int, ...]:
    """Strides of `shape` stored with the axes of `order` from outermost to innermost."""
    strides, step = [0] * len(shape), inner
    for axis in reversed(order):
        strides[axis] = step
        step *= max(shape[axis], 1)
    return tuple(strides)


def _span(shape: Shape, strides: tuple[int, ...]) -> int:
    if 0 in shape:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


def _contiguous(shape: Shape) -> tuple[int, ...]:
    return _dense(shape, tuple(range(len(shape))))


def _transposed(shape: Shape) -> tuple[int, ...]:
    """The two axes before the features change places: (tokens, heads, features) kept heads first,
    (batch, heads, length, features) kept length first; a table keeps its columns first.
    """
    order = list(range(len(shape)))
    first = max(len(shape) - 3, 0)
    order[first : first + 2] = reversed(order[first : first + 2])
    return _dense(shape, tuple(order))


def _sliced(shape: Shape) -> tuple[int, ...]:
    """The leading features of rows that are eight features longer."""
    wider = (*shape[:-1], shape[-1] + 8)
    return _contiguous(wider)


def _strided(shape: Shape) -> tuple[int, ...]:
    """Every second feature of rows twice as long."""
    return _dense(shape, tuple(range(len(shape))), inner=2)


def _packed(shape: Shape) -> tuple[int, ...]:
    """Rows of a wider buffer, as q or k inside one packed qkv projection."""
    inner = _contiguous(shape)
    row = 3 * max(1, prod(shape[1:]))
    return (row, *inner[1:])


def _expanded(shape: Shape) -> tuple[int, ...]:
    """Stride 0 along the heads of (tokens, heads, features), else along the first axis."""
    axis = 1 if len(shape) > 2 else 0
    squeezed = tuple(1 if i == axis else n for i, n in enumerate(shape))
    return tuple(0 if i == axis else s for i, s in enumerate(_contiguous(squeezed)))


LAYOUTS: dict[str, Callable[[Shape], tuple[int, ...]]] = {
    "contiguous": _contiguous,
    "transposed": _transposed,
    "sliced": _sliced,
    "packed": _packed,
    "offset": _contiguous,
    "strided": _strided,
    "expanded": _expanded,
}


def place(layout: str, shape: Shape) -> Placement:
    """Where the elements of a tensor of this shape lie. Raises KeyError for an unknown layout."""
    strides = LAYOUTS[layout](shape)
    offset = 1 if layout == "offset" else 0
    return Placement(strides, offset, offset + _span(shape, strides))
