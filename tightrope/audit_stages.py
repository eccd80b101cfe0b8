"""Attention in NumPy, one rounding a stage, each to a format of its own.

Every stage is computed in float64 and rounded once, to nearest; a dot product counts as one stage
(its inner sums are of the format's own hardware, float32 or better, as everywhere). "exact" rounds
nothing, so that a stage can be looked at alone.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np

from tightrope.formats import FORMATS, Array

STAGES = ("scores", "p", "alpha", "sum", "accumulator", "output")
EXACT = "exact"


@dataclass(frozen=True, kw_only=True)
class Stages:
    """Formats of the stages; tile: keys a step of online softmax, None for all weights at once.

    scores: q.k times the scale. p: exponentials (and, without tiles, again after the division).
    alpha: factors that rescale. sum: of p. accumulator: sums of p v, after every tile.
    """

    name: str = ""
    scores: str = EXACT
    p: str = EXACT
    alpha: str = EXACT
    sum: str = EXACT
    accumulator: str = EXACT
    output: str = EXACT
    tile: int | None = 64

    @classmethod
    def throughout(cls, fmt: str, **more: Any) -> Stages:
        formats: dict[str, Any] = dict.fromkeys(STAGES, fmt)
        return cls(**formats, **more)

    def but(self, **more: Any) -> Stages:
        return replace(self, **more)

    def told(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "name"}


def near(x: Array, fmt: str) -> Array:
    return x if fmt == EXACT else FORMATS[fmt].round(x)


def attend(q: Array, k: Array, v: Array, scale: float, stages: Stages) -> Array:
    """out (seqlen_q, head_dim_v) of q (seqlen_q, head_dim), k and v (seqlen_k, ...), float64."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        s = near(q @ k.T * scale, stages.scores)
        made = _tiled(s, v, stages) if stages.tile else _materialised(s, v, stages)
        return near(made, stages.output)


def _materialised(s: Array, v: Array, stages: Stages) -> Array:
    p = near(np.exp(s - s.max(axis=1, keepdims=True)), stages.p)
    total = near(p.sum(axis=1, keepdims=True), stages.sum)
    return near(near(p / total, stages.p) @ v, stages.accumulator)


def _tiled(s: Array, v: Array, stages: Stages) -> Array:
    assert stages.tile is not None
    top = np.full((len(s), 1), -np.inf)
    total, acc = np.zeros((len(s), 1)), np.zeros((len(s), v.shape[1]))
    for begin in range(0, s.shape[1], stages.tile):
        part = s[:, begin : begin + stages.tile]
        higher = np.maximum(top, part.max(axis=1, keepdims=True))
        alpha = near(np.exp(top - higher), stages.alpha)
        p = near(np.exp(part - higher), stages.p)
        total = near(total * alpha + p.sum(axis=1, keepdims=True), stages.sum)
        acc = near(acc * alpha + p @ v[begin : begin + stages.tile], stages.accumulator)
        top = higher
    return acc / total


@dataclass(frozen=True, kw_only=True)
class Data:
    """Rows of normal q, k and v of one head; q times `size`, channel 0 of q and k times `outlier`.

    dtype: what they are rounded to.
    """

    dtype: str
    seqlen_k: int = 1024
    head_dim: int = 64
    size: float = 1.0
    outlier: float = 1.0
    seqlen_q: int = 32
    seed: int = 0

    def arrays(self) -> tuple[Array, Array, Array]:
        """q, k, v, float64 holding numbers of the dtype."""
        rng = np.random.default_rng(self.seed)
        q = rng.standard_normal((self.seqlen_q, self.head_dim)) * self.size
        k, v = (rng.standard_normal((self.seqlen_k, self.head_dim)) for _ in "kv")
        q[:, 0] *= self.outlier
        k[:, 0] *= self.outlier
        return tuple(FORMATS[self.dtype].round(x) for x in (q, k, v))  # type: ignore[return-value]


@lru_cache(maxsize=32)
def truth(data: Data) -> tuple[Array, float]:
    """The float64 oracle's out (seqlen_q, head_dim) and the largest error that it admits."""
    problems = import_module("tightrope.oracles.attention_problem")
    budgets = import_module("tightrope.oracles.attention_budget")
    q, k, v = (x[None] for x in data.arrays())
    seen = np.ones((data.seqlen_q, data.seqlen_k), bool)
    posed = problems.problem(
        q, k, v, seen, softmax_scale=None, dtype=data.dtype, out_dtype="float32"
    )
    out, _ = problems.attend(posed)
    return out[0], float(np.max(budgets.forward(posed, {}).out.oracle))


def error(data: Data, stages: Stages, right: Array) -> dict[str, float]:
    """Largest and root mean square error of out, over the largest |v| and the rms of v."""
    q, k, v = data.arrays()
    off = attend(q, k, v, data.head_dim**-0.5, stages) - right
    off = np.where(np.isnan(off), np.inf, off)
    return {
        "largest": float(np.abs(off).max() / np.abs(v).max()),
        "rms": float(np.sqrt((off**2).mean() / (v**2).mean())),
    }


def ranges(data: Data) -> dict[str, dict[str, float]]:
    """Stage -> least positive and largest size, and the shares that a float16 would lose."""
    q, k, v = data.arrays()
    s = q @ k.T * data.head_dim**-0.5
    p = np.exp(s - s.max(axis=1, keepdims=True))
    every = {"q.k": q @ k.T, "scores": s, "p": p, "sum": p.sum(axis=1), "accumulator": p @ v}
    return {name: _range(x) for name, x in every.items()}


def _range(x: Array) -> dict[str, float]:
    half, size = FORMATS["float16"], np.abs(x)
    positive = size[size > 0]
    return {
        "least": float(positive.min(initial=np.inf)), "largest": float(size.max()),
        "overflow_float16": float((half.round(size) == np.inf).mean()),
        "zero_in_float16": float(((half.round(size) == 0) & (size > 0)).mean()),
        "subnormal_in_float16": float(((size < 2.0**half.emin) & (size > 0)).mean()),
        "zero_in_float32": float((size < 2.0**-150).mean()),
    }  # fmt: skip
