"""Every term of the budget of attention is needed: without it a right kernel is called wrong.

Families that isolate a term, and the worst roundings: docs/error-budgets.md, section attention.
"""

from __future__ import annotations

import numpy as np
import pytest
from attention_draws import family
from simulated_attention import Kernel, hopper, stressed

from tightrope.formats import FORMATS, stored, widen
from tightrope.oracles import attention_dots, attention_replay, attention_softmax_budget
from tightrope.oracles.attention_budget import forward
from tightrope.oracles.attention_problem import Problem

BASE = {"dot": "any", "block_k": 16, "logits": "scaled", "lse": "base2", "sink": "start"}
SEARCHED = range(120)


def tiny(t, v, dtype="float32", sink=None, scale=1.0):
    """One row of one feature whose scores are t."""
    t, v = np.asarray(t, np.float64), np.asarray(v, np.float64)
    k, v = (widen(stored(x, dtype))[None, :, None] for x in (t, v))
    seen = np.ones((1, 1, t.size), bool)
    at = None if sink is None else np.array([float(np.float32(sink))])
    return Problem(np.ones((1, 1, 1)), k, v, seen, scale, dtype, "float32", sink=at)


def large(rng):  # near-equal large logits: a rounding of a score moves its weight
    at = 64 * (1 + rng.random(2) / 64)
    return tiny(at, [1.0, -1.0]), BASE, {}


def flushed(rng):
    return tiny([0.0, -87.0 - 3 * rng.random()], [0.0, 1e38]), BASE, {}


def rounded_p(rng):
    return family("normal", "bfloat16", int(rng.integers(99)), groups=1), BASE, {}


def first_key(rng):  # every sum lies just above a power of two: each addition costs u
    n = int(rng.integers(24, 49))
    t = np.concatenate([[0.0], -15.0 - rng.random(n)])
    return tiny(t, np.full(n + 1, 1.01)), {**BASE, "block_k": 64}, {"block": 64}


def one_key(rng):
    return tiny([rng.standard_normal()], [1 + 0.01 * rng.random()]), BASE, {}


def sink_below(rng):
    return tiny([3 * rng.random()], [1.0], sink=rng.standard_normal()), BASE, {}


def truncated_v(rng):
    v = 1 + 2.0**-10 - 2.0**-20 * rng.random()
    stages = {**BASE, "dot_precision": "tf32"}
    return tiny([rng.standard_normal()], [v]), stages, {"precision": "tf32"}


def two_equal(rng):  # log2(2) added to a large maximum
    at = 64.0 * (1 + rng.random())
    return tiny([at, at], [1.0, 1.0]), BASE, {}


def halves(rng):  # p just above 1 and 1/2, l just above 2: there an ulp weighs most
    at = 0.03 * rng.random()
    return tiny([at, at - np.log(2.0) + 1e-3, at - np.log(2.0) + 1e-3], np.ones(3)), BASE, {}


NEEDED = {
    "out": {
        "exponentials": large, "flush": flushed, "P rounded to bfloat16": rounded_p,
        "accumulation": first_key, "denominator": first_key, "division": one_key,
        "sink": sink_below, "V truncated to tf32": truncated_v,
    },
    "lse": {
        "weights": large, "denominator": first_key, "logarithm": halves, "sum": two_equal,
    },
}  # fmt: skip


def roundings(seed):
    """Kernels whose roundings conspire: numerator against denominator, and searched corners."""
    up, down = stressed("outward", seed), stressed("inward", seed)
    yield {"to": up, "below": down}
    yield {"to": down, "below": up}
    yield {"to": stressed("up", seed)}
    yield {"to": stressed("down", seed)}
    yield {"to": stressed("random", seed)}
    for corner in range(3):
        yield {"to": stressed("call", 4 * seed + corner)}


def worst(output, term, make):
    """The largest shares of the whole bound and of what deleting the term leaves."""
    whole = rest = 0.0
    for seed in SEARCHED:
        problem, arithmetic, options = make(np.random.default_rng(seed))
        budget = getattr(forward(problem, arithmetic), output)
        without = budget.without(term)
        for how in roundings(seed):
            with np.errstate(all="ignore"):
                found = Kernel(order="sequential", **options, **how)(problem)
                error = np.abs(found[output == "lse"] - budget.expected) - budget.oracle
                whole = max(whole, float(np.max(error / budget.bound)))
                rest = max(rest, float(np.max(error / np.maximum(without.bound, 1e-300))))
        assert whole <= 1
        if rest > 1:
            break
    return whole, rest


