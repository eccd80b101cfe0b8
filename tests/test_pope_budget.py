"""The budget of `pope_attention` on simulated kernels: never exceeded, and tight.

Families, and why: docs/error-budgets.md, section pope_attention.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from pope_shares import KNOWN, LIGHT, NARROW, case, features, shares, spent
from simulated_attention import Kernel, Rounding, dot, stressed
from simulated_pope import Features, Moved, problem_with

from tightrope import Arithmetic
from tightrope.formats import FORMATS, stored, widen
from tightrope.oracles import attention_budget
from tightrope.oracles.pope_attention import CONTRACT
from tightrope.oracles.pope_attention_budget import STAGES, polar_scores
from tightrope.oracles.pope_attention_problem import right
from tightrope.oracles.pope_features import magnitude, polar
from tightrope.oracles.pope_features_angle import angle_error, turning
from tightrope.oracles.pope_features_stages import Grant


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("stages", [KNOWN, LIGHT], ids=["sharp", "light"])
@pytest.mark.parametrize("data", ["normal", "times_3", "delicate"])
def test_t0_is_tight_where_a_score_has_few_features(data, stages, dtype):
    found = []
    for seed in range(20):
        kernel = features(stages, dtype, Moved(seed=seed))
        found.append(shares(case(seed, dtype=dtype, data=data, **NARROW), stages, kernel))
    assert np.max(found) <= 1
    assert 0.25 <= np.median(found, 0)[0] < 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("stages", [KNOWN, LIGHT], ids=["sharp", "light"])
@pytest.mark.parametrize("data", ["normal", "times_3", "rising", "delicate", "thresholds"])
def test_t1_is_tight(data, stages, dtype):
    found = []
    for seed in range(4):
        kernel = features(stages, dtype, Moved(seed=seed))
        found.append(shares(case(seed, dtype=dtype, data=data), stages, kernel))
    assert np.max(found) <= 1
    assert np.median(found, 0)[1] >= 0.5


STRANGERS = [
    {"form": "A"}, {"form": "B", "fused": True}, {"form": "C", "features": "input"},
    {"form": "C", "fused": True, "double": False}, {"angle": "float64"}, {"magnitude": "float32"},
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("data", ["normal", "times_3", "delicate", "thresholds"])
def test_an_honest_stranger_is_not_called_wrong(data, dtype):
    for seed, more in enumerate(STRANGERS):
        start, sign = (0, 300, 2**17, -(2**20))[seed % 4], (-1, 1)[seed // 3 % 2]
        c = case(seed, dtype=dtype, data=data, start=start, exponent_sign=sign, rotary_dim=24)
        for to in (Moved(seed=seed), stressed("random", seed)):
            kernel = Features(dtype, to, trig_ulp=2.5, softplus_ulp=6.5, **more)
            attention = Kernel(64, "sequential", to=Rounding())
            assert max(shares(c, {}, kernel, attention)) <= 1


def orders(dtype):
    if dtype == "float32":
        return [("joined", "sequential")]
    return [(how, "hopper") for how in ("joined", "interleaved", "blocks")] + [
        ("any", "sequential")
    ]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_no_order_of_the_features_exceeds_its_bound(dtype):
    worst = 0.0
    for seed in range(8):
        rng = np.random.default_rng(seed)
        data = ("normal", "delicate", "outliers", "times_3")[seed % 4]
        width = int(rng.choice([5, 16, 23, 32]))
        c = case(seed, dtype=dtype, data=data, rotary_dim=width)
        inputs = CONTRACT.inputs(c)
        p = right(c, inputs)
        for order, how in orders(dtype):
            stages = {**STAGES, **KNOWN, "trig_ulp": 2.5, "softplus_ulp": 6.5}
            stages["feature_order"] = order
            rest = {n: stages[n] for n in attention_budget.STAGES}
            found = polar_scores(c, inputs, p, rest, Grant.of(dtype, stages))
            for to in (Moved(seed=seed), stressed("up", seed), stressed("random", seed)):
                made = problem_with(p, c, inputs, features(stages, dtype, to), order)
                nothing = np.zeros((*made.q.shape[:2], made.k.shape[1]))
                s = dot(made.q, made.k.swapaxes(-1, -2), nothing, how, to, FORMATS[dtype])
                pairs = [(found.centre, found.error)]
                # half steps are no float32 numbers, of which T1 knows that features are made
                if found.replay_centre is not None and to.pattern == "nearest":
                    pairs.append((found.replay_centre, found.replay_error))
                for centre, error in pairs:
                    off = (np.abs(s - centre) - found.own)[p.visible]
                    worst = max(worst, spent(off, error[p.visible]))
    assert 0.3 < worst <= 1


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_no_angle_is_off_by_more_than_its_bound(name):
    """In rational arithmetic, at any position."""
    rng = np.random.default_rng(0)
    fmt = FORMATS[name]
    grant = Grant.of("float16", {**STAGES, "angle": name})
    worst = 0.0
    for bits in (3, 10, 24, 25, 40, 53, 60, 62):
        m = rng.integers(-(2**bits), 2**bits, 40)
        w = rng.choice([1.0, 10.0, 100.0], 40) ** -rng.random(40)
        w = widen(stored(w, ("float32", "float64")[bits % 2]))
        d = widen(stored(rng.uniform(-7, 7, 40) * (rng.random(40) < 0.7), "float32"))
        bound = angle_error(m, w, d, grant)
        near = m.astype(fmt.dtype) * w.astype(fmt.dtype)
        got = (near + d.astype(fmt.dtype)).astype(np.float64)
        for i in range(40):
            exact = Fraction(int(m[i])) * Fraction(w[i]) + Fraction(d[i])
            error = min(float(abs(Fraction(got[i]) - exact)), 4.0)
            assert error <= bound[i]
            worst = max(worst, error / bound[i]) if 0 < bound[i] < 4 else worst
    assert worst > 0.5


@pytest.mark.parametrize(
    ("stage", "value"),
    [("angle", "float16"), ("table", "float8"), ("phase", "both"), ("trig_ulp", 0.1),
     ("softplus_ulp", 0.0), ("softplus_error", -1.0), ("angle_error", 0.5), ("features", "tf32"),
     ("magnitude", "half"), ("feature_order", "random"), ("dot", "exact")],
)  # fmt: skip
def test_an_unknown_stage_value_is_refused(stage, value):
    c = case()
    with pytest.raises(ValueError, match=stage):
        CONTRACT.budget(c, CONTRACT.inputs(c), Arithmetic(**{stage: value}).over(STAGES))


def test_a_16_bit_table_is_replayed_also_where_features_stay_in_float32():
    """What is left is of float32; the worst case has 2^-11 of every cosine."""
    c = case(dtype="float32")
    inputs = CONTRACT.inputs(c)
    p = right(c, inputs)
    rest = {n: {**STAGES, **LIGHT}[n] for n in attention_budget.STAGES}
    found = polar_scores(c, inputs, p, rest, Grant.of("float32", {**STAGES, **LIGHT}))
    assert np.median((found.error / found.replay_error)[p.visible]) > 20
    plain = Grant.of("float32", {**STAGES, **LIGHT, "table": "float32"})
    assert polar_scores(c, inputs, p, rest, plain).replay_centre is None


def test_a_stranger_may_flush_small_products():
    """bfloat16 features of 2^-127, lost; a known schedule would have to say so by itself."""
    x = np.full((1, 1, 1, 1), -88.0)
    for block, right_one in ((None, True), (16, False)):
        stages = {**STAGES, "angle": "exact", "block_k": block, "exp_flush": True}
        stages |= {"softplus_error": 0.0, "softplus_ulp": 0.5}
        grant = replace(Grant.of("bfloat16", stages), lost=0.0)
        still = turning(np.zeros((1, 1, 1, 1), np.int64), np.ones(1), None, grant, False)
        found = polar(magnitude(x, grant), still, x[..., :0], grant)
        assert (found.error[..., 0] >= found.exact[..., 0]).all() == right_one


@pytest.mark.parametrize(
    ("dtype", "value", "ulps"),
    [("float16", 65504.0, 2.0**14), ("bfloat16", 3e38, 10.0), ("float32", 3.4e38, 10.0)],
)
def test_a_row_that_may_overflow_has_no_bound_and_the_others_keep_theirs(dtype, value, ulps):
    c = case(dtype=dtype)
    inputs = CONTRACT.inputs(c)
    # hopper_mma raises small operands to 2^-60 of the largest one of all rows
    stages = Arithmetic(**{**LIGHT, "softplus_ulp": ulps, "dot": "any"}).over(STAGES)
    calm = CONTRACT.budget(c, inputs, stages)
    inputs["q"][0, 1, 3, 5] = value
    found = CONTRACT.budget(c, inputs, stages)
    for name in ("out", "lse"):
        bound = found[name].bound
        assert np.isinf(bound[0, 1, 3]).all()
        assert np.isfinite(np.delete(bound[0, 1], 3, 0)).all()
        assert not np.isnan(found[name].oracle).any()
        rest = [0, 2, 3]
        assert np.array_equal(bound[0, rest], calm[name].bound[0, rest])


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("empty", [{"seqlen_k": 0}, {"seqlen_q": 0}, {"batch": 0}])
def test_without_keys_or_rows_nothing_may_be_off(empty, dtype):
    c = case(dtype=dtype, causal=False, q_offset=0, **empty)
    for stages in (KNOWN, LIGHT, {}):
        inputs = CONTRACT.inputs(c)
        found = CONTRACT.budget(c, inputs, Arithmetic(**stages).over(STAGES))
        assert found["out"].expected.shape == (c.batch, c.num_heads, c.seqlen_q, c.head_dim_v)
        assert not found["out"].bound.any()
        assert np.isneginf(found["lse"].expected).all()
