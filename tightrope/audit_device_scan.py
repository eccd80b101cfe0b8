"""Elementary functions and casts of a device over all float32 numbers, division over chosen pairs.

Results are judged by `audit_reference`; where its error leaves two float32 numbers possible, ball
arithmetic decides. One row a binade of the argument (sign and exponent, 512 of them), all 2^23
significands on a GPU; without one, a sample, and the record says which.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from tightrope import audit_exact
from tightrope.audit_device_kernels import DEVICE, instructions, unary_kernel
from tightrope.audit_reference import REFERENCES, Reference, two_to
from tightrope.formats import FORMATS

BINADES, SIGNIFICANDS = 512, 1 << 23
TINY, TOP = 2.0**-126, (2 - 2.0**-24) * 2.0**127
BLOCK = 1024
ROWS = 8 if DEVICE == "cuda" else BINADES  # of a launch
SAMPLE = 64
SETTLED = 4096  # undecided arguments that are settled exactly; more are counted


def arguments(sample: int | None) -> Iterator[tuple[int, torch.Tensor]]:
    """First binade and float32 arguments (ROWS, significands); sample None: every significand.

    A sample is even but for both ends of a binade and their neighbours.
    """
    if sample is None:
        low = torch.arange(SIGNIFICANDS, device=DEVICE)
    else:
        low = torch.linspace(1, SIGNIFICANDS - 1, sample, dtype=torch.float64).long()
        low[::4] ^= 0x155 & SIGNIFICANDS - 1  # not only multiples of a power of two
        low[:3], low[-2:] = torch.tensor([0, 1, 2]), torch.tensor([-2, -1]) + SIGNIFICANDS
    for first in range(0, BINADES, ROWS):
        high = torch.arange(first, first + ROWS, device=low.device)[:, None] << 23
        bits = (high | low).int().to(DEVICE)
        yield first, bits.view(torch.float32)


def ulp(size: torch.Tensor) -> torch.Tensor:
    """The unit in the last place of float32 in the binade of |size|, of normal numbers."""
    exponent = torch.frexp(size)[1].double()
    return two_to(torch, torch.clamp(exponent - 24, -149.0, 104.0))


@dataclass
class Tally:
    """What was seen of one function; per-binade lists follow the order of bit patterns."""

    function: str
    counts: dict[str, int] = field(default_factory=dict)
    worst: list[float | None] = field(default_factory=list)
    at: list[float] = field(default_factory=list)
    above: float = 0.0
    flushed: float = 0.0
    tiny: float = 0.0
    open: list[tuple[float, float]] = field(default_factory=list)

    def add(self, **masks: torch.Tensor) -> None:
        for name, mask in masks.items():
            self.counts[name] = self.counts.get(name, 0) + int(mask.sum())

    def see(self, x: torch.Tensor, y: torch.Tensor, e: torch.Tensor, slack: torch.Tensor) -> None:
        """Judge results y float32 of x by e; arrays (rows, significands)."""
        size, wide = e.abs(), y.double()
        small = (x.abs() < TINY) & (x != 0)
        normal = (size >= TINY) & (size < TOP) & y.isfinite() & ~small
        tiny = (size > 0) & (size < TINY) & ~small
        low, high = (e - slack).float(), (e + slack).float()
        unknown = normal & (low != high) & ((y == low) | (y == high))
        wrong = normal & (y != low) & (y != high)
        same = (y == e.float()) | (y.isnan() & e.isnan())
        self.add(
            arguments=torch.ones_like(normal), not_nearest=wrong, tiny_results=tiny,
            tiny_results_that_are_0=tiny & (y == 0), subnormal_arguments=small,
            subnormal_arguments_not_nearest=small & ~same,
            unlike_at_extremes=~same & ~normal & ~tiny & ~small, undecided=unknown,
        )  # fmt: skip
        unit = ulp(size)
        self._rows(x, torch.where(normal, (wide - e).abs() / unit, -1.0))
        most = torch.where(normal, ((wide - e).abs() + slack) / unit, 0.0)
        self.above = max(self.above, float(most.max()))
        zero = torch.where(tiny & (y == 0), size, 0.0)
        self.flushed = max(self.flushed, float(zero.max()))
        off = torch.where(tiny & (y != 0), (wide - e).abs() * 2.0**149, 0.0)
        self.tiny = max(self.tiny, float(off.max()))
        if len(self.open) < SETTLED and bool(unknown.any()):
            self.open += zip(*(v[unknown][:SETTLED].tolist() for v in (x, y)), strict=True)

    def _rows(self, x: torch.Tensor, error: torch.Tensor) -> None:
        worst, index = error.max(dim=1)
        self.worst += [None if w < 0 else w for w in worst.tolist()]
        self.at += x.gather(1, index[:, None])[:, 0].tolist()

    def settle(self) -> int:
        """Exactly: how many of the undecided are not the nearest. The rest stays undecided."""
        settled = self.open[:SETTLED]
        bad = sum(audit_exact.nearest(self.function, x) != y for x, y in settled)
        self.counts["not_nearest"] += bad
        self.counts["undecided"] -= len(settled)
        return bad


def apply(name: str, x: torch.Tensor, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """Results of a kernel for x, in its shape, and the launch."""
    y = torch.empty(x.shape, dtype=dtype, device=x.device)
    return y, unary_kernel[(x.numel() // BLOCK,)](x, y, name, BLOCK)


def scan(name: str, sample: int | None = None) -> dict[str, Any]:
    """The record of one function. sample: significands a binade; None: all on a GPU, else 64."""
    sample = SAMPLE if sample is None and DEVICE == "cpu" else sample
    reference, tally, launched = REFERENCES[name], Tally(name), None
    for _, x in arguments(sample):
        y, launched = apply(name, x)
        e = reference.of(torch, x.double())
        tally.see(x, y, e, reference.slack(torch, x.double(), e))
    if reference.proved:
        tally.settle()
    return {
        "probe": "function", "function": name, "instructions": instructions(launched),
        "exhaustive": sample is None, **tally.counts, **_worst(tally, reference),
        "largest_that_became_0": tally.flushed.hex(),
        "tiny_results_error_in_2^-149": tally.tiny, "reference_proved": reference.proved,
        "of": _specials(name), "worst_ulps_by_binade": _short(tally.worst),
    }  # fmt: skip


def _worst(tally: Tally, reference: Reference) -> dict[str, Any]:
    """The worst error of all, exactly, and what no argument that was tried exceeds."""
    known = [(w, at) for w, at in zip(tally.worst, tally.at, strict=True) if w is not None]
    if not known:
        return {"worst_ulps": None}
    measured, at = max(known)
    y = apply(tally.function, torch.full((BLOCK,), at, device=DEVICE))[0][0].item()
    found = audit_exact.ulps(tally.function, at, y) if reference.proved else measured
    return {"worst_ulps": found, "worst_at": at.hex(), "none_above_ulps": tally.above}


def _short(values: list[float | None]) -> list[float | None]:
    return [None if v is None else round(v, 4) for v in values]


def _specials(name: str) -> dict[str, str]:
    given = [0.0, -0.0, float("inf"), float("-inf"), float("nan")]
    x = torch.zeros(BLOCK, device=DEVICE)
    x[: len(given)] = torch.tensor(given)
    found = apply(name, x)[0][: len(given)].tolist()
    return {str(g): str(f) for g, f in zip(given, found, strict=True)}


def rounded(x: torch.Tensor, name: str) -> torch.Tensor:
    """Float64 numbers rounded once to a narrower format, to nearest even, in exact steps."""
    fmt = FORMATS[name]
    finite = torch.where(x.isfinite(), x, 0.0)
    exponent = torch.clamp(torch.frexp(finite)[1].double() - 1, fmt.emin, fmt.emax)
    unit = two_to(torch, exponent - fmt.precision + 1)
    near = torch.round(finite / unit) * unit
    near = torch.where(
        near.abs() > fmt.largest, torch.copysign(torch.full_like(x, torch.inf), x), near
    )
    return torch.where(x.isfinite(), near, x)


def cast(name: str, sample: int | None = None) -> dict[str, Any]:
    """float32 to a narrower format: how many results are not the nearest, ties to even."""
    sample = SAMPLE if sample is None and DEVICE == "cpu" else sample
    seen = wrong = nan = 0
    first, launched = None, None
    for _, x in arguments(sample):
        y, launched = apply("cast", x, getattr(torch, name))
        right = rounded(x.double(), name)
        bad = ~((y.double() == right) | (y.isnan() & right.isnan()))
        seen, wrong, nan = seen + x.numel(), wrong + int(bad.sum()), nan + int(x.isnan().sum())
        if first is None and bool(bad.any()):
            first = float(x[bad][0]).hex()
    return {
        "probe": "cast", "dtype": name, "instructions": instructions(launched),
        "exhaustive": sample is None, "compared": seen, "nan": nan, "mismatches": wrong,
        "first_mismatch": first,
    }  # fmt: skip
