"""In which order a device sums a row, and its maxima."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from tightrope.audit_device_dots import to_numpy, to_torch
from tightrope.audit_device_kernels import DEVICE, instructions, reduce_kernel
from tightrope.interpreter.reductions import sum_by_halves

Array = np.ndarray
ON_GPU = DEVICE == "cuda"
SHAPES = (
    (16, 16), (16, 64), (16, 128), (64, 16), (64, 64), (64, 128), (128, 64), (128, 128), (64, 256),
)  # fmt: skip


def in_order(x: Array, how: str) -> Array:
    """Sums of the last axis, one after the other, in neighbouring pairs, or by halves."""
    if how == "halves":
        return sum_by_halves(x, -1)[..., 0]
    while how == "pairs" and x.shape[-1] > 1:
        x = x[..., ::2] + x[..., 1::2]
    total = x[..., 0]
    for i in range(1, x.shape[-1]):
        total = total + x[..., i]
    return total


def as_threads(x: Array, own: int, lanes: int, warps: int, thread: str, across: str) -> Array:
    """Each thread sums its own numbers (`own` neighbours, repeated), then lanes, then warps."""
    y = x.reshape(len(x), -1, warps, lanes, own).transpose(0, 2, 3, 4, 1)
    if thread == "place by place":
        y = in_order(in_order(y, "one by one"), "one by one")
    else:
        y = in_order(y.swapaxes(-1, -2).reshape(len(x), warps, lanes, -1), thread)
    return in_order(in_order(y, across), across)


def orders(n: int) -> Iterator[tuple[str, Callable[[Array], Array]]]:
    """Ways to sum n numbers, by name."""
    powers = (1, 2, 4, 8, 16, 32)
    ways = ("one by one", "pairs", "halves", "place by place"), ("halves", "pairs")
    for own, lanes, warps in itertools.product(powers[:5], powers, powers[:4]):
        if own * lanes * warps <= n:
            for thread, across in itertools.product(*ways):
                name = f"{own} x {lanes} lanes x {warps} warps, {thread}, across by {across}"
                yield (
                    name,
                    partial(
                        as_threads, own=own, lanes=lanes, warps=warps, thread=thread, across=across
                    ),
                )


def reductions() -> Iterator[dict[str, Any]]:
    """Row sums and maxima; every known order that gives all bits of the device."""
    rng = np.random.default_rng(2)
    shapes = SHAPES if ON_GPU else SHAPES[:2]
    cases = itertools.product(shapes, (False, True), (4, 8))
    for (m, n), after_dot, warps in cases:
        if warps == 8 and m < 128:
            continue
        x = np.ldexp(rng.standard_normal((8, m, n)), rng.integers(-6, 7, (8, m, n))).astype("f4")
        given, zeros = to_torch(x, torch.float32), torch.zeros(16 * max(m, n), device=DEVICE).half()
        y, top = (torch.empty(8, m, device=DEVICE) for _ in "yt")
        launched = reduce_kernel[(8,)](given, zeros, y, m, n, after_dot, False, num_warps=warps)
        reduce_kernel[(8,)](given, zeros, top, m, n, after_dot, True, num_warps=warps)
        got, rows = to_numpy(y).reshape(-1), x.reshape(-1, n)
        wrong = {name: int((order(rows) != got).sum()) for name, order in orders(n)}
        least = min(wrong.values())
        double = rows.astype(np.float64)
        error = np.abs(got - double.sum(1)) / (np.abs(double).sum(1) * 2.0**-24)
        yield {
            "probe": "sum", "shape": (m, n), "after a dot": after_dot, "warps": warps,
            "compared": got.size, "least unlike": least,
            "orders": [name for name, v in wrong.items() if v == least][:12],
            "worst error in u times the sum of sizes": float(error.max()),
            "mismatches": int((to_numpy(top) != x.max(-1)).sum()),
            "instructions": instructions(launched),
        }  # fmt: skip
