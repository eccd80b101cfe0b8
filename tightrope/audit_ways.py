"""Ways to build a table of cos and sin: which step is rounded to what.

A way stands for correctly rounded steps in the formats named; sines are those of the rounded angle.
Emulated in float64, exactly: products of two numbers of 26 bits fit.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from tightrope.audit_angles import FORMAT, Frequencies
from tightrope.formats import Array

FLOAT32 = "float32"


@dataclass(frozen=True, kw_only=True)
class Way:
    """Formats of positions, frequencies, angles and the table.

    torch_pow: frequencies as Hugging Face computes them, 1/base**(2c/D) in float32 by torch, not
    rounded once. "exact": not rounded (positions, tables), or far finer than anything else.
    """

    name: str
    position: str = FLOAT32
    inv_freq: str = FLOAT32
    angle: str = FLOAT32
    table: str = FLOAT32
    torch_pow: bool = False

    def uses(self, dtype: str) -> bool:
        return any(getattr(self, f.name) == dtype for f in fields(self))


def _all(name: str, fmt: str) -> Way:
    return Way(name=name, position=fmt, inv_freq=fmt, angle=fmt, table=fmt)


WAYS = (
    Way(name="float64 throughout", position="exact", inv_freq="float64", angle="float64"),
    Way(name="float32 inv_freq, float64 product", angle="float64"),
    Way(name="float32 throughout"),
    Way(name="Hugging Face (float32, torch pow)", torch_pow=True),
    Way(name="Hugging Face, bfloat16 table", torch_pow=True, table="bfloat16"),
    Way(name="Hugging Face, float16 table", torch_pow=True, table="float16"),
    Way(name="TF32 positions and inv_freq, float32 product", position="tf32", inv_freq="tf32"),
    Way(name="TF32 throughout", position="tf32", inv_freq="tf32", angle="tf32"),
    _all("float16 throughout", "float16"),
    Way(name="float16 inv_freq", inv_freq="float16"),
    Way(name="float16 positions", position="float16"),
    _all("bfloat16 throughout", "bfloat16"),
    Way(name="bfloat16 inv_freq", inv_freq="bfloat16"),
    Way(name="bfloat16 positions", position="bfloat16"),
    Way(name="bfloat16 angles", angle="bfloat16"),
)


def frequencies(way: Way, exact: Frequencies, rotary_dim: int, rope_theta: float) -> Array:
    """inv_freq of a way as float64 (columns,). torch_pow reads rotary_dim and rope_theta alone."""
    if not way.torch_pow:
        return exact.rounded(way.inv_freq)
    import torch

    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.int64).float() / rotary_dim
    return (1.0 / (float(rope_theta) ** exponents)).double().numpy()


def angles(way: Way, inv_freq: Array, positions: Array) -> Array:
    """Angles of positions (...) times inv_freq that broadcasts to them, float64; inf: overflow."""
    m = positions.astype(np.float64)
    if way.position not in ("exact", FLOAT32) or np.abs(m).max(initial=0) > 2.0**24:
        m = m if way.position == "exact" else FORMAT[way.position].round(m)
    if way.angle == FLOAT32:  # the same rounding in hardware, much faster
        with np.errstate(over="ignore"):
            return (m.astype(np.float32) * inv_freq.astype(np.float32)).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        return FORMAT[way.angle].round(m * inv_freq)


def stored(way: Way, values: Array) -> Array:
    """cos or sin, given to far more digits, as the table holds them."""
    return values if way.table == "exact" else FORMAT[way.table].round(values)
