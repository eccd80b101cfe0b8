"""One call of attention's backward pass as numbers, and its definition in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tightrope.formats import Array
from tightrope.oracles.attention_problem import Problem, logits


@dataclass(frozen=True)
class Backward:
    """A problem of attention, and what its backward pass is given besides; float64.

    dout, out (groups, seqlen_q, head_dim_v); lse (groups, seqlen_q), 0 for a row without a key.
    group: query heads that read one kv head; they are neighbours among the groups.
    """

    forward: Problem
    dout: Array
    out: Array
    lse: Array
    group: int


def weights(b: Backward) -> Array:
    """P = exp(t - lse), 0 where masked: (groups, seqlen_q, seqlen_k)."""
    return np.exp(logits(b.forward) - b.lse[..., None])


def upstream(b: Backward) -> Array:
    """dout . v - D, the gradient of P as it enters dS: (groups, seqlen_q, seqlen_k)."""
    return b.dout @ b.forward.v.swapaxes(-1, -2) - (b.dout * b.out).sum(-1, keepdims=True)


def slope(p: Problem) -> Array | float:
    """dt/dz of the softcap, 1 - tanh^2, at z = scale q.k; 1 without one."""
    if p.softcap is None:
        return 1.0
    z = p.q @ p.k.swapaxes(-1, -2) * p.softmax_scale
    return 1 / np.cosh(np.clip(z / p.softcap, -350.0, 350.0)) ** 2


def over_the_group(x: Array, group: int) -> Array:
    """(groups, ...) added up over the query heads of each kv head."""
    return x.reshape(len(x) // group, group, *x.shape[1:]).sum(axis=1)


def gradients(b: Backward) -> tuple[Array, Array, Array]:
    """dq (groups, seqlen_q, head_dim), dk and dv (kv groups, seqlen_k, ...) in float64."""
    p = weights(b)
    ds = p * upstream(b) * slope(b.forward)
    return from_ds(b, p, ds)


def from_ds(b: Backward, p: Array, ds: Array) -> tuple[Array, Array, Array]:
    """The three products, of any P and dS."""
    scale, across = b.forward.softmax_scale, (0, 2, 1)
    dk = over_the_group(ds.transpose(across) @ b.forward.q, b.group)
    dv = over_the_group(p.transpose(across) @ b.dout, b.group)
    return scale * (ds @ b.forward.k), scale * dk, dv
