"""PoPE's frequencies, and cos and sin of position times each: exact angles, and float32 ones.

Frequency c is rope_theta ** (exponent_sign * c/rotary_dim), c = 0 .. rotary_dim-1, one a feature
(PoPE, arXiv 2509.10534, eq. 4; `tightrope.polar` has both signs), the angle at position m is m
times it. inv_freq is float64; cos and sin are float32.

`exact` rounds the frequencies once, as it returns them, and counts angles in fixed-point turns of
the frequencies themselves; bounds in `tightrope.turns`.

`float32` rounds the frequency (correctly, on the host), the position and their product to float32
and returns that frequency; its cos and sin are Triton's, as those of rope_table's `float32`. With
the sign of the paper's print a frequency reaches rope_theta, and angles are off by more than a
radian from a position of about 2^24/rope_theta on: exact angles are for that.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import mpmath
import torch
import triton
import triton.language as tl

from tightrope import Arithmetic, implements
from tightrope.arithmetic import SIN_COS
from tightrope.table_tiles import build, exact_tile, float32_tile, rounded
from tightrope.turns import ANGLE_ERROR, ROUNDED_ONCE, fixed_point
from tightrope.validate import check_pope_table, refuse

HUGE = ("range", "random", "repeated", "descending", "negative", "powers", "long", "huge")


@triton.jit
def _copy(frequencies, inv_freq, columns, BLOCK_COLUMNS: tl.constexpr):
    # By the first program alone.
    column = tl.arange(0, BLOCK_COLUMNS)
    mine = (column < columns) & (tl.program_id(0) == 0)
    tl.store(inv_freq + column, tl.load(frequencies + column, mask=mine, other=0.0), mask=mine)


@triton.jit(do_not_specialize=[*range(10)])
def exact_kernel(
    positions, frequencies, high, low, cos, sin, inv_freq,
    length: tl.int64, columns: tl.int64, stride: tl.int64,
    BLOCK_POSITIONS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr,
):  # fmt: skip
    # frequencies: (columns,) float64; high, low: words of F, uint64 as int64.
    _copy(frequencies, inv_freq, columns, BLOCK_COLUMNS)
    exact_tile(
        positions, high, low, cos, sin, length, columns, stride, BLOCK_POSITIONS, BLOCK_COLUMNS
    )  # fmt: skip


@triton.jit(do_not_specialize=[*range(9)])
def float32_kernel(
    positions, frequencies, narrow, cos, sin, inv_freq,
    length: tl.int64, columns: tl.int64, stride: tl.int64,
    BLOCK_POSITIONS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr,
):  # fmt: skip
    # frequencies and narrow: (columns,), the same numbers in float64 and in float32.
    _copy(frequencies, inv_freq, columns, BLOCK_COLUMNS)
    float32_tile(
        positions, narrow, cos, sin, length, columns, stride, BLOCK_POSITIONS, BLOCK_COLUMNS
    )  # fmt: skip


def _frequency(rotary_dim: int, rope_theta: float, exponent_sign: int, c: int) -> mpmath.mpf:
    return mpmath.power(mpmath.mpf(rope_theta), mpmath.mpf(exponent_sign * c) / rotary_dim)


@lru_cache(maxsize=256)
def constants(
    dtype: torch.dtype, rotary_dim: int, rope_theta: float, exponent_sign: int, device: torch.device
) -> tuple[torch.Tensor, ...]:
    """Frequencies (rotary_dim,) in float64, rounded once to dtype, and what a kernel reads.

    That is, for float32, the frequencies in that format; for float64 the words of F. Raises
    ValueError where a frequency is beyond dtype.
    """
    real = partial(_frequency, rotary_dim, rope_theta, exponent_sign)
    found = rounded(real, rotary_dim, 24 if dtype is torch.float32 else 53)
    if not max(found) <= torch.finfo(dtype).max:
        refuse("rope_theta", f"one whose frequencies are finite in {dtype}", rope_theta)
    wide = torch.tensor(found, dtype=torch.float64, device=device)
    if dtype is torch.float32:
        return wide, wide.float()
    return wide, *fixed_point(real, rotary_dim, device)


def _build(
    kernel: Any,
    dtype: torch.dtype,
    positions: torch.Tensor,
    rotary_dim: int,
    rope_theta: float,
    exponent_sign: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    check_pope_table(
        positions, rotary_dim=rotary_dim, rope_theta=rope_theta, exponent_sign=exponent_sign
    )
    given = constants(dtype, rotary_dim, float(rope_theta), exponent_sign, positions.device)
    inv_freq = torch.empty(rotary_dim, dtype=torch.float64, device=positions.device)
    return inv_freq, *build(kernel, positions, rotary_dim, given, inv_freq)


@implements(
    "pope_table",
    name="exact",
    positions=HUGE,
    arithmetic=Arithmetic(
        position="exact",
        inv_freq="exact",
        inv_freq_ulp=0,
        inv_freq_output="float64",
        angle="exact",
        angle_error=ANGLE_ERROR,
        trig_ulp=ROUNDED_ONCE,
    ),
)
def exact(
    positions: torch.Tensor, *, rotary_dim: int, rope_theta: float, exponent_sign: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """inv_freq (rotary_dim,) float64; cos, sin (len, rotary_dim) float32 of positions (len,).

    positions: int32 or int64, any value; exponent_sign: one of `tightrope.polar.EXPONENT_SIGNS`.
    Raises as `tightrope.validate.check_pope_table`, ValueError also for frequencies that are
    beyond float64.
    """
    return _build(exact_kernel, torch.float64, positions, rotary_dim, rope_theta, exponent_sign)


def _float32_promise(case: Any, device: Any) -> Arithmetic:
    formats = dict.fromkeys(("position", "inv_freq", "angle"), "float32")
    ulps = ROUNDED_ONCE if device.interpreted else SIN_COS
    return Arithmetic(**formats, inv_freq_ulp=0, trig_ulp=ulps)


@implements("pope_table", name="float32", arithmetic=_float32_promise)
def float32(
    positions: torch.Tensor, *, rotary_dim: int, rope_theta: float, exponent_sign: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As `exact`, but in float32 throughout: angles are off by 2^-24 of their size, and more."""
    return _build(float32_kernel, torch.float32, positions, rotary_dim, rope_theta, exponent_sign)
