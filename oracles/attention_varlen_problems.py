"""Packed and paged calls as problems: sequences of like size share one, the others have their own.

A shared problem pads with rows and keys that see nothing and are seen by nothing; neither the
oracle nor the budgets look at those, and every sequence counts its blocks from its own key 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tightrope.budget import Budget, Replay
from tightrope.formats import Array
from tightrope.oracles.attention_budget import Forward
from tightrope.oracles.attention_problem import Problem, attend, problem, visible

SHARED = 1 << 18  # padded scores of all heads that are worth one problem instead of several


@dataclass(frozen=True)
class Span:
    """One sequence: its rows of q, keys (seqlen_k, num_kv_heads, head_dim), values, q_offset."""

    rows: slice
    k: Array
    v: Array
    q_offset: int

    @property
    def seqlen_q(self) -> int:
        return int(self.rows.stop - self.rows.start)


@dataclass(frozen=True)
class Part:
    """A problem and its sequences; groups are sequence x num_heads."""

    spans: Sequence[Span]
    problem: Problem

    def rows(self) -> Iterator[tuple[slice, slice, int]]:
        """(rows of q, groups, number of rows) of each sequence."""
        heads = self.problem.q.shape[0] // len(self.spans)
        for i, span in enumerate(self.spans):
            yield span.rows, slice(i * heads, (i + 1) * heads), span.seqlen_q


def parts(case: Any, q: Array, spans: Sequence[Span], sink: Array | None) -> list[Part]:
    """Problems of all sequences that have a query; q (tokens_q, num_heads, head_dim)."""
    live = [span for span in spans if span.seqlen_q]
    tall = max((span.seqlen_q for span in live), default=0)
    wide = max((len(span.k) for span in live), default=0)
    together = len(live) * tall * wide * q.shape[1] <= SHARED
    groups = ([live] if live else []) if together else [[span] for span in live]
    return [Part(group, _problem(case, q, group, sink)) for group in groups]


def _problem(case: Any, q: Array, spans: Sequence[Span], sink: Array | None) -> Problem:
    tall = max(span.seqlen_q for span in spans)
    wide = max(1, *(len(span.k) for span in spans))
    seen = np.zeros((len(spans), 1, tall, wide), bool)
    window = case.causal, case.window_left, case.window_right
    for i, span in enumerate(spans):
        n, m = span.seqlen_q, len(span.k)
        seen[i, 0, :n, :m] = visible(n, m, span.q_offset, *window)
    return problem(
        _padded([q[span.rows] for span in spans], tall), _padded([s.k for s in spans], wide),
        _padded([s.v for s in spans], wide), seen, softmax_scale=case.softmax_scale,
        dtype=case.dtype, out_dtype=case.out_dtype, softcap=case.softcap, sink=sink,
    )  # fmt: skip


def _padded(arrays: Sequence[Array], length: int) -> Array:
    """(sequences, heads, length, features) of arrays (their length, heads, features)."""
    found = np.zeros((len(arrays), arrays[0].shape[1], length, arrays[0].shape[2]), arrays[0].dtype)
    for whole, x in zip(found, arrays, strict=True):
        whole[:, : len(x)] = x.swapaxes(0, 1)
    return found


def oracle(shape: tuple[int, int, int], found: Sequence[Part]) -> dict[str, Array]:
    """out of this shape, (tokens_q, num_heads, head_dim_v), and lse (num_heads, tokens_q)."""
    return joined(shape, found, [attend(part.problem) for part in found])


def joined(
    shape: tuple[int, int, int], found: Sequence[Part], pairs: Sequence[tuple[Array, Array]]
) -> dict[str, Array]:
    """The same for any outputs of the problems; rows of no sequence have out 0 and lse -inf."""
    outs, lses = [p[0] for p in pairs], [p[1] for p in pairs]
    return {"out": _outs(shape, found, outs), "lse": _lses(shape, found, lses, -np.inf)}


def _outs(shape: tuple[int, ...], found: Sequence[Part], arrays: Sequence[Any]) -> Array:
    whole = np.zeros(shape)
    for part, x in zip(found, arrays, strict=True):
        x = np.broadcast_to(x, (*part.problem.visible.shape[:2], shape[-1]))
        for rows, groups, count in part.rows():
            whole[rows] = x[groups, :count].swapaxes(0, 1)
    return whole


def _lses(
    shape: tuple[int, ...], found: Sequence[Part], arrays: Sequence[Any], fill: float = 0.0
) -> Array:
    whole = np.full((shape[1], shape[0]), fill)
    for part, x in zip(found, arrays, strict=True):
        x = np.broadcast_to(x, part.problem.visible.shape[:2])
        for rows, groups, count in part.rows():
            whole[:, rows] = x[groups, :count]
    return whole


def budgets(
    shape: tuple[int, int, int], found: Sequence[Part], spent: Sequence[Forward], out_dtype: str
) -> dict[str, Budget]:
    """Budgets of out and lse, put together from those of the problems."""
    return {
        "out": _budget(lambda x, fill: _outs(shape, found, x), [s.out for s in spent], out_dtype),
        "lse": _budget(
            lambda x, fill: _lses(shape, found, x, fill), [s.lse for s in spent], "float32"
        ),
    }


def _budget(
    place: Callable[[Sequence[Any], float], Array], of: Sequence[Budget], dtype: str
) -> Budget:
    names = dict.fromkeys(name for b in of for name in b.terms)
    terms: Mapping[str, Array] = {n: place([b.terms.get(n, 0.0) for b in of], 0.0) for n in names}
    replay = None
    if any(b.replay is not None for b in of):
        centres = [b.expected if b.replay is None else b.replay.centre for b in of]
        radii = [np.inf if b.replay is None else b.replay.radius for b in of]
        replay = Replay(place(centres, -np.inf), place(radii, 0.0))
    return Budget(
        place([b.expected for b in of], -np.inf), terms, dtype,
        place([b.oracle for b in of], 0.0), replay,
    )  # fmt: skip
