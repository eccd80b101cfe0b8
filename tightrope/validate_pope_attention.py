"""Refusing bad input to `pope_attention`, beyond what `attention` refuses.

Metadata alone, but for the function whose name ends in `_values`: it reads elements, and is called
for CPU tensors or on request.
"""

from __future__ import annotations

import math
from typing import Any

from tightrope.validate import check_device, check_tensor, refuse
from tightrope.validate_sequences import _check_positions


def check_pope_attention(
    q: Any, k: Any, inv_freq: Any, delta: Any, q_positions: Any, k_positions: Any
) -> None:
    """Refuse what `pope_attention` excludes beyond `attention`, after `check_attention`.

    Raises: TypeError (types, dtypes), ValueError (shapes, devices).
    """
    check_tensor("inv_freq", inv_freq, ("rotary_dim",), ("float32", "float64"))
    check_device("inv_freq", inv_freq, q.device)
    rotary_dim, head_dim = inv_freq.shape[0], q.shape[3]
    if not 1 <= rotary_dim <= head_dim:
        refuse("rotary_dim = inv_freq.shape[0]", f"1 to head_dim = {head_dim}", rotary_dim)
    _check_delta(delta, q.shape[1], k.shape[1], rotary_dim, q.device)
    _check_positions("q_positions", q_positions, q.shape[0], q.shape[2], q.device)
    _check_positions("k_positions", k_positions, k.shape[0], k.shape[2], q.device)


def _check_delta(
    delta: Any, num_heads: int, num_kv_heads: int, rotary_dim: int, device: Any
) -> None:
    if delta is None:
        return
    check_tensor("delta", delta, ("num_kv_heads or num_heads", "rotary_dim"), ("float32",))
    check_device("delta", delta, device)
    if delta.shape[0] not in (num_kv_heads, num_heads) or delta.shape[1] != rotary_dim:
        heads = " or ".join(map(str, dict.fromkeys((num_kv_heads, num_heads))))
        refuse("delta.shape", f"({heads}, {rotary_dim}) as inv_freq", tuple(delta.shape))


def check_frequency_values(inv_freq: Any) -> None:
    """Refuse frequencies that are not finite numbers above 0. Raises ValueError."""
    for number in inv_freq.tolist():
        if not 0 < number < math.inf:
            refuse("inv_freq", "finite numbers above 0", number)


def check_finite_values(name: str, tensor: Any) -> None:
    """Refuse elements that are not finite; None passes. Raises ValueError."""
    if tensor is not None and not bool(tensor.isfinite().all()):
        refuse(name, "finite numbers", tensor[~tensor.isfinite()][0].item())
