"""Exact angles on the device against rational arithmetic, at the ends of every range."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

import mpmath
import numpy as np
import pytest
import torch

from tightrope.device import current

HOME = current().kind

import triton  # noqa: E402  (after `current`)
import triton.language as tl  # noqa: E402

from tightrope.turns import (  # noqa: E402
    ANGLE_ERROR,
    TRIG_ERROR,
    fixed_point,
    fraction,
    inverse_turn,
    phase,
    turned,
    turns_of,
)

DEVICE = torch.device(HOME)
WORD, FULL = 2**64, 2**128
RNG = np.random.default_rng(4)
EDGES = [2.0**e for e in range(-1074, 1024, 29)] + [2.0**e for e in (-192, -150, -140, -139, 64)]
SHIFTS = [2.0**e * (1 + 2.0**-52) for e in range(-145, 66)]  # every shift of every word
RANDOM = (RNG.uniform(1, 2, 400) * 2.0 ** RNG.integers(-160, 1023, 400)).tolist()
# 6381956970095103 * 2^797 comes closest to a multiple of pi/2 among doubles (Muller, Elementary
# Functions, 2nd ed., table 11.1).
HARD = [6381956970095103.0 * 2.0**797, np.pi, 2 * np.pi, np.nextafter(2 * np.pi, 0), 1e-300, 0.0]
CARRIES = [355.0 * 2.0**-63, 355.0 * 2.0**-61, 3217.0 * 2.0**-70]  # 355/113 is nearly pi
FREQUENCIES = [
    *CARRIES,
    *EDGES,
    *SHIFTS,
    *RANDOM,
    *HARD,
    np.finfo(float).max,
    5e-324,
    2.0**-149,
    1e-45,
]
POSITIONS = [
    0, 1, -1, 2, 3, 4095, -(2**17) + 1, 2**24 + 1, 2**31, -(2**31), 2**40 + 1, 2**53 + 1,
    2**62 - 17, 2**63 - 1, -(2**63), *RNG.integers(-(2**63), 2**63 - 1, 20).tolist(),
]  # fmt: skip


@triton.jit
def fraction_kernel(frequencies, words, high, low, phases, length, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    keep = at < length
    frequency = tl.load(frequencies + at, mask=keep, other=0.0)
    f_high, f_low = fraction(frequency, words)
    tl.store(high + at, f_high.to(tl.int64, bitcast=True), mask=keep)
    tl.store(low + at, f_low.to(tl.int64, bitcast=True), mask=keep)
    tl.store(phases + at, phase(frequency, words).to(tl.int64, bitcast=True), mask=keep)


@triton.jit
def angle_kernel(
    positions, high, low, turns, cos, sin, length, columns,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    m = tl.load(positions + row, mask=row < length, other=0)[:, None]
    f_high = tl.load(high + column, mask=column < columns, other=0).to(tl.uint64)[None, :]
    f_low = tl.load(low + column, mask=column < columns, other=0).to(tl.uint64)[None, :]
    out = row[:, None] * columns + column[None, :]
    keep = (row < length)[:, None] & (column < columns)[None, :]
    tl.store(turns + out, turns_of(m, f_high, f_low).to(tl.int64, bitcast=True), mask=keep)
    cosine, sine = turned(m, f_high, f_low)
    tl.store(cos + out, cosine, mask=keep)
    tl.store(sin + out, sine, mask=keep)


def unsigned(words: torch.Tensor) -> list[int]:
    return [int(w) % WORD for w in words.cpu().ravel().tolist()]


def fractions(
    frequencies: list[float], words: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """High and low words of each fraction, and each as a phase."""
    words = inverse_turn(DEVICE) if words is None else words
    given = torch.tensor(frequencies, dtype=torch.float64, device=DEVICE)
    outs = [torch.empty(len(frequencies), dtype=torch.int64, device=DEVICE) for _ in range(3)]
    block = triton.next_power_of_2(len(frequencies))
    fraction_kernel[(1,)](given, words, *outs, len(frequencies), BLOCK=block)
    return outs[0], outs[1], outs[2]


@lru_cache(maxsize=1)
def inverse_of_a_turn() -> Fraction:
    """1/(2 pi) to 2,000 bits, by Machin's formula in integers: no line in common with the rest."""
    one = 1 << 2048
    arctan = {}
    for n in (5, 239):
        term, total, k = one // n, 0, 1
        while term:
            total += term // k if k % 4 == 1 else -(term // k)
            term, k = term // (n * n), k + 2
        arctan[n] = total
    return Fraction(one, 2 * 4 * (4 * arctan[5] - arctan[239]))


def off(word: int, unit: int, exact: Fraction) -> Fraction:
    """Distance of word/unit from exact on the circle of length 1, in units."""
    apart = (Fraction(word) - exact * unit) % unit
    return min(apart, unit - apart)


