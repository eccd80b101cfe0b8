"""Attention of another scale or of other keys, found from what a wrong kernel returned.

lse tells what a row's weights add up to. A scale is fitted to the lse of all rows; the run of keys
that a row saw instead is the one whose weights add up to its lse. Neither is believed here: what is
found is a problem, and its outputs have to agree with all that was returned.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from tightrope.budget import Budget
from tightrope.formats import Array
from tightrope.oracles.attention_problem import Problem, attend, logits

PAST = 128  # keys of zeros that a row may have seen beside a run
TILE = 16  # the smallest tile of keys
PAIRS = 1 << 24  # runs of keys that are looked at in all
SAME = 2.0**-18  # a ratio of scales that is nearer to 1 is none
MOST_RUNS = 4096  # of a row, whose outputs are compared
RATIOS = np.exp2(np.linspace(-8, 8, 257))  # of scales that are tried before one is refined


def scaled(p: Problem, lse: Array) -> Iterator[tuple[str, Problem]]:
    """The softmax_scale that lse (groups, seqlen_q) fits best, if it is not the right one."""
    fits = np.isfinite(lse) & (p.visible.sum(-1) > 1)
    if fits.sum() < 2 or p.softcap is not None:
        return

    def missed(ratio: float) -> float:
        found = attend(replace(p, softmax_scale=p.softmax_scale * ratio))[1]
        off = np.abs(found - lse)[fits]
        return float(np.nan_to_num(np.mean(np.minimum(off, 1e30)), nan=np.inf))

    errors = [missed(ratio) for ratio in RATIOS]
    at = int(np.argmin(errors))
    low, high = RATIOS[max(at - 1, 0)], RATIOS[min(at + 1, len(RATIOS) - 1)]
    for _ in range(60):  # a third of the way from either end: the smaller error keeps its side
        one, two = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, two) if missed(one) <= missed(two) else (one, high)
    ratio = (low + high) / 2
    if abs(ratio - 1) > SAME:
        yield (
            f"a softmax_scale {ratio:.6g} times the right one",
            replace(p, softmax_scale=p.softmax_scale * ratio),
        )


@dataclass(frozen=True)
class _Row:
    """Prefix sums of one row's weights (keys + 1,), each relative to e^top, and of its v."""

    sums: Array
    values: Array
    top: float
    off: float


def slack(budget: Budget) -> Array:
    """By how much an lse may tell a row's sum wrongly: twice what roundings may do."""
    return np.asarray(
        2 * np.where(np.isfinite(budget.bound), budget.bound, 1.0)
        + budget.format.ulp(np.where(np.isfinite(budget.expected), budget.expected, 1.0))
    )


def other_keys(
    p: Problem, every: Problem, out: Array, lse: Array, off: Array
) -> Iterator[tuple[str, Problem]]:
    """Runs of keys, one a row, beside them keys of 0, that give out and, within off, lse (groups,
    seqlen_q).

    every: the same problem with no key hidden by its index.
    """
    groups, rows, keys = p.visible.shape
    if not keys or groups * rows * keys * (keys + PAST) > PAIRS:
        return
    t, seen = logits(every), np.zeros((groups, rows, keys + PAST), bool)
    for g, r in np.ndindex(groups, rows):
        if np.isneginf(lse[g, r]):
            continue
        row = _row(t[g, r], every.v[g], float(off[g, r]))
        sink = None if p.sink is None else float(p.sink[g])
        run = _run(row, float(lse[g, r]), out[g, r], _span(p.visible[g, r]), sink)
        if run is None:
            return
        seen[g, r, slice(*run[:2])] = True
        seen[g, r, keys : keys + run[2]] = True
    longer = _lengthened(every)
    seen &= longer.visible
    shown = np.concatenate([p.visible, np.zeros((groups, rows, PAST), bool)], -1)
    if (seen != shown).any():
        yield _told(seen, shown, keys), replace(longer, visible=seen)


def _lengthened(p: Problem) -> Problem:
    """PAST more keys and values of 0, visible, with a bias of 0."""

    def padded(x: Array, axis: int, value: float | bool = 0.0) -> Array:
        widths = [(0, PAST if i == axis else 0) for i in range(x.ndim)]
        return np.pad(x, widths, constant_values=value)

    bias = None if p.bias is None else padded(p.bias, 2)
    return replace(
        p, k=padded(p.k, 1), v=padded(p.v, 1), visible=padded(p.visible, 2, True), bias=bias
    )