@pytest.mark.parametrize(
    ("output", "term"), [(output, term) for output, terms in NEEDED.items() for term in terms]
)
def test_deleting_a_term_is_noticed(output, term):
    problem, arithmetic, _ = NEEDED[output][term](np.random.default_rng(0))
    assert term in getattr(forward(problem, arithmetic), output).terms
    assert worst(output, term, NEEDED[output][term])[1] > 1


def exact_and_far(rng, blocks=16):  # scores exact, so that only x = t - m is rounded
    gap = 56.0 + int(rng.integers(1, 16)) / 8
    v = [0.0, 1e20] if blocks == 16 else [1e20, 0.0]
    t = [0.125, -gap] if blocks == 16 else [0.125, gap]
    return tiny(t, v), {**BASE, "block_k": blocks}, {"block": blocks}


def rising(rng):
    return exact_and_far(rng, 1)


INNER = [
    ("argument of an exponential", attention_softmax_budget, "argument_error", exact_and_far),
    ("argument of a rescale", attention_softmax_budget, "_after", rising),
    ("sums of P V", attention_replay, "gamma", first_key),
]


@pytest.mark.parametrize(("name", "module", "piece", "make"), INNER, ids=[x[0] for x in INNER])
def test_deleting_a_piece_of_a_term_is_noticed(name, module, piece, make, monkeypatch):
    whole, rest = inner(module, piece, make, monkeypatch)
    assert whole <= 1
    assert rest > 1


def inner(module, piece, make, monkeypatch):
    """The largest shares of out and lse with and without one piece of the derivation."""
    shares, kept = [], getattr(module, piece)
    for without in (False, True):
        if without:
            monkeypatch.setattr(module, piece, lambda x, *more: 0 * kept(x, *more))
        worst = 0.0
        for seed in range(30):
            problem, arithmetic, options = make(np.random.default_rng(seed))
            found = forward(problem, arithmetic)
            for how in roundings(seed):
                out, lse = Kernel(order="sequential", **options, **how)(problem)
                for x, budget in ((out, found.out), (lse, found.lse)):
                    error = np.abs(x - budget.expected) - budget.oracle
                    worst = max(worst, float(np.max(error / np.maximum(budget.bound, 1e-300))))
        shares.append(worst)
    return shares


def operands(kind, dtype, seed):
    """(1, 24, width) and (1, 8, width) of one format, with zeros and subnormals among them."""
    rng = np.random.default_rng(seed)
    width = int(rng.choice([1, 7, 16, 17, 40, 64]))
    a, b = rng.standard_normal((1, 24, width)), rng.standard_normal((1, 8, width))
    if kind == "spread":
        a, b = a * 2.0 ** rng.integers(-9, 9, a.shape), b * (rng.random(b.shape) < 0.7)
    if kind == "cancellation":
        half = 2 * (width // 2)
        a[..., 1:half:2], b[..., 1:half:2] = a[..., :half:2], -b[..., :half:2]
    if kind == "positive":
        a, b = 1 + np.abs(a) % 1, 1 + np.abs(b) % 1
    if kind == "subnormal":
        a, b = a * FORMATS[dtype].tiny * 2.0**4, b * 2.0**3
    return widen(stored(a, dtype)), widen(stored(b, dtype))


def tensor_core_share(kind, dtype):
    worst = 0.0
    for seed in range(40):
        a, b = operands(kind, dtype, seed)
        got = hopper(a, b.swapaxes(-1, -2), np.zeros((1, 24, 8)), FORMATS[dtype])
        bound = attention_dots.mma_scores(a, b, FORMATS[dtype])
        worst = max(worst, float(np.max(np.abs(got - a @ b.swapaxes(-1, -2)) / bound)))
    return worst


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kind", ["normal", "spread", "cancellation", "positive", "subnormal"])
def test_the_tensor_core_stays_within_its_bound(kind, dtype):
    assert tensor_core_share(kind, dtype) <= 1


@pytest.mark.parametrize(("piece", "kind"), [("KEPT", "cancellation"), ("TRUNCATED", "positive")])
def test_both_truncations_of_the_tensor_core_are_needed(piece, kind, monkeypatch):
    monkeypatch.setattr(attention_dots, piece, 0.0)
    assert tensor_core_share(kind, "float16") > 1


def test_the_largest_product_is_found_exactly():
    for seed in range(20):
        a, b = operands("spread", "bfloat16", seed)
        a, b = a[..., :16], b[..., :16]
        found = attention_dots.largest_product(a, b.swapaxes(-1, -2), FORMATS["bfloat16"])
        size = (np.where(x == 0, 0.0, 2.0 ** (np.frexp(x)[1] - 1.0)) for x in (a, b))
        left, right = size
        true = (left[:, :, None] * right[:, None]).max(-1)
        assert np.array_equal(found[true > 2.0**-40], true[true > 2.0**-40])
