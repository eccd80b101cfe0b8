"""Elementwise functions, divisions, casts and fused sums of a device."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from device_arithmetic_dots import NUMPY, compared, to_numpy, to_torch
from device_arithmetic_kernels import (
    DEVICE,
    binary_kernel,
    instructions,
    unary_kernel,
)

from tightrope.interpreter.rounding import fma, round_to

Array = np.ndarray
Exact = Callable[[torch.Tensor], torch.Tensor]
ON_GPU = DEVICE == "cuda"
CHUNK = 1 << 26 if ON_GPU else 1 << 14
TINY, TOP = 2.0**-126, (2 - 2.0**-24) * 2.0**127
BLOCK = 1024
EXACT: dict[str, Exact] = {
    "exp2": torch.exp2,
    "log2": torch.log2,
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "rsqrt": lambda x: 1 / torch.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + torch.exp(-x)),
    "tanh": torch.tanh,
}


def error_in_ulps(y: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """|y - exact| in units of the last place of float32 in the binade of exact (normal numbers)."""
    # By bits: torch.ldexp takes a power in float32.
    exponent = torch.frexp(exact)[1].long() - 24
    unit = (exponent + 1023 << 52).view(torch.float64)
    return (y.double() - exact).abs() / unit


class Worst:
    """The largest of a stream of errors, and the argument that it belongs to."""

    def __init__(self) -> None:
        self.error, self.at = 0.0, ""

    def see(self, error: torch.Tensor, where: torch.Tensor, x: torch.Tensor) -> None:
        error = torch.where(where, error, 0.0)
        i = int(error.argmax())
        if float(error[i]) > self.error or error[i].isnan():
            self.error, self.at = float(error[i]), float(x[i]).hex()


def _chunks(stride: int) -> Iterator[torch.Tensor]:
    """All float32 bit patterns, or every stride-th, as float32; without a GPU a sample of them."""
    stride = stride if ON_GPU else 1 << 16
    for start in range(0, 1 << 32, CHUNK * stride):
        at = torch.arange(start, start + CHUNK * stride, stride, device=DEVICE)
        yield torch.where(at >= 1 << 31, at - (1 << 32), at).int().view(torch.float32)


def _apply(name: str, x: torch.Tensor) -> tuple[torch.Tensor, Any]:
    y = torch.empty_like(x)
    return y, unary_kernel[(x.numel() // BLOCK,)](x, y, name, BLOCK)


def functions() -> Iterator[dict[str, Any]]:
    """exp2 and log2 over all float32, the others over every fourth."""
    for name, exact in EXACT.items():
        yield _function(name, exact, 1 if name in ("exp2", "log2") else 4)


def _function(name: str, exact: Exact, stride: int) -> dict[str, Any]:
    worst, near_one, absolute, denormal = Worst(), Worst(), Worst(), Worst()
    count: dict[str, int] = dict.fromkeys(
        ("arguments", "not the nearest float32", "tiny results", "tiny results that are 0",
         "unlike float64 at extremes", "subnormal arguments", "of these unlike float64"), 0,
    )  # fmt: skip
    flushed = 0.0
    for x in _chunks(stride):
        (y, launched), e = _apply(name, x), exact(x.double())
        size = e.abs()
        small_x = (x.abs() < TINY) & (x != 0)
        normal = (size >= TINY) & (size < TOP) & y.isfinite() & ~small_x
        error = torch.where(normal, error_in_ulps(y, e), 0.0)
        near = normal & (x > 0.5) & (x < 2)
        tiny = (size < TINY) & (size > 0) & ~small_x
        worst.see(error, normal & ~near if name == "log2" else normal, x)
        near_one.see(error, near, x)
        absolute.see((y.double() - e).abs(), near, x)
        denormal.see((y.double() - e).abs() * 2.0**149, tiny & (y != 0), x)
        same = (y == e.float()) | (y.isnan() & e.isnan())
        odd = ~same & ~normal & ~tiny & ~small_x
        flushed = max(flushed, float(torch.where(tiny & (y == 0), size, 0.0).max()))
        told = (x == x, normal & ~same, tiny, tiny & (y == 0), odd, small_x, small_x & ~same)
        for key, mask in zip(count, told, strict=True):
            count[key] += int(mask.sum())
    found: dict[str, Any] = {
        "probe": "function", "function": name, "stride": stride, **count,
        "instructions": instructions(launched),
        "worst error in ulps": worst.error, "at": worst.at,
        "arguments from 0.5 to 2: ulps": near_one.error, "there at": near_one.at,
        "arguments from 0.5 to 2: absolute": absolute.error,
        "tiny results not 0: error in 2^-149": denormal.error,
        "largest that became 0": flushed.hex(),
    }  # fmt: skip
    return found | (_exp2_facts() if name == "exp2" else {})


def _exp2_facts() -> dict[str, Any]:
    x = torch.cat([torch.arange(-126, 128), torch.zeros(BLOCK - 254)]).float().to(DEVICE)
    x[254:258] = torch.tensor([-0.0, -torch.inf, torch.inf, torch.nan])
    y = _apply("exp2", x)[0]
    return {
        "exact at integers": bool((y[:254] == torch.exp2(x[:254].double())).all()),
        "of -0, -inf, inf, nan": [str(v) for v in y[254:258].tolist()],
    }


def divisions() -> Iterator[dict[str, Any]]:
    """Random quotients: of moderate size, and of any two bit patterns."""
    gen = torch.Generator(DEVICE).manual_seed(0)
    for name, any_bits in itertools.product(("x / w", "div_rn"), (False, True)):
        worst, count = Worst(), {"pairs": 0, "not the nearest float32": 0, "unlike float64": 0}
        rounds = 4 if ON_GPU and name == "x / w" else 1
        for _ in range(rounds):
            x, w = (_random(gen, any_bits) for _ in "xw")
            y = torch.empty_like(x)
            launched = binary_kernel[(x.numel() // BLOCK,)](x, w, y, name, BLOCK)
            e = x.double() / w.double()
            same = (y == e.float()) | (y.isnan() & e.isnan())
            normal = (e.abs() >= TINY) & (e.abs() < TOP) & y.isfinite()
            worst.see(error_in_ulps(y, torch.where(normal, e, 1.0)), normal, w)
            told = (x == x, normal & ~same, ~normal & ~same)
            for key, mask in zip(count, told, strict=True):
                count[key] += int(mask.sum())
        yield {
            "probe": "division", "function": name, "any bits": any_bits, **count,
            "instructions": instructions(launched),
            "worst error in ulps": worst.error, "at divisor": worst.at,
        }  # fmt: skip


def _random(gen: torch.Generator, any_bits: bool) -> torch.Tensor:
    bits = torch.randint(-(1 << 31), 1 << 31, (CHUNK,), generator=gen, device=DEVICE)
    if not any_bits:  # exponents from -31 to 32
        bits = (bits & ~0x7F800000) | ((bits >> 23 & 0x3F) + 96 << 23)
    return bits.int().view(torch.float32)


def casts() -> Iterator[dict[str, Any]]:
    """float32 to narrower types: every upper half, with lower halves at and beside all ties."""
    rng = np.random.default_rng(0)
    upper = np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)
    lower = [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFF, 0x1000, 0x1001, 0x3000, 0x5000, 0x9000, 0xB000]
    bits = [upper | np.uint32(v) for v in lower] + [upper | rng.integers(0, 1 << 16, 1 << 16, "u4")]
    x = np.concatenate(bits).view(np.float32)
    for dtype in (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2):
        y = torch.empty(x.size, dtype=dtype, device=DEVICE)
        launched = unary_kernel[(x.size // BLOCK,)](to_torch(x, torch.float32), y, "cast", BLOCK)
        found = compared(to_numpy(y), round_to(x, NUMPY[dtype]))
        found["at"] = [x[i].view(np.uint32).item() for (i,) in found["at"]]
        yield {
            "probe": "cast",
            "dtype": str(dtype),
            "instructions": instructions(launched),
            **found,
        }


def multiply_adds() -> Iterator[dict[str, Any]]:
    """x*w + x and tl.fma in each type: how often each way to round gives the bits of the device."""
    rng = np.random.default_rng(1)
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        kind = NUMPY[dtype]
        x, w = (round_to(np.ldexp(*_parts(rng)), kind) for _ in "xw")
        single = (x.astype("f4") * w.astype("f4") + x.astype("f4")).astype(kind)
        ways = {"fused": fma(x, w, x, kind), "rounded twice": x * w + x, "in float32": single}
        for name, fused in (("x * w + x", True), ("x * w + x", False), ("fma", True)):
            y = torch.empty(x.size, dtype=dtype, device=DEVICE)
            operands = to_torch(x, dtype), to_torch(w, dtype), y
            launched = binary_kernel[(x.size // BLOCK,)](
                *operands, name, BLOCK, enable_fp_fusion=fused
            )
            got = to_numpy(y)
            yield {
                "probe": "multiply and add", "dtype": str(dtype), "function": name,
                "fusion": fused, "instructions": instructions(launched), "compared": x.size,
                "unlike": {way: compared(got, z)["mismatches"] for way, z in ways.items()},
            }  # fmt: skip


def _parts(rng: np.random.Generator) -> tuple[Array, Array]:
    return rng.standard_normal(1 << 16), rng.integers(-3, 4, 1 << 16)
