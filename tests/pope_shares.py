"""Cases of `pope_attention`, what kernels may declare, and how much of a budget one spends."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from simulated_attention import Kernel
from simulated_pope import Features, problem_with

from tightrope import Arithmetic
from tightrope.oracles.pope_attention import CONTRACT, PopeAttentionCase
from tightrope.oracles.pope_attention_budget import STAGES
from tightrope.oracles.pope_attention_problem import right

SHARP = {"angle": "exact", "trig_ulp": 0.5, "softplus_ulp": 0.5, "softplus_error": 0.0}
KNOWN = {
    "dot": "hopper_mma", "block_k": 16, "logits": "scaled", "lse": "base2", **SHARP,
    "feature_order": "joined",
}  # fmt: skip
LIGHT = {
    **KNOWN, "table": "float16", "phase": "query", "feature_order": "blocks", "softplus_ulp": 10.0,
}  # fmt: skip
OF_KERNEL = ("angle", "trig_ulp", "table", "phase", "softplus_ulp", "magnitude", "features")
SIZE = {
    "num_heads": 4, "num_kv_heads": 2, "seqlen_q": 20, "seqlen_k": 64, "head_dim": 32,
    "head_dim_v": 32, "rotary_dim": 32, "causal": True, "q_offset": 44, "positions": "offset",
    "start": 1000, "delta": "kv_heads", "out_dtype": "float32",
}  # fmt: skip
NARROW = {"head_dim": 16, "rotary_dim": 2, "seqlen_k": 8, "causal": False, "q_offset": 0}


def case(seed=0, **fields):
    given = {**SIZE, **fields}
    if given.get("dtype") == "float32":
        given["out_dtype"] = "input"
    return PopeAttentionCase(**given, seed=seed)


def features(stages, dtype, to, **more):
    """A kernel that keeps what the stages say."""
    known = {name: value for name, value in stages.items() if name in OF_KERNEL}
    return Features(dtype, to, **{**known, **more})


def spent(error, bound):
    """The largest error / bound; not a number counts as infinite."""
    with np.errstate(all="ignore"):
        ratio = np.where(error <= 0, 0.0, error / bound)
    return float(np.max(np.where(np.isnan(ratio), np.inf, ratio), initial=0.0))


def shares(c, stages, kernel, attention=None, wrong=None, scale=None):
    """Worst shares of T0, of T1 (0 where there is none) and of lse, before the last rounding."""
    inputs = CONTRACT.inputs(c)
    p = right(c, inputs)
    order = stages.get("feature_order", "joined")
    made = problem_with(p, c, inputs, kernel, order, wrong and wrong(c, inputs))
    if scale is not None:
        made = replace(made, softmax_scale=scale * made.softmax_scale)
    found = CONTRACT.budget(c, inputs, Arithmetic(**stages).over(STAGES))
    out, lse = found["out"], found["lse"]
    with np.errstate(all="ignore"):
        got_out, got_lse = (attention or Kernel(order=best(c)))(made)
    got_out, got_lse = got_out.reshape(out.expected.shape), got_lse.reshape(lse.expected.shape)
    again = out.replay
    return (
        spent(np.abs(got_out - out.expected) - out.oracle, out.bound),
        0.0 if again is None else spent(np.abs(got_out - again.centre), again.radius),
        spent(np.abs(got_lse - lse.expected) - lse.oracle, lse.bound),
    )


def best(c):
    return "sequential" if c.dtype == "float32" else "hopper"
