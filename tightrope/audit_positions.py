"""The largest position to which a table holds, certified, and its error along the positions.

Two measures of a position, maxima over the columns: "table", the larger error of cos and sin, and
"pair", the error of a rotated pair over its length, hypot of both (the norm of the error of the
rotation, as cos and sin make it). A limit is the first position that is off by the tolerance or
more, less one.

Scan: with d the error of the angle, both measures are at most |d| + sqrt 2 h, h half an ulp of the
table below 1; only elements where that reaches the tolerance are looked at, in float64 with a
proved error, and a ball where that leaves a choice. So nothing before the limit is off by as much.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tightrope.audit_angles import FORMAT, SLACK, Frequencies, fraction
from tightrope.audit_reference import RADIANS, sin_cos_radians
from tightrope.audit_ways import Way, angles, stored
from tightrope.formats import Array

TOLERANCES = (-8, -11, -20)  # powers of two
MEASURES = ("table", "pair")
FIRST, CHUNK = 512, 1 << 14
UNSCANNABLE = 1 << 26  # positions from here on are searched: products with halves are inexact


@dataclass(frozen=True, kw_only=True)
class Built:
    """A way with its frequencies, (columns,) float64, and the exact ones."""

    way: Way
    inv_freq: Array
    exact: Frequencies

    def errors(self, positions: Array, columns: Any = slice(None)) -> tuple[Array, Array]:
        """Least and largest possible errors (2, ...) of "table" and "pair" of elements."""
        angle = angles(self.way, self.inv_freq[columns], positions)
        finite = np.isfinite(angle)
        off = self.exact.difference(np.where(finite, angle, 0.0), positions, columns)
        sine, cosine = self.exact.sin_cos(positions, columns)
        s, c = sin_cos_radians(np, off)
        made = (sine * c + cosine * s, cosine * c - sine * s)
        slack = RADIANS + 4 * SLACK + np.abs(off) * 2.0**-50
        low, high = [], []
        for value, right in zip(made, (sine, cosine), strict=True):
            ends = [stored(self.way, value + e) - right for e in (-slack, slack)]
            sizes = np.abs(ends)
            crossed = (ends[0] < 0) & (ends[1] > 0)
            low.append(np.where(crossed, 0.0, np.maximum(sizes.min(0) - SLACK, 0.0)))
            high.append(np.where(finite, sizes.max(0) + SLACK, 2.0))
        found = [np.array([np.maximum(*e), np.hypot(*e)]) for e in (low, high)]
        return np.where(finite, found[0], 2.0), found[1]

    def ball_error(self, position: int, column: int) -> tuple[float, float]:
        """Both measures of one element, from balls, correctly rounded sines of the angle."""
        from flint import arb, ctx

        angle = angles(self.way, self.inv_freq[[column]], np.array([position]))[0]
        if not np.isfinite(angle):
            return 2.0, 2.0
        right = self.exact.exact(position, column)
        with ctx.workprec(256):
            made = arb(float(angle)).sin_cos()
            kept = list(made)
            if self.way.table != "exact":
                kept = [arb(FORMAT[self.way.table].round_fraction(fraction(x))) for x in made]
            s, c = (abs(k - r) for k, r in zip(kept, right, strict=True))
            return float(s.max(c).mid()), float((s * s + c * c).sqrt().mid())


def scan(built: Built, to: int, tolerances: Iterable[int] = TOLERANCES) -> dict[str, Any]:
    """measure -> power -> {"limit", "at", "error"}; no "at": nothing up to position `to`."""
    open_ = {(measure, p) for measure in MEASURES for p in tolerances}
    found: dict[str, Any] = {m: {str(p): {"limit": to, "exact": True} for p in tolerances}
                             for m in MEASURES}  # fmt: skip
    half = 0.0 if built.way.table == "exact" else FORMAT[built.way.table].unit / 2
    begin, size = 0, FIRST
    while begin <= to and open_:
        positions = np.arange(begin, min(begin + size, to + 1))
        angle = angles(built.way, built.inv_freq, positions[:, None])
        with np.errstate(invalid="ignore"):
            off = np.abs(built.exact.difference(angle, positions[:, None]))
        least = 2.0 ** min(p for _, p in open_)
        rows, columns = np.nonzero(~(off < least - 1.5 * half))
        if rows.size:
            _decide(built, positions[rows], columns, open_, found)
        begin, size = begin + size, min(2 * size, CHUNK)
    return found


def _decide(
    built: Built, positions: Array, columns: Array, open_: set[tuple[str, int]],
    found: dict[str, Any],
) -> None:  # fmt: skip
    """Find the first violations among candidates in the order of positions."""
    low, high = built.errors(positions, columns)
    for measure, p in sorted(open_):
        row = MEASURES.index(measure)
        for i in np.nonzero(high[row] >= 2.0**p)[0]:
            at = int(positions[i]), int(columns[i])
            error = built.ball_error(*at)[row]
            if error < 2.0**p:
                if low[row][i] >= 2.0**p:
                    raise ArithmeticError(f"{built.way.name}, {at}: float64 and balls disagree")
                continue
            found[measure][str(p)] = {"limit": at[0] - 1, "exact": True, "at": at, "error": error}
            open_.discard((measure, p))
            break


def bracket(built: Built, tolerances: Iterable[int] = TOLERANCES, top: int = 60) -> dict[str, Any]:
    """Limits of a way whose angles are in float64: from below proved, from above by search.

    |d| <= m (|inv_freq - theta| + 2^-53 inv_freq); violations are looked for at 2^k - 1.
    """
    off = np.abs(built.exact.difference(built.inv_freq, np.array([1])))
    off += built.inv_freq * 2.0**-53 + off * 2.0**-40
    half = 0.0 if built.way.table == "exact" else FORMAT[built.way.table].unit / 2
    errors = {k: _worst_ball(built, 2**k - 1) for k in range(17, top)}
    found: dict[str, Any] = {m: {} for m in MEASURES}
    for row, measure in enumerate(MEASURES):
        for p in tolerances:
            known = int((2.0**p - 1.5 * half) / off.max())
            above = [k for k, e in errors.items() if e[row] >= 2.0**p]
            found[measure][str(p)] = {"limit": known, "exact": False, **(
                {"at": (2 ** above[0] - 1, None), "error": errors[above[0]][row]} if above else {}
            )}  # fmt: skip
    return found


def _worst_ball(built: Built, position: int) -> tuple[float, float]:
    each = [built.ball_error(position, c) for c in range(len(built.inv_freq))]
    return max(e[0] for e in each), max(e[1] for e in each)


def curve(built: Built, to: int, points: int = 61) -> list[tuple[int, float]]:
    """(position, "table" error) at positions in even ratios, the largest of 8 neighbours each."""
    tops = np.unique(np.geomspace(8, to, points).astype(np.int64))
    positions = (tops[:, None] - np.arange(8)).reshape(-1, 1)
    _, high = built.errors(positions)
    worst = high[0].max(axis=-1).reshape(len(tops), 8).max(axis=1)
    return list(zip(tops.tolist(), worst.tolist(), strict=True))
