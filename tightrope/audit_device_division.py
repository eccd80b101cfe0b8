"""Division of a device, searched: two operands have too many pairs to try all.

Every 2^23 significand as dividend and as divisor against chosen partners (powers of two and their
neighbours, thirds, roots, the largest significand); the ends of the exponent range against one
another; random pairs of any bits. float64 divides with one rounding of 2^-53, and no quotient of
24-bit significands lies so near to the middle of two float32 numbers unless it is one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from tightrope.audit_device_kernels import DEVICE, binary_kernel, instructions
from tightrope.audit_device_scan import BLOCK, SIGNIFICANDS, TINY, TOP, ulp

PARTNERS = tuple(
    float(np.float32(v))
    for v in (
        1.0, 1 + 2.0**-23, 1 + 2.0**-12, 1.25, 4 / 3, 2**0.5, 1.5, 5 / 3, 1.75, 7 / 3 - 0.5,
        2 - 2.0**-11, 2 - 2.0**-22, 2 - 2.0**-23, np.pi / 2, np.e / 2, 1.0625,
    )
)  # fmt: skip
EDGES = (0, 1, 2, 22, 23, 24, 25, 126, 127, 128, 230, 252, 253, 254)  # biased exponents
ROUNDS, CHUNK = (4, 1 << 26) if DEVICE == "cuda" else (1, 1 << 13)
Pairs = tuple[torch.Tensor, torch.Tensor]


def _significands(sample: int | None) -> torch.Tensor:
    step = 1 if sample is None else SIGNIFICANDS // sample
    return 1 + torch.arange(0, SIGNIFICANDS, step, device=DEVICE).double() / SIGNIFICANDS


def chosen(sample: int | None) -> Iterator[Pairs]:
    """All significands against each partner, both ways round."""
    all_of_them = _significands(sample).float()
    for partner in PARTNERS:
        other = torch.full_like(all_of_them, partner)
        yield all_of_them, other
        yield other, all_of_them


def edges(sample: int | None) -> Iterator[Pairs]:
    """Pairs of exponents at the ends of the range, with random significands."""
    gen, each = torch.Generator(DEVICE).manual_seed(1), 1 << 16 if sample is None else 1 << 10

    def at(exponent: int) -> torch.Tensor:
        low = torch.randint(0, SIGNIFICANDS, (each,), generator=gen, device=DEVICE)
        return (low | exponent << 23).int().view(torch.float32)

    for x in EDGES:
        for w in EDGES:
            yield at(x), at(w)


def anything(sample: int | None) -> Iterator[Pairs]:
    gen = torch.Generator(DEVICE).manual_seed(0)

    def bits() -> torch.Tensor:
        drawn = torch.randint(-(1 << 31), 1 << 31, (CHUNK,), generator=gen, device=DEVICE)
        return drawn.int().view(torch.float32)

    for _ in range(ROUNDS):
        yield bits(), bits()


SEARCHES = {"significands": chosen, "exponents": edges, "any bits": anything}


def divisions(name: str, sample: int | None = None) -> Iterator[dict[str, Any]]:
    """One record a search of "x / w" or "div_rn"; sample: significands of a search."""
    sample = 1 << 12 if sample is None and DEVICE == "cpu" else sample
    for search, pairs in SEARCHES.items():
        counts = dict.fromkeys(("pairs", "not_nearest", "unlike_at_extremes"), 0)
        worst, at, launched = 0.0, ("", ""), None
        for x, w in pairs(sample):
            y = torch.empty_like(x)
            launched = binary_kernel[(x.numel() // BLOCK,)](x, w, y, name, BLOCK)
            e = x.double() / w.double()
            same = (y == e.float()) | (y.isnan() & e.isnan())
            subnormal = ((x.abs() < TINY) & (x != 0)) | ((w.abs() < TINY) & (w != 0))
            normal = (e.abs() >= TINY) & (e.abs() < TOP) & y.isfinite() & ~subnormal
            error = torch.where(normal, (y.double() - e).abs() / ulp(e), 0.0)
            i = int(error.argmax())
            if float(error[i]) > worst:
                worst, at = float(error[i]), (float(x[i]).hex(), float(w[i]).hex())
            told = (x == x, normal & ~same, ~normal & ~same)
            for key, mask in zip(counts, told, strict=True):
                counts[key] += int(mask.sum())
        yield {
            "probe": "division", "function": name, "search": search, **counts,
            "instructions": instructions(launched), "exhaustive": False, "worst_ulps": worst,
            "worst_at": at,
        }  # fmt: skip
