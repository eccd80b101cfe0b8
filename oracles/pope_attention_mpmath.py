"""`pope_attention` in mpmath: features as complex numbers mu e^(i phi). For tests only.

PoPE (arXiv:2509.10534), eq. 5: a score is the real part of the sum of conj(z_q) z_k, which is the
sum of products of the real parts and of the imaginary parts of the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import mpmath

from tightrope.formats import Array
from tightrope.oracles.attention_mpmath import DIGITS, batched, numbers


def pope_attention(case: Any, inputs: Mapping[str, Array]) -> dict[str, list[Any]]:
    """ "out" and "lse", flat in C order, as mpf; lse -inf for rows without a key."""
    with mpmath.workdps(DIGITS):
        scale = case.softmax_scale
        if scale is None:  # the float64 number nearest to the root, of features counted once
            scale = float(1 / mpmath.sqrt(inputs["q"].shape[-1]))
        q, k = (_expanded(case, inputs, name) for name in ("q", "k"))
        # every query head has keys of its own now
        shared = inputs["v"].repeat(case.num_heads // inputs["v"].shape[1], axis=1)
        return batched(replace(case, softmax_scale=scale), {**inputs, "v": shared}, q, k)


def _expanded(case: Any, inputs: Mapping[str, Array], name: str) -> list[list[Any]]:
    """Features of every query head, (batch, num_heads, length, real, imaginary and plain)."""
    x, positions = inputs[name], inputs[f"{name}_positions"]
    inv_freq, delta = numbers(inputs["inv_freq"]), inputs.get("delta") if name == "k" else None
    result: list[list[Any]] = []
    for b, heads in enumerate(numbers(x)):
        rows = (positions if positions.ndim == 1 else positions[b]).tolist()
        result.append([])
        for h in range(case.num_heads):
            phases: Sequence[Any] = [mpmath.mpf(0)] * len(inv_freq)
            if delta is not None:
                phases = numbers(delta[h // (case.num_heads // len(delta))])
            vectors = heads[h // (case.num_heads // len(heads))]
            pairs = zip(vectors, rows, strict=True)
            result[-1].append([_features(v, m, inv_freq, phases) for v, m in pairs])
    return result


def _features(
    vector: Sequence[Any], position: int, inv_freq: Sequence[Any], phases: Sequence[Any]
) -> list[Any]:
    points = [
        mpmath.log1p(mpmath.exp(x)) * mpmath.expj(position * frequency + phase)
        for x, frequency, phase in zip(vector, inv_freq, phases, strict=False)
    ]
    return [z.real for z in points] + [z.imag for z in points] + list(vector[len(points) :])
