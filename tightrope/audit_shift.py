"""How far scores of rotated q and k move when both positions do: |s(m, n) - s(m + t, n + t)|.

Over |q| |k|, of pairs of normal vectors at positions below 2,304; the shift t up to 2^23. Exact
rotations give 0; what is left shows which step forgets that only m - n counts. It sees no error
that is the same at all positions: a wrong but consistent frequency passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tightrope.audit_angles import FORMAT, Frequencies, of_rope
from tightrope.audit_ways import Way, angles, frequencies, stored
from tightrope.formats import FORMATS, Array

SHIFTS = (1, 16, 256, 4096, 65536, 2**20, 2**23)
PAIRS, HEAD_DIM, BASE, SEED = 400, 128, 10000.0, 3
EXACT: dict[str, Any] = {"position": "exact", "inv_freq": "exact", "angle": "exact"}


@dataclass(frozen=True, kw_only=True)
class Chain:
    """A table, the format of q and k before and after rotation, and that of its arithmetic."""

    way: Way
    io: str
    arithmetic: str = "float32"

    @property
    def name(self) -> str:
        narrow = "" if self.arithmetic == "float32" else f", {self.arithmetic} arithmetic"
        return f"{self.way.name}; {self.io} q and k{narrow}"


_HALF: dict[str, Any] = {"torch_pow": True, "table": "bfloat16"}
CHAINS = (
    *(Chain(way=Way(name="exact table", table="exact", **EXACT), io=io)
      for io in ("float32", "float16", "bfloat16")),
    Chain(way=Way(name="exact angles, bfloat16 table", table="bfloat16", **EXACT), io="bfloat16"),
    Chain(way=Way(name="float32 table", torch_pow=True), io="float32"),
    Chain(way=Way(name="float32 angles, bfloat16 table", **_HALF), io="bfloat16",
          arithmetic="bfloat16"),
    Chain(way=Way(name="bfloat16 positions and table", position="bfloat16", **_HALF),
          io="bfloat16"),
    Chain(way=Way(name="bfloat16 inv_freq and table", inv_freq="bfloat16", table="bfloat16"),
          io="bfloat16"),
)  # fmt: skip


def table(way: Way, exact: Frequencies, positions: Array, rotary_dim: int) -> tuple[Array, Array]:
    """cos and sin of a way, (len, columns) float64; float64 libraries take sines of its angles."""
    at = positions[:, None]
    if way.angle == "exact":
        sine, cosine = exact.sin_cos(at)
    else:
        angle = angles(way, frequencies(way, exact, rotary_dim, BASE), at)
        sine, cosine = np.sin(angle), np.cos(angle)
    return stored(way, cosine), stored(way, sine)


def rotate(x: Array, cos: Array, sin: Array, io: str, arithmetic: str) -> Array:
    """x (len, head_dim) rotated in halves: products and sums rounded, then the output."""
    near, end = FORMAT[arithmetic].round, FORMATS[io].round
    a, b = np.split(x, 2, axis=1)
    first = near(near(a * cos) - near(b * sin))
    second = near(near(b * cos) + near(a * sin))
    return end(np.concatenate([first, second], axis=1))


def violations(chain: Chain, shifts: tuple[int, ...] = SHIFTS) -> dict[str, Any]:
    """shift -> median and largest violation over the pairs."""
    rng = np.random.default_rng(SEED)
    q, k = (rng.standard_normal((PAIRS, HEAD_DIM)) for _ in "qk")
    n = rng.integers(0, 256, PAIRS)
    m = n + rng.integers(0, 2048, PAIRS)
    q, k = (FORMATS[chain.io].round(x) for x in (q, k))
    size = np.linalg.norm(q, axis=1) * np.linalg.norm(k, axis=1)
    exact, scores = of_rope(HEAD_DIM, BASE), []
    for t in (0, *shifts):
        rotated = []
        for x, at in ((q, m + t), (k, n + t)):
            cos, sin = table(chain.way, exact, at, HEAD_DIM)
            rotated.append(rotate(x, cos, sin, chain.io, chain.arithmetic))
        scores.append((rotated[0] * rotated[1]).sum(axis=1))
    moved = [np.abs(s - scores[0]) / size for s in scores[1:]]
    return {
        "name": chain.name, "shifts": list(shifts),
        "median": [float(np.median(v)) for v in moved],
        "largest": [float(v.max()) for v in moved],
    }  # fmt: skip