def _row(t: Array, v: Array, off: float) -> _Row:
    top = max(float(t.max(initial=-np.inf)), 0.0)
    weights = np.exp(t - top)
    sums = np.concatenate([[0.0], np.cumsum(weights)])
    values = np.concatenate([np.zeros((1, v.shape[1])), np.cumsum(weights[:, None] * v, 0)])
    return _Row(sums, values, top, off)


def _run(
    row: _Row, lse: float, out: Array, may: tuple[int, int], sink: float | None
) -> tuple[int, int, int] | None:
    """(first, end, zeros) that give lse and come nearest to out; None if nothing does."""
    total = np.exp(lse - row.top)
    open_ = np.expm1(min(row.off, 1.0)) * total + 2.0**-45
    left = total - (0.0 if sink is None else np.exp(sink - row.top))
    zeros = np.arange(PAST + 1) * np.exp(-row.top)
    found = [np.pad(np.argwhere(np.abs(row.sums[None, :] - row.sums[:, None] - left) <= open_),
                    ((0, 0), (0, 1)))]  # fmt: skip
    from_low = np.argwhere(
        np.abs(row.sums[:, None] - row.sums[may[0]] + zeros - left) <= open_
    )  # of (end, zeros): the run begins where it may
    found.append(np.insert(from_low, 0, may[0], 1))
    to_high = np.argwhere(np.abs(row.sums[may[1]] - row.sums[:, None] + zeros - left) <= open_)
    found.append(np.insert(to_high, 1, may[1], 1))
    runs = np.concatenate(found)
    runs = runs[runs[:, 1] >= runs[:, 0]][:MOST_RUNS]
    if not len(runs):
        return None
    outs = (row.values[runs[:, 1]] - row.values[runs[:, 0]]) / total
    off = np.abs(outs - out).sum(-1) + 1e-12 * np.abs(runs[:, :2] - may).sum(-1)
    first, end, more = runs[int(np.argmin(np.where(np.isnan(off), np.inf, off)))]
    return int(first), int(end), int(more)


def _span(seen: Array) -> tuple[int, int]:
    """First key and one past the last one that are seen; (0, 0) if there is none."""
    at = np.flatnonzero(seen)
    return (int(at[0]), int(at[-1]) + 1) if at.size else (0, 0)


def _told(seen: Array, shown: Array, keys: int) -> str:
    """In words: by how much all runs differ, or else what the row sees that differs most."""
    wrong = np.argwhere((seen != shown).any(-1))
    apart = [_steps(seen[g, r], shown[g, r], keys) for g, r in wrong]
    if len(set(apart)) == 1:
        first, last, zeros = apart[0]
        told = [f"{end} key {by:+d}" for end, by in (("first", first), ("last", last)) if by]
        told += [f"{zeros} zeros counted as keys"] if zeros else []
        where = "every row" if len(wrong) == seen.shape[0] * seen.shape[1] else "some rows"
        return f"another mask: {' and '.join(told) or 'other keys'} in {where}"
    worst = int(np.argmax([np.abs(step).sum() for step in apart]))
    group, row = wrong[worst]
    sees, may = (_words(x[group, row], keys) for x in (seen, shown))
    return f"another mask, as in row {row} of group {group}, which sees {sees}, not {may}"


def _steps(seen: Array, shown: Array, keys: int) -> tuple[int, int, int]:
    first, last = (int(a - b) for a, b in zip(_span(seen[:keys]), _span(shown[:keys]), strict=True))
    return first, last, int(seen[keys:].sum())


def _words(seen: Array, keys: int) -> str:
    first, end = _span(seen[:keys])
    told = f"keys {first} to {end - 1}" if first < end else "no key"
    past = int(seen[keys:].sum())
    return f"{told} and {past} keys of 0" if past else told


def emptied(
    p: Problem, every: Problem, out: Array, lse: Array
) -> Iterator[tuple[str, tuple[Array, Array]]]:
    """(sentence, (out, lse)) of rows without a key that weigh as many hidden ones alike.

    That is what a finite number in place of -inf does: lse tells the number.
    """
    empty = ~p.visible.any(-1) & np.isfinite(lse)
    if not empty.any() or p.sink is not None:
        return
    right_out, right_lse = attend(p)
    keys = p.visible.shape[-1]
    for count in range(TILE, keys + PAST + 1, TILE):
        logit = float(np.mean((lse - np.log(count))[empty]))
        wrong_lse = np.where(empty, logit + np.log(count), right_lse)
        for first in range(0, keys, TILE):
            mean = every.v[:, first : first + count].sum(1)[:, None] / count
            wrong_out = np.where(empty[..., None], mean, right_out)
            yield (
                f"hidden logits of {logit:.5g}, not -inf, in rows without a key",
                (wrong_out, wrong_lse),
            )
