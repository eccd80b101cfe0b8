"""Tensors of a `pope_attention_backward` case, as NumPy arrays in their own dtypes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tightrope.formats import Array
from tightrope.oracles import pope_attention_inputs
from tightrope.oracles.attention_backward_inputs import state_of, upstream
from tightrope.oracles.pope_attention_backward_cases import forward
from tightrope.oracles.pope_attention_problem import right

if TYPE_CHECKING:
    from tightrope.oracles.pope_attention_backward_cases import PopeAttentionBackwardCase

ORDER = (
    *("dout", "q", "k", "v", "out", "lse"),
    *("inv_freq", "delta", "q_positions", "k_positions", "q_offset"),
)


def inputs(case: PopeAttentionBackwardCase) -> dict[str, Array]:
    """Those of `pope_attention`; dout and out (batch, num_heads, seqlen_q, head_dim_v) in `dtype`,
    lse (batch, num_heads, seqlen_q) float32.
    """
    given = pope_attention_inputs.inputs(forward(case))
    return restated(case, {"dout": upstream(case, given["v"]), **given})


def restated(case: PopeAttentionBackwardCase, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The inputs with out and lse of their own forward pass."""
    found = {**inputs, **state_of(case, right(forward(case), inputs))}
    return {name: found[name] for name in ORDER if name in found}


def layouts(case: PopeAttentionBackwardCase) -> dict[str, str]:
    more = {name: getattr(case, f"layout_{name}") for name in ("dout", "out", "lse")}
    return {**pope_attention_inputs.layouts(forward(case)), **more}
