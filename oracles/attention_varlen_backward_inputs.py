"""Tensors of an `attention_varlen_backward` case, and every sequence as `attention_backward`'s."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from tightrope.formats import Array
from tightrope.oracles import attention_backward_inputs, attention_varlen_inputs
from tightrope.oracles.attention_backward_inputs import upstream
from tightrope.oracles.attention_varlen_backward_cases import alone, forward
from tightrope.oracles.attention_varlen_inputs import poison

if TYPE_CHECKING:
    from tightrope.oracles.attention_backward_cases import AttentionBackwardCase
    from tightrope.oracles.attention_varlen_backward_cases import AttentionVarlenBackwardCase

Given = Mapping[str, Array]
ORDER = ("dout", "q", "k", "v", "out", "lse", "cu_seqlens_q", "cu_seqlens_k", "q_offset")
OF_ROWS = ("dout", "q", "out", "dq")  # (tokens, heads, features) along the queries


@dataclass(frozen=True)
class One:
    """A sequence: its call of `attention_backward`, its tokens of q and of k."""

    case: AttentionBackwardCase
    inputs: dict[str, Array]
    rows: slice
    keys: slice

    def at(self, name: str) -> slice:
        """Where the sequence lies along the tokens of a tensor."""
        return self.rows if name in OF_ROWS else self.keys


def inputs(case: AttentionVarlenBackwardCase) -> dict[str, Array]:
    """dout (tokens_q, num_heads, head_dim_v), q, k, v as in `attention_varlen`, out like dout, all
    in `dtype`; lse (num_heads, tokens_q) float32; cu_seqlens_q, cu_seqlens_k (sequences + 1,) int32
    and, with offsets="tensor", q_offset (sequences,) int32.
    """
    given = attention_varlen_inputs.inputs(forward(case))
    shape = (*given["q"].shape[:2], case.head_dim_v)
    dout = np.zeros(shape, given["q"].dtype)
    for i, one in enumerate((*sequences(case, given), _spare(case, given))):
        seeded = alone(case, one.case.seqlen_q, 0, 0, case.seed + (i << 16))
        dout[one.rows] = _packed(upstream(seeded, one.inputs["v"]))
    found = restated(case, {"dout": dout, **given})
    spare = np.arange(shape[0]) >= given["cu_seqlens_q"][-1]
    rng = np.random.default_rng([case.seed, 2])
    for x in (found["dout"], found["out"], found["lse"].T[..., None]):
        poison(x, spare, case.hidden, rng)
    return {name: found[name] for name in ORDER if name in found}


def restated(case: AttentionVarlenBackwardCase, inputs: Given) -> dict[str, Array]:
    """The inputs with out and lse of their own q, k and v; 0 and -inf in rows of no sequence."""
    q = inputs["q"]
    out = np.zeros((*q.shape[:2], case.head_dim_v), q.dtype)
    lse = np.full(q.shape[1::-1], -np.inf, np.float32)
    for one in sequences(case, inputs):
        found = attention_backward_inputs.restated(one.case, one.inputs)
        out[one.rows], lse[:, one.rows] = _packed(found["out"]), found["lse"][0]
    return {**inputs, "out": out, "lse": lse}


def layouts(case: AttentionVarlenBackwardCase) -> dict[str, str]:
    named = {name: getattr(case, f"layout_{name}") for name in ORDER[:6]}
    starts = {f"cu_seqlens_{x}": getattr(case, f"layout_starts_{x}") for x in "qk"}
    return {**named, **starts}


def sequences(
    case: AttentionVarlenBackwardCase, inputs: Given, reach: int = 0
) -> Iterator[One]:  # fmt: skip
    """Every sequence, in order; reach: by how many keys it goes on into what follows it.

    inputs: q, k and v at least; of dout, out and lse those that are there.
    """
    ends = (inputs["cu_seqlens_q"].tolist(), inputs["cu_seqlens_k"].tolist())
    for s, ((a, b), (c, d)) in enumerate(zip(*map(pairwise, ends), strict=True)):
        default = (d - c) - (b - a)
        offset = int(inputs["q_offset"][s]) if "q_offset" in inputs else default
        yield _one(case, inputs, slice(a, b), slice(c, min(d + reach, len(inputs["k"]))), offset)


def _spare(case: AttentionVarlenBackwardCase, inputs: Given) -> One:
    """The rows and keys of no sequence."""
    rows, keys = (slice(int(inputs[f"cu_seqlens_{x}"][-1]), len(inputs[x])) for x in "qk")
    return _one(case, inputs, rows, keys, 0)


def _one(
    case: AttentionVarlenBackwardCase, inputs: Given, rows: slice, keys: slice, offset: int
) -> One:
    of = {**dict.fromkeys(("dout", "q", "out"), rows), **dict.fromkeys(("k", "v"), keys)}
    found = {n: _heads_first(inputs[n][at]) for n, at in of.items() if n in inputs}
    if "lse" in inputs:
        found["lse"] = inputs["lse"][None, :, rows]
    lengths = found["q"].shape[2], found["k"].shape[2]
    return One(alone(case, *lengths, offset), found, rows, keys)


def _heads_first(x: Array) -> Array:
    """(tokens, heads, features) as a batch of one."""
    return x.swapaxes(0, 1)[None]


def _packed(x: Array) -> Array:
    """A batch of one as (tokens, heads, features)."""
    return x[0].swapaxes(0, 1)


def together(inputs: Given, ones: Sequence[One], outputs: Sequence[Given], name: str) -> Array:
    """An output of all sequences, (1, heads, length, features) each, packed; 0 elsewhere.

    Tokens that several sequences reach have the sum.
    """
    whole = np.zeros(inputs[name.removeprefix("d")].shape)
    for one, found in zip(ones, outputs, strict=True):
        whole[one.at(name)] += _packed(found[name])
    return whole
