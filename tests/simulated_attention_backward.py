"""A backward kernel simulated with explicit roundings; it shares only formats with the budgets.

Arrays are float64 and hold float32 values. The arithmetic is "scaled" of
`tightrope.oracles.attention_backward`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from attention_draws import mixture
from simulated_attention import FLOAT32, LOG2E, Rounding, dot

from tightrope.data import KINDS
from tightrope.formats import FORMATS, stored, widen
from tightrope.oracles.attention_backward_inputs import forward_pass
from tightrope.oracles.attention_backward_problem import Backward


def single(x):
    return float(np.float32(x))


@dataclass
class Backwards:
    """One order of sums, and what may be wrong with it (`fault`)."""

    order: str = "hopper"
    to: Rounding = field(default_factory=Rounding)
    fault: str = ""

    def __call__(self, b):
        """(dq, dk, dv) before the last rounding; float32 values unless stressed."""
        p, to, io = b.forward, self.to, FORMATS[b.forward.dtype]
        kept, cast = self.pairs(b)
        half, scale = self.half(b), single(p.softmax_scale)
        scale = float(half.round(scale)) if self.fault == "scale in 16 bits" else scale
        dq = self.product(cast, p.k, io)
        dq = half.round(dq) if self.fault == "dq in 16 bits" else dq
        dk, dv = self.over_rows(cast, p.q, b.group, io), self.over_rows(kept, b.dout, b.group, io)
        return to(dq * scale), dk if self.fault == "dk not scaled" else to(dk * scale), dv

    def half(self, b):
        return FORMATS["bfloat16" if b.forward.dtype == "float32" else b.forward.dtype]

    def pairs(self, b):
        """P and dS as they are multiplied."""
        p, to, io, half = b.forward, self.to, FORMATS[b.forward.dtype], self.half(b)
        self.seen = np.roll(p.visible, 1, -1) if self.fault == "mask one key late" else p.visible
        weights, g = self.weights(b)
        kept = weights if io is FLOAT32 or self.fault == "P not rounded" else io.round(weights)
        dp = self.product(b.dout, p.v.swapaxes(-1, -2), io)
        dp = half.round(dp) if self.fault == "dP in 16 bits" else dp
        d = self.row_sums(b, half)
        first = half.round(weights) if self.fault == "dS from rounded P" else weights
        ds = to(first * to(dp - d))
        ds = ds if g is None or self.fault == "no softcap derivative" else to(ds * g)
        ds = np.where(self.seen, ds, 0.0)
        cast = ds if io is FLOAT32 or self.fault == "dS not rounded" else io.round(ds)
        return kept, half.truncate(ds) if self.fault == "dS truncated" else cast

    def product(self, a, b, io):
        return dot(a, b, np.zeros((*a.shape[:-1], b.shape[-1])), self.order, self.to, io)

    def weights(self, b):
        """P, and the softcap's derivative."""
        p, to = b.forward, self.to
        s = self.product(p.q, p.k.swapaxes(-1, -2), FORMATS[p.dtype])
        lse = b.lse[..., None]
        if self.fault == "lse in bf16":
            lse = FORMATS["bfloat16"].round(lse)
        lam = lse if self.fault == "lse in base 2" else to(lse * LOG2E)
        if p.softcap is None:
            x, g = to(s * single(p.softmax_scale * np.log2(np.e)) - lam), None
        else:
            tanh = self.tanh(s * single(p.softmax_scale / p.softcap))
            x = to(to(to(single(p.softcap) * tanh) * LOG2E) - lam)
            g = to(1 - to(tanh * tanh))
        seen = self.seen
        return np.where(seen, to.exp2(np.where(seen, np.minimum(x, 127.0), 0.0)), 0.0), g

    def tanh(self, y):
        to = self.to
        x = to(to(y) * (2 * LOG2E))
        above = x >= 128
        divisor = to(1 + to.exp2(np.where(above, 0.0, x)))
        quotient = np.where(above, 0.0, to.function(2.0 / divisor, to.division_ulp))
        return to(1 - quotient)

    def row_sums(self, b, half):
        """D, feature by feature."""
        to, products = self.to, b.dout * b.out
        last = products.shape[-1] - (self.fault == "D misses a feature")
        total = np.zeros(products.shape[:-1])
        for c in range(last if self.fault != "no D" else 0):
            total = to.add(total, to(products[..., c]))
        total = half.round(total) if self.fault == "D in 16 bits" else total
        return total[..., None]

    def over_rows(self, left, right, group, io):
        """left^T right over the rows of every head of a group, one behind the other."""
        left = left.swapaxes(-1, -2)
        heads = [slice(i, None, group) for i in range(group)]
        heads = heads[-1:] if self.fault == "last head alone" else heads
        total = np.zeros((len(left) // group, left.shape[1], right.shape[-1]))
        for head in heads:
            if self.fault == "heads in 16 bits":
                one = self.product(left[head], right[head], io)
                total = self.to.add(
                    total, FORMATS["bfloat16" if io is FLOAT32 else io.name].round(one)
                )
            else:
                total = dot(left[head], right[head], total, self.order, self.to, io)
        return total


def given(problem, group, seed, state="low_precision", kind="normal"):
    """A backward problem on these rows: signed dout, out and lse of an honest forward pass."""
    rng = np.random.default_rng([seed, 7])
    if group > 1:
        first = np.arange(len(problem.k)) // group * group
        problem = replace(problem, k=problem.k[first], v=problem.v[first])
    out, lse = forward_pass(problem, state)
    dout = KINDS[kind](rng, out.shape, FORMATS[problem.dtype])
    dout, out = (widen(stored(np.clip(x, -6e4, 6e4), problem.dtype)) for x in (dout, out))
    lse = np.where(np.isfinite(lse), widen(stored(lse, "float32")), 0.0)
    return Backward(problem, dout, out, lse, group)


def mixed(seed):
    """Any kind of data, sizes, masks and softcaps: (kind, backward problem)."""
    kind, problem = mixture(seed)
    problem = replace(problem, bias=None, sink=None)
    rng = np.random.default_rng([seed, 8])
    group = len(problem.q) if rng.integers(2) else 1
    state = ("exact", "low_precision")[int(rng.integers(2))]
    upstream = ("normal", "normal", "few_bits", "mixed_scales", "times_30")[int(rng.integers(5))]
    return kind, given(problem, group, seed, state, upstream)
