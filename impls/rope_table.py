"""cos and sin of position times frequency: angles exact for any position, and the usual float32.

Frequency i is rope_theta ** (-2i/rotary_dim) (Su et al., RoFormer, arXiv 2104.09864, 3.2.2), or
what a context extension makes of it (`tightrope.scaled_frequencies`); the angle at position m is m
times it. Both builders return float32, and are the same function of the position for every call
with the same options: nothing is kept of earlier ones but constants.

`exact` never forms the angle: position times frequency is counted in fixed-point turns; bounds in
`tightrope.turns`. attention_factor, rounded to float64, is multiplied in before the one rounding:
10 units of 2^-53 relative are 1.25 * 2^-26 ulp of float32.

`float32` rounds the frequency (correctly, on the host), the position and their product to float32
and takes Triton's float32 cos and sin. On a GPU these are libdevice's, within 2 ulp of correctly
rounded (CUDA programming guide, mathematical functions), so 2.5 of exact; under the interpreter
NumPy's in float64, granted 4 ulp of that format, which is below 2^-26 ulp, rounded once. They are
then multiplied with attention_factor in float32, as the models' own code does it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import mpmath
import torch
import triton
import triton.language as tl

from tightrope import Arithmetic, implements
from tightrope.arithmetic import SIN_COS
from tightrope.rope_scaling import RopeScaling
from tightrope.scaled_frequencies import amplitude, axis_of, frequency
from tightrope.table_tiles import build, exact_tile, float32_tile, rounded
from tightrope.turns import ANGLE_ERROR, ROUNDED_ONCE, fixed_point
from tightrope.validate import check_rope_table, refuse

AMPLIFIED = 0.5 + 2.0**-25  # ulps of float32, with attention_factor
TYPES = ("default", "linear", "ntk", "dynamic", "yarn", "longrope", "llama3", "proportional")
SCALINGS: Any = {"rope_scaling": TYPES, "axes": ("one", "sections", "interleaved")}
Constants = tuple[torch.Tensor, ...]


@triton.jit(do_not_specialize=[*range(11)])
def exact_kernel(
    positions, high, low, axis, cos, sin, length: tl.int64, half: tl.int64, stride: tl.int64,
    factor: tl.float64, axis_stride: tl.int64,
    BLOCK_POSITIONS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr, AXES: tl.constexpr,
):  # fmt: skip
    # high, low: words of F, uint64 as int64; axis: (half,) int64; cos, sin: (length, half).
    exact_tile(
        positions, high, low, cos, sin, length, half, stride, BLOCK_POSITIONS, BLOCK_COLUMNS,
        factor, axis if AXES else None, axis_stride,
    )  # fmt: skip


@triton.jit(do_not_specialize=[*range(10)])
def float32_kernel(
    positions, inv_freq, axis, cos, sin, length: tl.int64, half: tl.int64, stride: tl.int64,
    factor: tl.float32, axis_stride: tl.int64,
    BLOCK_POSITIONS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr, AXES: tl.constexpr,
):  # fmt: skip
    # inv_freq: (half,) float32; axis: (half,) int64; cos, sin: (length, half), contiguous.
    float32_tile(
        positions, inv_freq, cos, sin, length, half, stride, BLOCK_POSITIONS, BLOCK_COLUMNS,
        factor, axis if AXES else None, axis_stride,
    )  # fmt: skip


@lru_cache(maxsize=256)
def turns(
    rotary_dim: int, rope_theta: float, scaling: RopeScaling, device: torch.device
) -> Constants:
    """High and low words of F, (rotary_dim/2,) each, uint64 stored as int64."""
    return fixed_point(frequency(rotary_dim, rope_theta, scaling), rotary_dim // 2, device)


@lru_cache(maxsize=256)
def inv_freq_float32(
    rotary_dim: int, rope_theta: float, scaling: RopeScaling, device: torch.device
) -> Constants:
    """Frequencies (rotary_dim/2,), each rounded once to float32 (in its normal range).

    Raises ValueError where one is beyond float32 (rope_theta far below 1).
    """
    found = rounded(frequency(rotary_dim, rope_theta, scaling), rotary_dim // 2, 24)
    if not max(found) <= torch.finfo(torch.float32).max:
        refuse("rope_theta", "one whose frequencies are finite in float32", rope_theta)
    return (torch.tensor(found, dtype=torch.float32, device=device),)


@lru_cache(maxsize=256)
def axes(columns: int, scaling: RopeScaling, device: torch.device) -> torch.Tensor:
    """The axis of positions that turns each column, (columns,) int64."""
    found = [axis_of(c, scaling) for c in range(columns)] if scaling.mrope_section else [0]
    return torch.tensor(found, device=device)


@lru_cache(maxsize=256)
def factor_of(scaling: RopeScaling, precision: int) -> float:
    """attention_factor, rounded once to so many bits."""
    with mpmath.workprec(200):
        found = amplitude(scaling)
    with mpmath.workprec(precision):
        return float(+found)


def _build(
    kernel: Any,
    constants: Callable[[int, float, RopeScaling, torch.device], Constants],
    precision: int,
    positions: torch.Tensor,
    rotary_dim: int,
    rope_theta: float,
    rope_scaling: Mapping[str, Any] | None,
    seq_len: int | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    scaling = check_rope_table(
        positions, rotary_dim=rotary_dim, rope_theta=rope_theta,
        rope_scaling=rope_scaling, seq_len=seq_len,
    )  # fmt: skip
    half, device, many = rotary_dim // 2, positions.device, positions.ndim > 1
    given = constants(rotary_dim, float(rope_theta), scaling, device)
    numbers = (factor_of(scaling, precision), positions.stride(0) if many else 0)
    axis = axes(half, scaling, device)
    return build(kernel, positions, half, (*given, axis), numbers=numbers, AXES=many)


def _exact_promise(case: Any, device: Any) -> Arithmetic:
    formats = dict.fromkeys(("position", "inv_freq", "angle", "attention_factor"), "exact")
    ulps = AMPLIFIED if case.rope_scaling in ("yarn", "longrope") else ROUNDED_ONCE
    return Arithmetic(**formats, inv_freq_ulp=0, angle_error=ANGLE_ERROR, trig_ulp=ulps)


@implements(
    "rope_table",
    name="exact",
    # "huge" is asked only of builders that name it: positions past 2^24, up to the ends of int64.
    positions=("range", "random", "repeated", "descending", "negative", "powers", "long", "huge"),
    arithmetic=_exact_promise,
    **SCALINGS,
)
def exact(
    positions: torch.Tensor,
    *,
    rotary_dim: int,
    rope_theta: float,
    rope_scaling: Mapping[str, Any] | None = None,
    seq_len: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos, sin (len, rotary_dim/2) float32 of positions (len,), int32 or int64, any value.

    With rope_scaling["mrope_section"] positions may be (3, len). rope_scaling, seq_len: as
    `tightrope.rope_scaling` has it; attention_factor is included. Raises as
    `tightrope.validate.check_rope_table`.
    """
    return _build(
        exact_kernel, turns, 53, positions, rotary_dim, rope_theta, rope_scaling, seq_len
    )  # fmt: skip


def _float32_promise(case: Any, device: Any) -> Arithmetic:
    formats = dict.fromkeys(("position", "inv_freq", "angle", "attention_factor"), "float32")
    ulps = ROUNDED_ONCE if device.interpreted else SIN_COS
    return Arithmetic(**formats, inv_freq_ulp=0, trig_ulp=ulps)


@implements("rope_table", name="float32", arithmetic=_float32_promise, **SCALINGS)
def float32(
    positions: torch.Tensor,
    *,
    rotary_dim: int,
    rope_theta: float,
    rope_scaling: Mapping[str, Any] | None = None,
    seq_len: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `exact`, but in float32 throughout: angles are off by 2^-24 of their size, and more."""
    return _build(
        float32_kernel, inv_freq_float32, 24, positions, rotary_dim, rope_theta, rope_scaling,
        seq_len,
    )  # fmt: skip
