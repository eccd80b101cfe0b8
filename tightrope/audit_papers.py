"""Two papers' claims about bfloat16, and the nearest quantity measured here.

Claims are from the papers' abstracts. Where our quantity is another, `differs` says so and why.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tightrope.audit_angles import of_rope
from tightrope.audit_shift import BASE, HEAD_DIM, SEED, rotate, table
from tightrope.audit_ways import Way
from tightrope.formats import FORMATS, Array

LENGTHS, SHIFT = (128, 256, 512, 1024, 2048), 16
ROPE = {
    "source": "arXiv 2411.13476",
    "claim": "in bfloat16 RoPE departs from relative positions; the departure accumulates as the "
    "context grows, and the first token contributes most",
    "quantity": "sum over queries of |A(shifted) - A| a key, A the causal softmax weights of one "
    "head, normal q and k of width 128, positions shifted by 16",
    "differs": "The paper looks at attention of trained models, where the first token draws much "
    "of the weight; ours are random vectors, where it does not. The total grows with the length "
    "here too, and keys that more queries see change more, the first one most; but that is a sum "
    "over more weights: a single pair's departure does not grow with its position or the shift "
    "as long as angles are formed in float32 (table of shifts), only with bfloat16 positions.",
}
FLASH = {
    "source": "arXiv 2405.02803",
    "claim": "in an isolated forward pass in BF16, Flash Attention deviates about ten times as "
    "much from the truth as baseline attention",
    "quantity": "largest |out - exact| over rows, relative to the largest |v|, of tiled online "
    "softmax over that of materialised softmax, the same roundings at every stage",
    "differs": "With all intermediate values in bfloat16 tiling deviates more, since accumulator "
    "and sum are rounded again for every tile, which is the paper's effect; how much depends on "
    "the number of tiles. Kernels as they are built keep both in float32, and there tiling costs "
    "nothing: materialised weights are even rounded once more, after the division.",
}
WAYS = {
    "exact angles, float32": (Way(name="", table="float32", position="exact", inv_freq="exact",
                                  angle="exact"), "float32"),
    "float32 angles, bfloat16 table and arithmetic": (
        Way(name="", torch_pow=True, table="bfloat16"), "bfloat16"),
    "bfloat16 positions too": (
        Way(name="", torch_pow=True, position="bfloat16", table="bfloat16"), "bfloat16"),
}  # fmt: skip


def _weights(q: Array, k: Array) -> Array:
    """Causal softmax weights in float64."""
    s = q @ k.T / np.sqrt(HEAD_DIM)
    s = np.where(np.tri(len(q), dtype=bool), s, -np.inf)
    p = np.exp(s - s.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


def shifted_attention(lengths: tuple[int, ...] = LENGTHS) -> dict[str, Any]:
    """Of each way: total change a query and the first key's share of it, by length."""
    exact, rows = of_rope(HEAD_DIM, BASE), []
    for name, (way, io) in WAYS.items():
        rng = np.random.default_rng(SEED)
        q, k = (FORMATS[io].round(rng.standard_normal((max(lengths), HEAD_DIM))) for _ in "qk")
        turned = []
        for begin in (0, SHIFT):
            both = table(way, exact, begin + np.arange(max(lengths)), HEAD_DIM)
            turned.append([rotate(x, *both, io, io) for x in (q, k)])
        for length in lengths:
            a, b = (_weights(x[:length], y[:length]) for x, y in turned)
            change = np.abs(a - b).sum(axis=0)
            rows.append({
                "way": name, "length": length, "total": float(change.sum()),
                "first_key": float(change[0]), "middle_key": float(np.median(change)),
            })  # fmt: skip
    return {**ROPE, "rows": rows}
