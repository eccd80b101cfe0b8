"""cos and sin of position times frequency: angles exact for any position, and the usual float32.

Frequency i is rope_theta ** (-2i/rotary_dim) (Su et al., RoFormer, arXiv 2104.09864, 3.2.2), the
angle at position m is m times it. Both builders return float32.

`exact` never forms the angle. The host computes the frequency in turns, frequency/(2 pi) mod 1, as
a 128-bit fraction, F = round(turns * 2^128). Position times fraction mod 1 is integer arithmetic
that wraps: t = |m| * F_high + high64(|m| * F_low) mod 2^64, in units of 2^-64 turn. With u = 2^-53:

- `angle_error`, absolute, in radians: t drops less than 2^-64 turn; F is off by 2^-129, times
  |m| <= 2^63 at most 2^-66 turn. Together 1.25 * 2^-64 * 2 pi < 4.26e-19 rad at every position,
  and nothing else depends on the position.
- reduced angle: t is a number of quarter turns plus r, an integer with |r| <= 2^61, so |x| <= pi/4
  for x = r * (2 pi/2^64). r to float64, the constant, the product: three roundings, 3 u and a bit.
  sin and cos pass on a relative error of x at most once (x cot x <= 1, x tan x <= pi/4).
- polynomials (Taylor; alternating, so the first term dropped bounds the remainder): sin drops
  x^17/17! < 4.7e-17 < 0.6 u |sin x|, cos drops x^18/18! < 2.1e-18 < 0.1 u. Horner from the smallest
  term: sin = x + x*w, |w| <= x^2/6 < 0.103; cos = 1 - v, v <= 0.293; w and v to 5 u relative, then
  a product and a sum: below 1.7 u for sin, below (5 * 0.293 + 1)/0.707 u < 3.5 u for cos.
- all together below 8 u relative; after the one rounding to float32 that is at most half an ulp
  plus 8 u * 2^24 = 2^-26 ulp: `trig_ulp`.

`float32` rounds the frequency (correctly, on the host), the position and their product to float32
and takes Triton's float32 cos and sin. On a GPU these are libdevice's, within 2 ulp of correctly
rounded (CUDA programming guide, mathematical functions), so 2.5 of exact; under the interpreter
NumPy's in float64, granted 4 ulp of that format, which is below 2^-26 ulp, rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import mpmath
import torch
import triton
import triton.language as tl

from tightrope import Arithmetic, implements
from tightrope.launch import capability, launcher
from tightrope.validate import check_rope_table, refuse

ROUNDED_ONCE = 0.5 + 2.0**-26  # ulps of float32, after float64 arithmetic


@triton.jit
def _sin_cos(x):
    """sin x and cos x in float64 for |x| <= pi/4."""
    z = x * x
    w = z * (-1.0 / 1307674368000)
    w = z * (1.0 / 6227020800 + w)
    w = z * (-1.0 / 39916800 + w)
    w = z * (1.0 / 362880 + w)
    w = z * (-1.0 / 5040 + w)
    w = z * (1.0 / 120 + w)
    w = z * (-1.0 / 6 + w)
    v = z * (-1.0 / 20922789888000)
    v = z * (1.0 / 87178291200 + v)
    v = z * (-1.0 / 479001600 + v)
    v = z * (1.0 / 3628800 + v)
    v = z * (-1.0 / 40320 + v)
    v = z * (1.0 / 720 + v)
    v = z * (-1.0 / 24 + v)
    v = z * (1.0 / 2 + v)
    return x + x * w, 1.0 - v


@triton.jit(do_not_specialize=[*range(8)])
def exact_kernel(
    positions, high, low, cos, sin, length: tl.int64, half: tl.int64, stride: tl.int64,
    BLOCK_POSITIONS: tl.constexpr, BLOCK_PAIRS: tl.constexpr,
):  # fmt: skip
    # high, low: words of F, uint64 as int64; cos, sin: (length, half), contiguous.
    place = tl.program_id(0).to(tl.int64) * BLOCK_POSITIONS + tl.arange(0, BLOCK_POSITIONS)
    pair = tl.arange(0, BLOCK_PAIRS)
    m = tl.load(positions + place * stride, mask=place < length, other=0).to(tl.int64)
    f_high = tl.load(high + pair, mask=pair < half, other=0).to(tl.uint64)[None, :]
    f_low = tl.load(low + pair, mask=pair < half, other=0).to(tl.uint64)[None, :]
    # Negating in unsigned words also holds for the smallest int64.
    count = tl.where(m < 0, (0 - m).to(tl.uint64), m.to(tl.uint64))[:, None]
    turns = count * f_high + tl.umulhi(count, f_low)
    quadrant = (turns + (1 << 61)) >> 62
    rest = (turns - (quadrant << 62)).to(tl.int64)
    s, c = _sin_cos(rest.to(tl.float64) * (6.283185307179586 / 2**64))
    odd = (quadrant & 1) != 0
    sine = tl.where(odd, c, s)
    cosine = tl.where(odd, s, c)
    sine = tl.where(((quadrant & 2) != 0) != (m < 0)[:, None], -sine, sine)
    cosine = tl.where(((quadrant + 1) & 2) != 0, -cosine, cosine)
    keep = (place < length)[:, None] & (pair < half)[None, :]
    out = place[:, None] * half + pair[None, :]
    tl.store(cos + out, cosine.to(tl.float32), mask=keep)
    tl.store(sin + out, sine.to(tl.float32), mask=keep)


@triton.jit(do_not_specialize=[*range(7)])
def float32_kernel(
    positions, inv_freq, cos, sin, length: tl.int64, half: tl.int64, stride: tl.int64,
    BLOCK_POSITIONS: tl.constexpr, BLOCK_PAIRS: tl.constexpr,
):  # fmt: skip
    # inv_freq: (half,) float32; cos, sin: (length, half), contiguous.
    place = tl.program_id(0).to(tl.int64) * BLOCK_POSITIONS + tl.arange(0, BLOCK_POSITIONS)
    pair = tl.arange(0, BLOCK_PAIRS)
    m = tl.load(positions + place * stride, mask=place < length, other=0).to(tl.float32)
    frequency = tl.load(inv_freq + pair, mask=pair < half, other=0.0)
    angle = m[:, None] * frequency[None, :]
    keep = (place < length)[:, None] & (pair < half)[None, :]
    out = place[:, None] * half + pair[None, :]
    tl.store(cos + out, tl.cos(angle), mask=keep)
    tl.store(sin + out, tl.sin(angle), mask=keep)


class Config(NamedTuple):
    """Tile (powers of 2) and warps of a program."""

    BLOCK_POSITIONS: int
    BLOCK_PAIRS: int
    num_warps: int


def config(length: int, rotary_dim: int, capability: tuple[int, int] | None) -> Config:
    """Pure. capability: (major, minor), or None for the interpreter: few programs there."""
    pairs = max(16, triton.next_power_of_2(rotary_dim // 2))
    if capability is None:
        block = triton.next_power_of_2(triton.cdiv(max(length, 1), 4))
        return Config(min(block, max(1, 2**18 // pairs)), pairs, 4)
    return Config(max(1, 512 // pairs), pairs, 4)


def _frequency(i: int, rotary_dim: int, rope_theta: float) -> mpmath.mpf:
    return mpmath.power(mpmath.mpf(rope_theta), mpmath.mpf(-2 * i) / rotary_dim)


@lru_cache(maxsize=256)
def turns(
    rotary_dim: int, rope_theta: float, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low words of F, (rotary_dim/2,) each, uint64 stored as int64."""
    # With rope_theta < 1 a frequency reaches 2^1074, and the bits after its point are wanted.
    with mpmath.workprec(1400):
        found = [
            _frequency(i, rotary_dim, rope_theta) / (2 * mpmath.pi) for i in range(rotary_dim // 2)
        ]
        numbers = [int(mpmath.nint(mpmath.ldexp(f, 128))) % 2**128 for f in found]
    words = [[w - ((w >> 63) << 64) for w in (n >> 64, n % 2**64)] for n in numbers]
    high, low = torch.tensor(words, dtype=torch.int64, device=device).T.contiguous()
    return high, low


@lru_cache(maxsize=256)
def inv_freq_float32(
    rotary_dim: int, rope_theta: float, device: torch.device
) -> tuple[torch.Tensor]:
    """Frequencies (rotary_dim/2,), each rounded once to float32 (in its normal range).

    Raises ValueError where one is beyond float32 (rope_theta far below 1).
    """
    with mpmath.workprec(200):
        found = [_frequency(i, rotary_dim, rope_theta) for i in range(rotary_dim // 2)]
    with mpmath.workprec(24):
        rounded = [float(+f) for f in found]
    if not max(rounded) <= torch.finfo(torch.float32).max:
        refuse("rope_theta", "one whose frequencies are finite in float32", rope_theta)
    return (torch.tensor(rounded, dtype=torch.float32, device=device),)


def _build(
    kernel: Any,
    constants: Callable[[int, float, torch.device], tuple[torch.Tensor, ...]],
    positions: torch.Tensor,
    rotary_dim: int,
    rope_theta: float,
    rope_scaling: Mapping[str, Any] | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    check_rope_table(
        positions, rotary_dim=rotary_dim, rope_theta=rope_theta, rope_scaling=rope_scaling
    )
    length, half, device = positions.shape[0], rotary_dim // 2, positions.device
    tile = config(length, rotary_dim, capability(kernel, device))
    cos = torch.empty((length, half), dtype=torch.float32, device=device)
    sin = torch.empty((length, half), dtype=torch.float32, device=device)
    launch = launcher(
        kernel,
        device,
        programs=triton.cdiv(length, tile.BLOCK_POSITIONS),
        numbers=(length, half, positions.stride(0)),
        constants={"BLOCK_POSITIONS": tile.BLOCK_POSITIONS, "BLOCK_PAIRS": tile.BLOCK_PAIRS},
        num_warps=tile.num_warps,
    )
    launch(positions, *constants(rotary_dim, float(rope_theta), device), cos, sin)
    return cos, sin


@implements(
    "rope_table",
    name="exact",
    # "huge" is asked only of builders that name it: positions past 2^24, up to the ends of int64.
    positions=("range", "random", "repeated", "descending", "negative", "powers", "long", "huge"),
    arithmetic=Arithmetic(
        position="exact",
        inv_freq="exact",
        inv_freq_ulp=0,
        angle="exact",
        angle_error=4.26e-19,
        trig_ulp=ROUNDED_ONCE,
    ),
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

    rope_scaling: None or {"rope_type": "default"}; seq_len has no influence on these.
    Raises as `tightrope.validate.check_rope_table`.
    """
    return _build(exact_kernel, turns, positions, rotary_dim, rope_theta, rope_scaling)


def _float32_promise(case: Any, device: Any) -> Arithmetic:
    formats = dict.fromkeys(("position", "inv_freq", "angle"), "float32")
    ulps = ROUNDED_ONCE if device.interpreted else 2.5
    return Arithmetic(**formats, inv_freq_ulp=0, trig_ulp=ulps)


@implements("rope_table", name="float32", arithmetic=_float32_promise)
def float32(
    positions: torch.Tensor,
    *,
    rotary_dim: int,
    rope_theta: float,
    rope_scaling: Mapping[str, Any] | None = None,
    seq_len: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `exact`, but in float32 throughout: angles are off by 2^-24 of their size, and more."""
    return _build(float32_kernel, inv_freq_float32, positions, rotary_dim, rope_theta, rope_scaling)
