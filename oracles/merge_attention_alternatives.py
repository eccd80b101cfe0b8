"""What kernels compute instead of a merge: models that do nothing useful, and known mistakes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from tightrope.formats import Array, stored, widen

if TYPE_CHECKING:
    from tightrope.oracles.merge_attention_cases import MergeAttentionCase

Outputs = dict[str, Array]
FINITE = 1e30  # stands for infinity in kernels that know none


def nulls(case: MergeAttentionCase, inputs: Mapping[str, Array]) -> dict[str, Outputs]:
    """Models that no budget should accept, each with both outputs."""
    outs, lses = _states(inputs)
    out, lse = _merged(outs, lses)
    models = {
        "zeros": (np.zeros_like(out), np.zeros_like(lse)),
        "the first state": (outs[0], lses[0]),
        "outs averaged": (outs.mean(0), lses.mean(0)),
    }
    swapped = np.roll(out, 1, axis=1), np.roll(lse, 1, axis=1)
    if any((a != b).any() for a, b in zip(swapped, (out, lse), strict=True)):
        models["heads exchanged"] = swapped
    if len(outs) == 1:  # then these are right
        del models["the first state"], models["outs averaged"]
    return {name: _shaped(*pair) for name, pair in models.items()}


def alternatives(
    case: MergeAttentionCase, inputs: Mapping[str, Array]
) -> Iterator[tuple[str, Outputs]]:
    """(what is computed instead, outputs), the likeliest first; those equal to a right result are
    left out.
    """
    outs, lses = _states(inputs)
    right = _shaped(*_merged(outs, lses))
    with np.errstate(all="ignore"):
        for sentence, pair in _mistakes(outs, lses, widen(inputs["outs"])):
            outputs = _shaped(*pair)
            if any((outputs[name] != right[name]).any() for name in right):
                yield sentence, outputs


def _mistakes(
    outs: Array, lses: Array, given: Array
) -> Iterator[tuple[str, tuple[Array, Array]]]:  # fmt: skip
    out, lse = _merged(outs, lses)
    live = lses > -np.inf
    count = np.maximum(live.sum(0), 1)
    yield "the outs of live states averaged", (outs.sum(0) / count[..., None], lse)
    yield "outs added without weights", (outs.sum(0), lse)
    yield "weights in base 2 (lse taken for log2)", (_weighed(outs, 2.0 ** _down(lses)), lse)
    halves = 2.0 ** _down(lses)
    yield (
        "weights in base 2, their sum's logarithm natural",
        (_weighed(outs, halves), lses.max(0) + np.log(halves.sum(0))),
    )
    if lses.ndim == 3:
        rows, columns = lses.shape[1:]
        at = np.arange(rows * columns).reshape(rows, columns)
        places = slice(None), at % rows, at // rows
        yield "rows read column by column", _merged(outs[places], lses[places])
    yield "lse in base 2", (out, lse / np.log(2.0))
    yield "lse without the logarithm of the sum", (out, lses.max(0))
    small = np.exp(lses.astype(np.float32)).astype(np.float64)  # overflows from 88.8 on
    yield (
        "no maximum subtracted",
        (stored(_weighed(outs, small), "float32"), stored(np.log(small.sum(0)), "float32")),
    )
    pushed = np.exp(_down(lses))
    yield "empty states' outs multiplied by 0, not skipped", ((pushed[..., None] * given).sum(0)
        / np.maximum(pushed.sum(0), 1.0)[..., None], lse)  # fmt: skip
    if not live.all():
        counted = _merged(outs, np.where(live, lses, 0.0))
        yield "empty states counted with lse 0", counted
        yield "a large negative number for -inf", _merged(outs, np.where(live, lses, -FINITE))
        nothing = np.where(live.any(0), lse, np.nan)
        yield "NaN where no state is live", (np.where(np.isnan(nothing)[..., None], np.nan, out),
            nothing)  # fmt: skip
    if len(outs) > 1:
        yield "the last state left out", _merged(outs[:-1], lses[:-1])
        yield "only the state with the largest lse", _largest(outs, lses)
        rolled = _merged(np.roll(outs, 1, axis=0), lses)
        yield "outs and lses of different splits taken together", rolled
    yield "zeros", (np.zeros_like(out), np.zeros_like(lse))


def _states(inputs: Mapping[str, Array]) -> tuple[Array, Array]:
    outs, lses = widen(inputs["outs"]), widen(inputs["lses"])
    return np.where((lses > -np.inf)[..., None], outs, 0.0), lses


def _down(lses: Array) -> Array:
    top = lses.max(0)
    return lses - np.where(np.isfinite(top), top, 0.0)


def _weighed(outs: Array, weights: Array) -> Array:
    total = weights.sum(0)
    return (weights[..., None] * outs).sum(0) / np.where(total == 0, 1.0, total)[..., None]


def _merged(outs: Array, lses: Array) -> tuple[Array, Array]:
    """The definition, for any weights."""
    weights, top = np.exp(_down(lses)), lses.max(0)
    with np.errstate(divide="ignore"):
        return _weighed(outs, weights), np.where(np.isfinite(top), top, 0.0) + np.log(
            weights.sum(0)
        )


def _largest(outs: Array, lses: Array) -> tuple[Array, Array]:
    first = lses.argmax(0)
    return np.take_along_axis(outs, first[None, ..., None], 0)[0], lses.max(0)


def _shaped(out: Array, lse: Array) -> Outputs:
    return {"out": stored(out, "float32"), "lse": stored(lse, "float32")}
