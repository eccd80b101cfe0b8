"""Attention, its gradients and merges, every rounding at the end of its range: right kernels.

`python tests/record_false_alarms.py FILE stressed` runs every law on them.
"""

from __future__ import annotations

import numpy as np
import torch
from pushed_calls import PATTERNS, SEED, arrays, dtype_of, rounding, tensor, wide
from simulated_attention import Kernel
from simulated_attention_backward import Backwards
from simulated_merge import Kernel as Merge

from tightrope import implements
from tightrope.formats import widen
from tightrope.oracles.attention_backward_problem import Backward
from tightrope.oracles.attention_problem import problem, visible

EVERY = ("float16", "bfloat16", "float32")


def stated(q, k, v, options):
    """The problem of a call and the dtype of its output."""
    offsets = options.get("q_offset", 0)
    offsets = wide(offsets)[0] if isinstance(offsets, torch.Tensor) else np.array([offsets])
    rule = options.get("causal", False), *options.get("window_size", (None, None))
    n, m = q.shape[2], k.shape[2]
    each = [visible(n, m, int(o), *rule) for o in np.broadcast_to(offsets, (q.shape[0],))]
    seen = np.stack(each)[:, None] if each else np.zeros((0, 1, n, m), bool)
    bias, sink = wide(options.get("bias"), options.get("sink"))
    return problem(
        *(widen(x) for x in arrays(q, k, v)), seen, softmax_scale=options.get("softmax_scale"),
        dtype=str(q.dtype).removeprefix("torch."), out_dtype="float32",
        softcap=options.get("softcap"), bias=bias, sink=sink,
    )  # fmt: skip


def attention(pattern, q, k, v, *, out_dtype=None, **options):
    """out and lse as the contract `attention` has them."""
    p, shape = stated(q, k, v, options), q.shape[:3]
    with np.errstate(all="ignore"):
        out, lse = Kernel(order="sequential", to=rounding(pattern))(p)
    out = tensor(out, dtype_of(q, out_dtype), (*shape, v.shape[-1]))
    return out, tensor(lse, torch.float32, shape)


def gradients(pattern, dout, q, k, v, out, lse, *, out_dtype=None, **options):
    """dq, dk and dv as the contract `attention_backward` has them."""
    p, group = stated(q, k, v, options), q.shape[1] // k.shape[1]
    dout, out, lse = (x.reshape(len(p.q), *x.shape[2:]) for x in wide(dout, out, lse))
    lse = np.where(np.isfinite(lse), lse, 0.0)
    given = Backward(p, dout, out, lse, group)
    with np.errstate(all="ignore"):
        found = Backwards("sequential", rounding(pattern))(given)
    dtype = dtype_of(q, out_dtype)
    return [tensor(x, dtype, y.shape) for x, y in zip(found, (q, k, v), strict=True)]


def merged(pattern, outs, lses):
    """out and lse as the contract `merge_attention` has them."""
    o, l = wide(outs, lses)
    o = np.where((l > -np.inf)[..., None], o, 0.0)
    with np.errstate(all="ignore"):
        out, lse = Merge(pattern, seed=SEED).run(o, l, "division", "chain")
    return tensor(out, torch.float32), tensor(lse, torch.float32)


def register(pattern):
    implements("attention", name=f"stressed_{pattern}", dtype=EVERY)(
        lambda q, k, v, **options: attention(pattern, q, k, v, **options)
    )
    implements("attention_backward", name=f"stressed_{pattern}", dtype=EVERY)(
        lambda *args, **options: gradients(pattern, *args, **options)
    )


for each in PATTERNS:
    register(each)
for each in ("up", "down", "random", "outward"):
    implements("merge_attention", name=f"stressed_{each}")(
        lambda outs, lses, each=each: merged(each, outs, lses)
    )
