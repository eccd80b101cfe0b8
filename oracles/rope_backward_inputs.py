"""Tensors of a `rope_backward` case, as NumPy arrays in their own dtypes."""

from __future__ import annotations

from tightrope.formats import Array
from tightrope.oracles import rope_inputs
from tightrope.oracles.rope_backward_cases import RopeBackwardCase
from tightrope.rotary import join, split


def inputs(case: RopeBackwardCase) -> dict[str, Array]:
    """dq (tokens, num_heads, head_dim), dk (tokens, num_kv_heads, head_dim) in `dtype`, cos and sin
    (table_rows, rotary_dim/2) in `table_dtype`, positions (tokens,) in `position_dtype`.
    """
    drawn = rope_inputs.inputs(case)
    return {f"d{name}": _mirrored(drawn.pop(name), case) for name in ("q", "k")} | drawn


def _mirrored(x: Array, case: RopeBackwardCase) -> Array:
    """Second members of pairs with the other sign: sums that cancelled cancel transposed too."""
    first, second = split(x, case)
    return join(first, -second, x, case)
