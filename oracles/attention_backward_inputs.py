"""Tensors of an `attention_backward` case, as NumPy arrays in their own dtypes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tightrope.data import KINDS
from tightrope.formats import FORMATS, Array, stored
from tightrope.oracles import attention_inputs
from tightrope.oracles.attention_backward_cases import forward
from tightrope.oracles.attention_backward_problem import Backward
from tightrope.oracles.attention_problem import Problem, attend, logits

if TYPE_CHECKING:
    from tightrope.oracles.attention_backward_cases import AttentionBackwardCase


def inputs(case: AttentionBackwardCase) -> dict[str, Array]:
    """dout (batch, num_heads, seqlen_q, head_dim_v), q, k, v as in `attention`, out like dout, all
    in `dtype`; lse (batch, num_heads, seqlen_q) float32; with offsets="tensor" q_offset (batch,)
    int32.
    """
    given = attention_inputs.inputs(forward(case))
    dout = upstream(case, given["v"])
    kept = ("q", "k", "v", "q_offset")
    return restated(case, {"dout": dout, **{n: given[n] for n in kept if n in given}})


def restated(case: AttentionBackwardCase, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The inputs with out and lse of their own q, k and v."""
    return {**inputs, **state_of(case, attention_inputs.stated(forward(case), inputs))}


def state_of(case: Any, p: Problem) -> dict[str, Array]:
    """out and lse of a forward pass, as it stores them."""
    rows = (case.batch, case.num_heads, case.seqlen_q)
    out, lse = forward_pass(p, case.state)
    found = {"out": out.reshape(*rows, case.head_dim_v), "lse": lse.reshape(rows)}
    dtypes = {"out": case.dtype, "lse": "float32"}
    return {name: stored(x, dtypes[name]) for name, x in found.items()}


def upstream(case: Any, v: Array) -> Array:
    """dout (batch, num_heads, seqlen_q, head_dim_v)."""
    shape = (case.batch, case.num_heads, case.seqlen_q, case.head_dim_v)
    return _lowered(_dout(case, shape), v)


def _dout(case: Any, shape: tuple[int, ...]) -> Array:
    rng = np.random.default_rng([case.seed, 1])
    kind = "normal" if case.data_dout == "one_row" else case.data_dout
    dout = KINDS[kind](rng, shape, FORMATS[case.dtype])
    if case.data_dout == "one_row" and dout.size:
        kept = rng.integers(0, shape[2], (*shape[:2], 1, 1))
        dout = dout * (np.arange(shape[2])[:, None] == kept)
    if case.layout_dout == "expanded":
        dout[:] = dout[:, :1]  # stored once for all heads
    return stored(dout, case.dtype)


def _lowered(dout: Array, v: Array) -> Array:
    """dout times a power of two under which no dS overflows float16: an infinite one is NaN where
    it meets a 0, of which no budget says anything. |dP| and |D| are at most `size` / 2 each.
    """
    if dout.dtype != np.float16 or not (dout.size and v.size):
        return dout
    largest = np.where(np.isfinite(v), np.abs(v.astype(np.float64)), 0.0).max()
    size = 2 * largest * np.abs(dout.astype(np.float64)).sum(-1).max()
    return stored(dout * 2.0 ** -max(0.0, np.ceil(np.log2(max(size, 1.0))) - 15), "float16")


def forward_pass(p: Problem, state: str) -> tuple[Array, Array]:
    """out and lse before their last rounding: exact ones, or those of logits, exponentials and sums
    in float32 and P rounded to the input's dtype.
    """
    if state == "exact":
        return attend(p)
    t = logits(p).astype(np.float32)
    top = t.max(axis=-1, initial=-np.inf, keepdims=True)
    shift = np.where(np.isfinite(top), top, np.float32(0))
    weights = np.exp(t - shift)
    total = weights.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (shift + np.log(total))[..., 0]
    some = np.where(total == 0, np.float32(1), total).astype(np.float64)
    return FORMATS[p.dtype].round(weights) @ p.v / some, lse.astype(np.float64)


def layouts(case: AttentionBackwardCase) -> dict[str, str]:
    return {name: getattr(case, f"layout_{name}") for name in ("dout", "q", "k", "v", "out", "lse")}


def shapes(case: AttentionBackwardCase) -> dict[str, tuple[int, ...]]:
    """Of dq, dk and dv: those of q, k and v."""
    keys = (case.batch, case.num_kv_heads, case.seqlen_k)
    dq = (case.batch, case.num_heads, case.seqlen_q, case.head_dim)
    return {"dq": dq, "dk": (*keys, case.head_dim), "dv": (*keys, case.head_dim_v)}


def stated(case: AttentionBackwardCase, inputs: Mapping[str, Array]) -> Backward:
    """The call as one problem; groups are batch x num_heads."""
    p = attention_inputs.stated(forward(case), inputs)
    return given_to(p, inputs, case.num_heads // case.num_kv_heads)


def given_to(p: Problem, inputs: Mapping[str, Array], group: int) -> Backward:
    """A problem with dout, out and lse of every group; group: as in `Backward`."""
    dout, out, lse = (
        inputs[name].astype(np.float64).reshape(len(p.q), *inputs[name].shape[2:])
        for name in ("dout", "out", "lse")
    )
    return Backward(p, dout, out, np.where(p.visible.any(axis=-1), lse, 0.0), group)