def test_fractions_of_every_size_of_frequency_are_rounded_once() -> None:
    high, low, _ = fractions(FREQUENCIES)
    for f, h, l in zip(FREQUENCIES, unsigned(high), unsigned(low), strict=True):
        wrong = off(h * WORD + l, FULL, Fraction(f) * inverse_of_a_turn())
        assert wrong <= Fraction(1, 2) + Fraction(1, 2**10), f


def test_the_sign_of_a_frequency_is_left_out() -> None:
    for a, b in zip(fractions(FREQUENCIES)[:2], fractions([-f for f in FREQUENCIES]), strict=False):
        assert torch.equal(a, b)


def test_fractions_agree_with_the_host() -> None:
    some = [f for f in FREQUENCIES if f < 2.0**400][::7]
    host = fixed_point(lambda i: mpmath.mpf(some[i]), len(some), DEVICE)
    for high, low, h, l in zip(*map(unsigned, (*host, *fractions(some)[:2])), strict=True):
        assert abs(high * WORD + low - h * WORD - l) in (0, 1, FULL - 1)


@pytest.mark.parametrize("sign", [1, -1])
def test_phases_are_angles_of_either_sign(sign: int) -> None:
    angles = [sign * f for f in FREQUENCIES]
    limit = Fraction(1, 2) + Fraction(1, 2**11)
    for angle, found in zip(angles, unsigned(fractions(angles)[2]), strict=True):
        assert off(found, WORD, Fraction(angle) * inverse_of_a_turn()) <= limit, angle


def test_nothing_outside_the_table_of_words_is_read() -> None:
    """Whatever lies around it: also for what is no number, for the largest and the smallest."""
    given = [float("nan"), float("inf"), np.finfo(float).max, 5e-324, 0.0, *SHIFTS]
    found = []
    for around in (0, -1):
        room = torch.full((22 + 128,), around, dtype=torch.int64, device=DEVICE)
        room[64:-64] = inverse_turn(DEVICE)
        found.append(fractions(given, room[64:-64]))
    assert all(map(torch.equal, *found))


@pytest.fixture(scope="module")
def angles() -> dict[str, list]:
    """Turns, cos and sin of every position times every seventh frequency."""
    some = FREQUENCIES[::7] + HARD
    high, low, _ = fractions(some)
    positions = torch.tensor(POSITIONS, dtype=torch.int64, device=DEVICE)
    shape = (len(POSITIONS), len(some))
    turns = torch.empty(shape, dtype=torch.int64, device=DEVICE)
    values = [torch.empty(shape, dtype=torch.float64, device=DEVICE) for _ in range(2)]
    tile = {"ROWS": triton.next_power_of_2(shape[0]), "COLUMNS": triton.next_power_of_2(shape[1])}
    angle_kernel[(1,)](positions, high, low, turns, *values, *shape, **tile, enable_fp_fusion=False)
    exact = [m * Fraction(f) * inverse_of_a_turn() for m in POSITIONS for f in some]
    cos, sin = (value.ravel().tolist() for value in values)
    return {"turns": unsigned(turns), "exact": exact, "cos": cos, "sin": sin}


def test_turns_keep_the_bound_at_every_position(angles: dict[str, list]) -> None:
    limit = Fraction(ANGLE_ERROR) / Fraction(2 * np.pi)
    pairs = zip(angles["turns"], map(abs, angles["exact"]), strict=True)
    worst = max(off(found, WORD, exact) / WORD for found, exact in pairs)
    assert limit / 2 < worst <= limit


def test_the_sign_of_a_position_mirrors_the_angle(angles: dict[str, list]) -> None:
    columns = len(angles["cos"]) // len(POSITIONS)
    ends = [POSITIONS.index(2**31), POSITIONS.index(-(2**31))]
    for name, sign in (("cos", 1), ("sin", -1)):
        there, here = (angles[name][at * columns : (at + 1) * columns] for at in ends)
        assert there == [sign * x for x in here]


def test_cos_and_sin_keep_their_relative_bound(angles: dict[str, list]) -> None:
    """Against mpmath at the exact angle: ANGLE_ERROR radians, then TRIG_ERROR of the value."""
    with mpmath.workprec(300):
        for exact, cosine, sine in zip(angles["exact"], angles["cos"], angles["sin"], strict=True):
            turn = exact % 1
            angle = 2 * mpmath.pi * mpmath.mpf(turn.numerator) / turn.denominator
            for found, value in ((cosine, mpmath.cos(angle)), (sine, mpmath.sin(angle))):
                allowed = ANGLE_ERROR + TRIG_ERROR * (abs(value) + ANGLE_ERROR)
                assert abs(mpmath.mpf(found) - value) <= allowed
