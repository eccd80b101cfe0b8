"""Every term of the budget of `attention_backward` is needed: without it a right kernel is wrong.

Families that isolate a term, and the worst roundings: docs/error-budgets.md, attention_backward.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from attention_draws import family
from simulated_attention import FLOAT32, Kernel, stressed
from simulated_attention_backward import Backwards, given

from tightrope.formats import FORMATS, stored, widen
from tightrope.oracles import attention_backward_sums
from tightrope.oracles.attention_backward_budget import STAGES, backward
from tightrope.oracles.attention_backward_problem import Backward
from tightrope.oracles.attention_problem import Problem

SCALED = {"state": "given", "logits": "scaled", "heads": "summed"}
PATTERNS = ("outward", "up", "down", "inward", "random", "call", "call", "call")


def one_pair(q, k, v, dout, out, back, scale=1.0, softcap=None, dtype="float32"):
    """One query and one key; back: by how much lse lies below the logit."""
    q, k, v, dout, out = (widen(stored(x, dtype)).reshape(1, 1, -1) for x in (q, k, v, dout, out))
    seen = np.ones((1, 1, 1), bool)
    p = Problem(q, k, v, seen, scale, dtype, "float32", softcap=softcap)
    t = float((q * k).sum()) * scale
    t = t if softcap is None else softcap * np.tanh(t / softcap)
    return Backward(p, dout, out, np.array([[float(np.float32(t - back))]]), 1)


def aligned(rng):
    """Every number lies just above a power of two, where a rounding weighs most."""
    q, k, v, dout, out = 1 + rng.random(5) / 16
    return one_pair(q, k, v, dout, -out, rng.random() / 32, 1 + rng.random() / 16)


def cancelling(rng):  # dP and D are near to each other, so that what either is off remains
    v, dout = 1 + rng.random((2, 4)) / 16
    return one_pair(1.0, 1.0, v, dout, v * (1 + 2.0**-9 * rng.random(4)), 0.01)


def loud_lse(rng):  # exact logits, so that only lse in base 2 is rounded
    return one_pair(1.0, 64 + int(rng.integers(32)), 1.0, 1.0, 0.5, rng.random() / 64)


def flushed(rng):
    return one_pair(1.0, 1.0, 1.0, 1e38, 0.5, -87.5 - 3 * rng.random())


def halves(rng):  # of 16 bits; the cast of a number just above a power of two loses most
    return one_pair(1.0, 1.0, 1.0, 1 + rng.random(), 0.25, 0.3 * rng.random(), dtype="bfloat16")


def capped(rng):
    return one_pair(1.0, 1 + rng.random(), 1.0, 1.0, -1.0, 0.01, softcap=1.0)


CASTS = {"P": "P rounded to bfloat16", "dS": "dS rounded to bfloat16"}
NEEDED = {
    **{("dv", term): aligned for term in ("exponentials", "lse", "accumulation")},
    **{
        (output, term): aligned
        for output in ("dq", "dk")
        for term in ("exponentials", "dP", "dS", "accumulation", "scale")
    },
    **{(output, "D"): cancelling for output in ("dq", "dk")},
    **{(output, "lse"): loud_lse for output in ("dq", "dk", "dv")},
    ("dv", "flush"): flushed,
    ("dv", CASTS["P"]): halves, ("dq", CASTS["dS"]): halves, ("dk", CASTS["dS"]): halves,
    ("dq", "softcap"): capped, ("dk", "softcap"): capped,
}  # fmt: skip


def shares(budget, value, term):
    """Of the whole bound, and of what is left of it without one term."""
    error = np.abs(value - budget.expected) - budget.oracle
    bounds = budget.bound, np.maximum(budget.without(term).bound, 1e-300)
    return (float(np.max(error / bound)) for bound in bounds)


@pytest.mark.parametrize(("output", "term"), NEEDED)
def test_deleting_a_term_is_noticed(output, term):
    worst, noticed = 0.0, 0.0
    for seed in range(100):
        b = NEEDED[output, term](np.random.default_rng(seed))
        budget = backward(b, SCALED)[output]
        assert term in budget.terms
        for corner, pattern in enumerate(PATTERNS):
            kernel = Backwards("sequential", stressed(pattern, 8 * seed + corner))
            value = kernel(b)[("dq", "dk", "dv").index(output)]
            whole, rest = shares(budget, value, term)
            worst, noticed = max(worst, whole), max(noticed, rest)
        if noticed > 1:
            break
    assert worst <= 1
    assert noticed > 1


def test_every_term_is_looked_at():
    found = set()
    for make in set(NEEDED.values()):
        spent = backward(make(np.random.default_rng(0)), SCALED)
        found |= {(output, term) for output, budget in spent.items() for term in budget.terms}
    assert found == set(NEEDED)


@pytest.mark.parametrize(("output", "place"), [("dk", 1), ("dv", 2)])
def test_gradients_of_heads_that_are_stored_apart_need_their_term(output, place):
    worst, noticed, kernel = 0.0, 0.0, Backwards(fault="heads in 16 bits")
    for seed in range(140):
        rng = np.random.default_rng(seed)
        rows, keys = (int(n) for n in rng.integers(1, 3, 2))
        sizes = {"rows": rows, "keys": keys, "width": 2, "width_v": 4, "causal": False}
        b = given(family("normal", "float16", seed, **sizes), 4, seed)
        budget = backward(b, {**SCALED, "heads": "apart"})[output]
        whole, rest = shares(budget, kernel(b)[place], "heads apart")
        worst, noticed = max(worst, whole), max(noticed, rest)
    assert worst <= 1
    assert noticed > 1


def test_an_own_forward_pass_is_off_by_more_than_the_given_state():
    b = given(family("normal", "bfloat16", 1, groups=1), 1, 1, "exact")
    out, lse = Kernel()(b.forward)
    own = replace(b, out=FORMATS["bfloat16"].round(out), lse=FLOAT32.round(lse))
    dq = Backwards()(own)[0].astype(np.float32)
    assert backward(b, STAGES)["dq"].inside(dq).all()
    assert not backward(b, {**STAGES, **SCALED})["dq"].replayed(dq).all()


def cut_share(kind, dtype):
    """Of P^T dout on the tensor core, as the chained sum bounds it."""
    worst = 0.0
    for seed in range(8):
        b = given(family(kind, dtype, seed, groups=2, rows=40, keys=24), 2, seed)
        budget = backward(b, {**SCALED, "dot": "hopper_mma"})["dv"]
        value = Backwards()(b)[2]
        with np.errstate(all="ignore"):
            error = np.abs(value - budget.replay.centre) / budget.replay.radius
        decided = budget.replay.radius < 2.0**-16  # no cast is left open
        worst = max(worst, float(np.max(error, where=decided, initial=0.0)))
    return worst


@pytest.mark.parametrize("piece", ["KEPT", "TRUNCATED"])
def test_both_truncations_of_the_tensor_core_are_needed(piece, monkeypatch):
    assert 0 < cut_share("normal", "float16") <= 1
    monkeypatch.setattr(attention_backward_sums, piece, 0.0)
    assert cut_share("normal", "float16") > 1
