"""Problems for the tests of the budget of attention: families, and a mixture of everything."""

from __future__ import annotations

import numpy as np

from tightrope.formats import stored, widen
from tightrope.oracles.attention_problem import problem, visible

KINDS = (
    *("normal", "times_3", "times_30", "all_negative", "few_bits", "repeated", "outliers"),
    *("rising", "cancellation", "far", "tiny", "mixed", "subnormal"),
)
FAR = {"float16": 2.0**14, "bfloat16": 2.0**104, "float32": 2.0**104}
SUBNORMAL = {"bfloat16": 2.0**-130, "float16": 2.0**-20, "float32": 2.0**-135}


def numbers(kind, dtype, rng, groups, rows, keys, width, width_v):
    """q, k, v with a batch axis in front, not yet rounded."""
    q, k, v = (
        rng.standard_normal((1, groups, n, d))
        for n, d in ((rows, width), (keys, width), (keys, width_v))
    )
    if kind == "times_3":
        q, k = 3 * q, 3 * k
    if kind == "times_30":
        q, k = 30 * q, 3 * k
    if kind == "all_negative":
        q, k = 2 * np.abs(q), -2 * np.abs(k) / np.sqrt(width)
    if kind == "few_bits":
        q, k = np.round(2 * q) / 2, np.round(2 * k) / 2
    if kind == "repeated":
        k[:] = k[:, :, :1]
    if kind == "outliers":
        q[..., :2], k[..., :2], v[..., :1] = 4 * q[..., :2], 8 * k[..., :2], 50 * v[..., :1]
    if kind == "rising":
        k = 0.1 * k + np.linspace(0, 3, keys)[:, None] * np.sign(q[:, :, :1])
    if kind == "cancellation":
        half = 2 * (width // 2)
        q[..., 1:half:2], k[..., 1:half:2] = q[..., :half:2], -k[..., :half:2] * (1 + 2.0**-7)
    if kind == "far":  # every other key lies 25 to 100 nats below, with a huge v
        q[:], q[..., 0] = 0.0, 8.0
        low = np.where(np.arange(keys) % 2, rng.integers(-40, -10), rng.integers(0, 4))
        k[..., 0] = low * width**0.5 / 4
        v[:, :, 1::2] *= FAR[dtype]
        k, v = (np.flip(x, 2) if rng.integers(2) else x for x in (k, v))
    if kind == "tiny":
        q = q * 2.0**-10
    if kind == "mixed":
        q = q * 2.0 ** rng.integers(-3, 3, q.shape)
        v = v * 2.0 ** rng.integers(-12, 12, v.shape)
    if kind == "subnormal":
        k, v = k * SUBNORMAL[dtype], v * SUBNORMAL[dtype]
    if dtype == "float16":
        q, k, v = (np.clip(x, -6e4, 6e4) for x in (q, k, v))
    return q, k, v


def family(kind, dtype, seed, *, groups=4, rows=20, keys=64, width=32, width_v=32, causal=True):
    """One case of a designated family: docs/error-budgets.md, attention."""
    rng = np.random.default_rng(seed)
    arrays = numbers(kind, dtype, rng, groups, rows, keys, width, width_v)
    q, k, v = (widen(stored(x, dtype)) for x in arrays)
    seen = visible(rows, keys, keys - rows, causal, None, None)
    return problem(q, k, v, seen, softmax_scale=None, dtype=dtype, out_dtype="float32")


def mixture(seed):
    """Any kind, any sizes, masks, softcap, bias and sink: (kind, problem)."""
    rng = np.random.default_rng(seed)
    pick = lambda *values: values[int(rng.integers(len(values)))]  # noqa: E731
    dtype, kind = ("bfloat16", "float16", "float32")[seed % 3], pick(*KINDS)
    groups, rows, keys = pick(1, 2), pick(1, 3, 6), pick(1, 2, 3, 5, 17, 33, 48)
    width, width_v = pick(1, 2, 8, 16, 24, 40), pick(1, 4, 16)
    q, k, v = numbers(kind, dtype, rng, groups, rows, keys, width, width_v)
    v = pick(v, v, np.abs(v), np.broadcast_to(v[:, :, :1], v.shape))
    q, k, v = (widen(stored(x, dtype)) for x in (q, k, v))
    left = pick(None, None, int(rng.integers(0, keys + 1)))
    seen = visible(rows, keys, int(rng.integers(-3, keys + 1)), bool(pick(0, 1)), left, None)
    bias = sink = None
    if pick(0, 0, 1):
        bias = widen(stored(pick(1.0, 100.0) * rng.standard_normal((1, 1, rows, keys)), "float32"))
        bias = np.where(rng.random(bias.shape) < pick(0.0, 0.2), -np.inf, bias)
    if pick(0, 0, 1):
        sink = widen(stored(pick(1.0, 10.0) * rng.standard_normal(groups), "float32"))
    return kind, problem(
        q, k, v, seen, softmax_scale=pick(None, 0.1, 1.0), dtype=dtype, out_dtype="float32",
        softcap=pick(None, None, None, 50.0, 5.0, 1.0), bias=bias, sink=sink,
    )  # fmt: skip
