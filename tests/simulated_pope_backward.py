"""A backward kernel of polar attention simulated with explicit roundings, on float64 arrays.

Points are those of tests/simulated_pope.py, dS that of tests/simulated_attention_backward.py; the
way back is written here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from simulated_attention_backward import Backwards, single
from simulated_pope import Features, problem_with, times

from tightrope.formats import FORMATS, widen
from tightrope.oracles.attention_backward_inputs import given_to
from tightrope.oracles.pope_attention_backward_cases import forward
from tightrope.oracles.pope_attention_problem import right
from tightrope.oracles.rope_attention_inputs import finite_keys


@dataclass
class PolarBackwards(Backwards):
    """points: how q and k become points, under the same roundings; sums: whose angles make ddelta;
    kept: whether gradients of points are rounded to the input's dtype; apart: whether dk and dv of
    every head are."""

    points: Features = field(default_factory=Features)
    sums: str = "rows"
    sigmoid_ulp: float = 0.5
    kept: bool = False
    apart: bool = False

    def of(self, case, inputs):
        """dq, dk, dv, ddelta before the last rounding."""
        call, to = forward(case), self.to
        group, heads = case.num_heads // case.num_kv_heads, case.num_heads
        p = problem_with(right(call, inputs), call, {**inputs, "k": finite_keys(call, inputs)},
                         self.points)  # fmt: skip
        b = given_to(p, inputs, group)
        weights, ds = self.pairs(b)
        io = FORMATS[case.dtype]
        alike = self.points.phase != "key" or len(inputs.get("delta", ())) in (0, case.num_kv_heads)
        shared = group if alike and not self.apart else 1
        e_q, e_k = self.product(ds, p.k, io), self.over_rows(ds, p.q, shared, io)
        scale = single(p.softmax_scale)
        dq, turned_q = self.back("q", case, inputs, e_q, 1)
        dk, turned_k = self.back("k", case, inputs, e_k, shared)
        dk = self.added(self.stored(to(dk * scale), case), group // shared)
        dv = self.over_rows(weights, b.dout, 1 if self.apart else group, io)
        dv = self.added(self.stored(dv, case), group if self.apart else 1)
        found = {"dq": to(dq * scale), "dk": dk, "dv": dv}
        if "delta" in inputs:
            if shared > 1 and len(inputs["delta"]) == heads:  # a phase of each head wants its own
                turned_k = self.back("k", case, inputs, self.over_rows(ds, p.q, 1, io), 1)[1]
            turned = turned_q if self.sums == "rows" else turned_k
            found["ddelta"] = to(self.phases(turned, case.batch, inputs["delta"]) * scale)
        return found

    def stored(self, x, case):
        alone = case.num_heads == case.num_kv_heads
        return FORMATS[case.dtype].round(x) if self.apart and not alone else x

    def back(self, name, case, inputs, e, shared):
        """Gradients of features before the scale, and what turns the angles of delta."""
        x, (c, s), mu = self.factors(name, case, inputs, shared)
        width, to = x.shape[-1], self.to
        e_x, e_y, plain = e[..., :width], e[..., width : 2 * width], e[..., 2 * width :]
        if self.kept:
            e_x, e_y = (FORMATS[case.dtype].round(y) for y in (e_x, e_y))
        along = to.add(times(to, c, e_x), times(to, s, e_y))
        slope = to.function(1 / (1 + np.exp(-x)), self.sigmoid_ulp)
        across = to.add(times(to, c, e_y), -times(to, s, e_x))
        across = across if name == "k" else -across
        return np.concatenate([to(slope * along), plain], -1), to(mu * across)

    def factors(self, name, case, inputs, shared):
        """Polar features, cos and sin, magnitudes; one for every head that stands alone."""
        x = widen(inputs["q"] if name == "q" else finite_keys(forward(case), inputs))
        x = np.repeat(x, case.num_heads // x.shape[1], 1)[..., : case.rotary_dim]
        delta = inputs.get("delta")
        if delta is not None:
            delta = np.repeat(widen(delta), case.num_heads // len(delta), 0)[:, None]
        places = np.atleast_2d(inputs[f"{name}_positions"])[:, None, :, None]
        table = self.points.turning(places, widen(inputs["inv_freq"]), delta, name == "k")

        def flat(y):
            return np.broadcast_to(y, x.shape).reshape(-1, *x.shape[2:])[::shared]

        return flat(x), [flat(y) for y in table], flat(self.points.softplus(x))

    def added(self, x, group):
        """Over the heads of a group, one by one."""
        total = x[::group]
        for head in range(1, group):
            total = self.to.add(total, x[head::group])
        return total

    def phases(self, turned, batch, delta):
        """Over places, then sequences and heads that share a phase, one by one."""
        total = np.zeros((len(turned), turned.shape[-1]))
        for place in range(turned.shape[1]):
            total = self.to.add(total, turned[:, place])
        parts = total.reshape(batch, len(delta), -1, total.shape[-1])
        found = np.zeros(delta.shape)
        for b in range(batch):
            for head in range(parts.shape[2]):
                found = self.to.add(found, parts[b, :, head])
        return found
