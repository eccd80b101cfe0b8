"""Polar attention, every rounding at the end of its range: right kernels.

`python tests/record_false_alarms.py FILE stressed` runs every law on them.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch
from pushed_calls import PATTERNS, arrays, dtype_of, rounding, tensor
from simulated_attention import Kernel
from simulated_pope import Features, problem_with
from stressed_attention import EVERY, stated

from tightrope import implements

NAMES = ("q", "k", "inv_freq", "delta", "q_positions", "k_positions")
GRANTED = {"angle": "float32", "trig_ulp": 2.5, "softplus_ulp": 6.5, "features": "input"}


def pope(pattern, q, k, v, inv_freq, delta, q_positions, k_positions, *, softmax_scale=None,
         out_dtype=None, **options):  # fmt: skip
    """out and lse as the contract `pope_attention` has them."""
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    p, shape = stated(q, k, v, {**options, "softmax_scale": scale}), q.shape[:3]
    case = SimpleNamespace(
        num_heads=q.shape[1], num_kv_heads=k.shape[1], rotary_dim=inv_freq.shape[0]
    )
    given = dict(zip(NAMES, arrays(q, k, inv_freq, delta, q_positions, k_positions), strict=True))
    to = rounding(pattern)
    with np.errstate(all="ignore"):
        p = problem_with(p, case, given, Features(p.dtype, to, **GRANTED))
        out, lse = Kernel(order="sequential", to=to)(p)
    out = tensor(out, dtype_of(q, out_dtype), (*shape, v.shape[-1]))
    return out, tensor(lse, torch.float32, shape)


for each in PATTERNS:
    implements("pope_attention", name=f"stressed_{each}", dtype=EVERY)(
        lambda *args, each=each, **options: pope(each, *args, **options)
    )
