"""Corners of the budget of attention: underflow, hidden keys, strangers' own ways; a case each."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from attention_draws import family
from test_attention_budget import KNOWN, spent

from tightrope.formats import FORMATS
from tightrope.oracles.attention_budget import STAGES, forward
from tightrope.oracles.attention_dots import scores
from tightrope.oracles.attention_numbers import NORMAL, TF32, U, half_ulp
from tightrope.oracles.attention_problem import Problem
from tightrope.oracles.attention_replay import Accumulators
from tightrope.oracles.attention_stages import Stages


def two_keys(t, v, dtype="float32", **more):
    """One row of one feature with two keys, scores (0, t), v (0, v)."""
    k, v = (np.array([0.0, x]).reshape(1, 2, 1) for x in (t, v))
    return Problem(np.ones((1, 1, 1)), k, v, np.ones((1, 1, 2), bool), 1.0, dtype, "float32",
                   **more)  # fmt: skip


def split(x):
    """The two tf32 parts of x: the first to nearest, the second truncated."""
    big = TF32.round(x)
    return big, TF32.truncate(x - big)


@pytest.mark.parametrize("block", [16, None])
def test_subnormal_small_parts_of_p_are_granted_to_three_tf32_products(block):
    worst, rng, rnd = 0.0, np.random.default_rng(0), FORMATS["float32"].round
    for _ in range(100):
        t, v = (float(np.float32(x)) for x in (-rng.uniform(80, 87.3), rng.uniform(100, 6e4)))
        problem = two_keys(t, v)
        p = rnd(np.exp2(rnd(problem.k[0, :, 0] * float(np.float32(np.log2(np.e))))))
        (big, small), (v_big, v_small) = split(p), split(problem.v[0])
        out = (small @ v_big + big @ v_small + big @ v_big) / p.sum()
        least = {"dot_precision": "tf32x3", "block_k": block, "exp_ulp": 0.5, "division_ulp": 0.5}
        known = {**KNOWN, "dot": "any", **least}
        found = forward(problem, known if block else {**least, "exp_flush": False}).out
        worst = max(worst, spent(np.abs(out - found.expected), found.bound + found.oracle))
    assert worst <= 1
    assert block is None or worst > 0.25


def test_weights_that_are_divided_first_may_be_flushed():
    problem = two_keys(-86.9, 1e6)
    more = np.zeros((1, 2, 1))
    problem = replace(
        problem,
        k=np.concatenate([more, problem.k], 1),
        v=np.concatenate([more, problem.v], 1),
        visible=np.ones((1, 1, 4), bool),
    )
    p = np.exp(problem.k[0, :, 0])
    w = p / p.sum()
    assert p.min() > NORMAL > w.min()
    out = np.where(w < NORMAL, 0.0, w) @ problem.v[0]
    assert forward(problem, STAGES).out.inside(out.astype(np.float32)[None, None]).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("flush", [True, False])
def test_a_query_that_is_scaled_first_may_become_subnormal(flush, dtype):
    q, k = np.full((1, 1, 64), 2.0**-126), np.full((1, 2, 64), 2.0**118)
    if not flush:
        q, k = q * 2.0**-7, k * 2.0**9
    k[:, 1] *= -1
    v = np.array([1.0, -1.0]).reshape(1, 2, 1)
    problem = Problem(q, k, v, np.ones((1, 1, 2), bool), 0.005, dtype, "float32")
    turned = (q * 0.005).astype(np.float32).astype(np.float64)
    s = (np.where(np.abs(turned) < NORMAL, 0.0, turned) if flush else turned) @ k.swapaxes(1, 2)
    p = np.exp(s - s.max())
    out = (p @ v / p.sum()).astype(np.float32)
    found = forward(problem, {**STAGES, "exp_flush": flush}).out
    assert found.inside(out).all()
    unscaled = {**STAGES, "exp_flush": flush, "logits": "scaled", "p": "float32"}
    assert not forward(problem, unscaled).out.inside(out).all()


def test_tf32_of_scaled_operands_replays_nothing_of_q_and_k():
    problem = family("normal", "float32", 0, groups=1)
    for logits in ("scaled", "any"):
        stages = Stages.of(problem, {**KNOWN, "logits": logits, "dot_precision": "tf32"})
        found = scores(problem.q, problem.k, stages)
        assert (found.replay_centre is None) == (logits == "any")


@pytest.mark.parametrize(("dtype", "huge"), [("float16", 6e4), ("bfloat16", 2.0**115)])
def test_a_hidden_key_costs_nothing_however_large_its_value(dtype, huge):
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, n, 16)) for n in (4, 32, 32))
    q, k, v = (FORMATS[dtype].round(x) for x in (q, k, 1e-3 * v))
    visible = np.ones((1, 4, 32), bool)
    visible[:, :, 5] = False
    radii = []
    for x in (0.0, huge):
        v[:, 5] = FORMATS[dtype].round(np.float64(x))
        problem = Problem(q, k, v, visible, 0.25, dtype, "float32")
        found = forward(problem, KNOWN).out
        radii.append((found.terms["accumulation"], found.replay.radius))
    for a, b in zip(*radii, strict=True):
        assert np.array_equal(a, b)


def test_only_the_rows_that_see_a_value_may_overflow_by_it():
    rng = np.random.default_rng(0)
    q, k, v = (FORMATS["bfloat16"].round(rng.standard_normal((1, n, 16))) for n in (4, 32, 32))
    visible = np.ones((1, 4, 32), bool)
    visible[:, 1:, 5] = False
    v[:, 5, 3] = 2.0**127
    found = forward(Problem(q, k, v, visible, 0.25, "bfloat16", "float32"), KNOWN).out
    without_bound = np.isinf(found.bound)
    assert without_bound[0, 0, 3]
    assert without_bound.sum() == 1


@pytest.mark.parametrize("sign", [-1, 1])
def test_softcap_may_be_written_with_a_sigmoid(sign):
    worst = 0.0
    for y in np.linspace(0.05, 3.0, 60):
        score = float(np.float32(5 * y)) * sign
        one = two_keys(0.0, 1.0, softcap=5.0)
        problem = replace(one, k=one.k[:, 1:] + score, v=one.v[:, 1:], visible=one.visible[..., 1:])
        found = forward(problem, STAGES).lse
        for side in (-1, 1):  # every rounding in one direction, the quotient by 2.5 ulp
            e = np.exp(-2 * score / 5)
            d = 1 + e * (1 - side * 2 * 2.5 * U)
            d = d - side * half_ulp(d)
            s = 1 / d
            s = 2 * (s + side * 2 * 2.5 * half_ulp(s))
            z = s - 1 + side * half_ulp(s - 1)
            z = 5 * z + side * half_ulp(5 * z)
            off = np.abs(z - found.expected)
            worst = max(worst, spent(off, found.bound + found.oracle))
    assert 0.25 < worst <= 1


def test_lse_counts_how_far_the_maximum_lies_from_its_float32():
    one = two_keys(0.0, 1.0)
    k = one.k[:, 1:] + 2.0**20 + 1
    problem = replace(one, k=k, v=one.v[:, 1:], visible=one.visible[..., 1:])
    top = (2.0**20 + 1) * np.log2(np.e)
    away = np.abs(top - float(np.float32(top)))
    found = forward(problem, KNOWN).lse.terms["logarithm"]
    assert away > 2.0**-6
    assert (found >= np.log(2.0) * 2 * STAGES["log_ulp"] * half_ulp(away)).all()


def test_the_factor_that_rescales_a_normalised_accumulator_is_off_by_u():
    stages = Stages.of(two_keys(0.0, 1.0), {**KNOWN, "dot": "any", "accumulator": "normalised"})
    state = Accumulators.empty((1, 1, 1), True, stages)
    state.centre, state.used = state.centre + 3.98, ~state.used
    one = np.ones((1, 1, 1))
    state._rescale(SimpleNamespace(changed=one > 0, alpha=one / 2, alpha_error=0 * one), 0)
    assert (state.error >= 1.99 * U).all()
