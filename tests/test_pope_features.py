"""Polar features in any mixture of stages and data: no right kernel leaves its bound."""

from __future__ import annotations

import numpy as np
import pytest
from simulated_attention import PATTERNS, stressed
from simulated_pope import Features, Moved, Rounding

from tightrope.formats import FORMATS, stored, widen
from tightrope.oracles.pope_attention_budget import STAGES
from tightrope.oracles.pope_features import magnitude, ordered, polar
from tightrope.oracles.pope_features_angle import turning
from tightrope.oracles.pope_features_stages import Grant

DTYPES = ("float16", "bfloat16", "float32")
TABLES = ("float32", "float16", "bfloat16", "input")


def drawn(seed):
    """(dtype, stages, x, positions, inv_freq, delta, whether of keys, ways of a kernel)."""
    rng = np.random.default_rng(seed)
    pick = lambda *values: values[int(rng.integers(len(values)))]  # noqa: E731
    dtype = DTYPES[seed % 3]
    stages = {
        "angle": pick("float32", "exact", "float32"), "trig_ulp": pick(0.5, 2.5), "block_k": 16,
        "table": pick(*TABLES), "magnitude": pick(*TABLES), "features": pick("input", "float32"),
        "phase": pick("key", "query", "query", "query_angle"), "softplus_ulp": pick(0.5, 6.5, 30.0),
        "softplus_error": 0.0,
    }  # fmt: skip
    x = rng.standard_normal((1, 2, 7, 24)) * pick(1.0, 3.0, 30.0) + pick(0.0, 0.0, -12.0, -60.0)
    positions = rng.integers(-3, 4, 7) * pick(1, 1, 1000, 2**18 + 1, 2**23 - 1, 2**33)
    inv_freq = pick(1e4, 100.0) ** (pick(-1, -1, 1) * np.arange(24) / 24)
    delta = rng.uniform(-6.3, 0.0, (2, 1, 24)) * pick(1.0, 40.0) * (rng.random((2, 1, 24)) < 0.8)
    return (
        dtype, stages, widen(stored(x, dtype)), positions.reshape(1, 1, -1, 1),
        widen(stored(inv_freq, pick("float32", "float64"))),
        pick(None, widen(stored(delta, "float32"))),
        bool(pick(0, 1)), {"fused": bool(pick(0, 1)), "double": bool(pick(0, 1))},
    )  # fmt: skip


def held_and_budget(seed, to):
    dtype, stages, x, positions, inv_freq, delta, keys, ways = drawn(seed)
    grant = Grant.of(dtype, {**STAGES, **stages})
    own = {n: v for n, v in stages.items() if n not in ("block_k", "softplus_error")}
    found = Features(dtype, to, **own, **ways)(x, positions, inv_freq, delta, keys)
    turned = turning(positions, inv_freq, delta, grant, keys)
    return np.concatenate(found, -1), polar(magnitude(x, grant), turned, x[..., :0], grant)


@pytest.mark.parametrize("first", range(0, 240, 60))
def test_no_feature_leaves_its_bound(first):
    worst = 0.0
    for seed in range(first, first + 60):
        rounds = [Rounding(), Moved(seed=seed), *(stressed(p, seed) for p in PATTERNS)]
        for to in rounds:
            got, budget = held_and_budget(seed, to)
            off = np.abs(got - budget.exact) - budget.own
            assert (off <= budget.error * (1 + 1e-9)).all(), (seed, to.pattern)
            some = budget.error > 0
            worst = max(worst, float((off[some] / budget.error[some]).max(initial=0.0)))
            if to.pattern == "nearest":  # half steps are no numbers of float32
                apart = np.abs(got - budget.near)
                assert (apart <= budget.open).all(), (seed, to)
    assert worst > 0.9


def test_most_features_of_16_bits_are_decided():
    """An interval of 2^-20 against steps of 2^-10 and 2^-7, and one of the angle, exact here."""
    for dtype, least in (("float16", 0.98), ("bfloat16", 0.998)):
        rng = np.random.default_rng(0)
        x = widen(stored(rng.standard_normal((1, 2, 50, 32)), dtype))
        stages = {**STAGES, "angle": "exact", "block_k": 16, "softplus_error": 0.0}
        grant = Grant.of(dtype, stages)
        places = rng.integers(0, 2**40, 50).reshape(1, 1, -1, 1)
        turned = turning(places, 1e4 ** (-np.arange(32) / 32), None, grant, False)
        found = polar(magnitude(x, grant), turned, x[..., :0], grant)
        assert (found.open == 0).mean() > least


def test_zeros_fill_up_blocks_and_nothing_is_lost():
    x = np.arange(1.0, 6.0).reshape(1, 1, 5)
    c, s = np.ones((1, 1, 2)), np.zeros((1, 1, 2))
    grant = Grant.of("float16", {**STAGES, **{"angle": "exact", "block_k": 16}})
    still = turning(np.zeros((1, 1), np.int64), np.ones(2), None, grant, False)
    assert all(
        (t.value == v).all() and not t.error.any() for t, v in zip(still, (c, s), strict=True)
    )
    whole = polar(magnitude(x[..., :2], grant), still, x[..., 2:], grant)
    for order, width in (("joined", 7), ("interleaved", 7), ("blocks", 48)):
        found = ordered(whole, 2, order)
        assert found.exact.shape == (1, 1, width)
        assert sorted(found.exact[found.exact != 0]) == sorted(whole.exact[whole.exact != 0])
    pairs = ordered(whole, 2, "interleaved").exact[0, 0]
    assert pairs[1] == pairs[3] == 0
    blocks = ordered(whole, 2, "blocks").exact[0, 0]
    assert (blocks[32:35] == x[0, 0, 2:]).all()


def test_a_magnitude_at_the_end_of_float16_does_not_overflow_unless_its_error_reaches_it():
    x = np.full((1, 1, 1, 1), 65504.0)
    for ulps, finite in ((2.0**10, True), (2.0**14, False)):
        stages = {**STAGES, "angle": "exact", "block_k": 16, "softplus_ulp": ulps}
        grant = Grant.of("float16", stages)
        still = turning(np.zeros((1, 1, 1, 1), np.int64), np.ones(1), None, grant, False)
        found = polar(magnitude(x, grant), still, x[..., :0], grant)
        assert np.isfinite(found.error[..., 0]).all() == finite
        assert np.isfinite(found.near).all()


def test_a_table_of_16_bits_times_a_magnitude_of_16_bits_is_rounded_once():
    """11 and 11 bits: in float32 the product is exact, so that ties go to even."""
    fmt = FORMATS["float16"]
    stages = {**STAGES, "angle": "exact", "block_k": 16, "table": "input", "magnitude": "input",
              "trig_ulp": 0.5, "softplus_ulp": 0.5, "softplus_error": 0.0}  # fmt: skip
    grant = Grant.of("float16", stages)
    x = widen(stored(30 + np.random.default_rng(0).random((1, 1, 400, 8)), "float16"))
    places = np.arange(400).reshape(1, 1, -1, 1)
    turned = turning(places, np.ones(8), None, grant, False)
    found = polar(magnitude(x, grant), turned, x[..., :0], grant)
    table = fmt.round(np.cos(places.astype(np.float64)))
    product = x * table
    tie = np.abs(product - fmt.round(product)) == fmt.half_ulp(product)
    assert tie.any()
    assert (found.open[..., :8][tie] == 0).all()
    assert (found.near[..., :8][tie] == fmt.round(product)[tie]).all()
