"""Known mistakes of attention's recurrence, and of the lse that it returns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tightrope.formats import Array
from tightrope.oracles.attention_problem import Problem, attend, logits

Pair = tuple[Array, Array]
LN2 = float(np.log(2.0))
BLOCKS = (16, 32, 64, 128)


def of_softmax(p: Problem) -> Iterator[tuple[str, Pair]]:
    """(what is computed instead, (out, lse)), lse (groups, seqlen_q) first."""
    out, lse = attend(p)
    yield from ((sentence, (out, wrong)) for sentence, wrong in _of_lse(p, lse))
    yield "zeros", (np.zeros_like(out), np.zeros_like(lse))
    keys = p.k.shape[-2]
    for block in BLOCKS:
        if keys <= block:
            break
        if keys % block:
            kept = np.arange(keys) < keys // block * block
            yield f"the last partial block of {block} keys dropped", attend(_only(p, kept))
        blocks = [np.arange(keys) // block == i for i in range(-(-keys // block))]
        parts = [attend(_only(p, kept)) for kept in blocks]
        live = np.stack([np.isfinite(part[1]) for part in parts])
        total = np.sum([part[0] for part in parts], axis=0)
        mean = total / np.maximum(live.sum(axis=0), 1)[..., None]
        yield f"outputs of blocks of {block} keys averaged", (mean, lse)


def _of_lse(p: Problem, lse: Array) -> Iterator[tuple[str, Array]]:
    top = logits(p).max(axis=-1, initial=-np.inf)
    if p.sink is not None:
        top = np.maximum(top, p.sink[:, None])
    with np.errstate(invalid="ignore"):
        of_sum = np.where(np.isfinite(top), lse - top, -np.inf)  # the logarithm of the sum
        mixed = np.where(np.isfinite(top), top / LN2 + of_sum, -np.inf)
    yield "lse in base 2", lse / LN2
    yield "lse without the logarithm of the sum", top
    yield "lse without the maximum", of_sum
    yield "lse of a maximum in base 2 and a natural logarithm", mixed
    yield (
        "lse of a natural maximum and a logarithm in base 2",
        np.where(np.isfinite(top), top + of_sum / LN2, -np.inf),
    )
    yield "an lse of inf for rows without a key", np.where(np.isneginf(lse), np.inf, lse)
    yield "an lse of 0 for rows without a key", np.where(np.isneginf(lse), 0.0, lse)


def _only(p: Problem, keys: Array) -> Problem:
    return replace(p, visible=p.visible & keys)
