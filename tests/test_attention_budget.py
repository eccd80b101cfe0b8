"""The budget of attention on simulated kernels: never exceeded, tight, and sharp against faults.

Families, and why: docs/error-budgets.md, section attention.
"""

from __future__ import annotations

import numpy as np
import pytest
from attention_draws import family, mixture
from simulated_attention import PATTERNS, Kernel, Rounding, stressed

from tightrope.formats import FORMATS
from tightrope.oracles import attention_rows
from tightrope.oracles.attention_budget import STAGES, Scores, forward
from tightrope.oracles.attention_dots import scores
from tightrope.oracles.attention_numbers import half_ulp, lowest_bit, rounded
from tightrope.oracles.attention_problem import Problem
from tightrope.oracles.attention_stages import Stages
from tightrope.verdict import judge

KNOWN = {
    "dot": "hopper_mma", "block_k": 16, "logits": "scaled", "lse": "base2", "sink": "start",
}  # fmt: skip


def spent(error, bound):
    """The largest error / bound; 0 / 0 is 0."""
    with np.errstate(all="ignore"):
        return float(np.max(np.where(error == 0, 0.0, error / bound), initial=0.0))


def shares(problem, arithmetic, kernel):
    """Worst shares of T0, T1 (0 where there is none) and lse, before the last rounding."""
    found = forward(problem, arithmetic)
    with np.errstate(all="ignore"):
        out, lse = kernel(problem)
        worst = spent(np.abs(out - found.out.expected), found.out.bound + found.out.oracle)
        again = found.out.replay
        replayed = 0.0 if again is None else spent(np.abs(out - again.centre), again.radius)
        live = found.lse.expected > -np.inf
        off = np.where(live, lse - np.where(live, found.lse.expected, 0.0), 0.0)
    assert (lse[~live] == -np.inf).all()
    return worst, replayed, spent(np.abs(off), found.lse.bound + found.lse.oracle)


def schedules(seed, problem):
    """An arithmetic and a kernel that keeps it, apart from its roundings."""
    rng = np.random.default_rng(seed + 10**6)
    order = "hopper" if problem.dtype != "float32" and rng.integers(2) else "sequential"
    block, normalised = int(rng.choice([1, 2, 16, 16, 20, 32])), not rng.integers(4)
    plain = problem.softcap is None and problem.bias is None and problem.sink is None
    lse = "natural" if plain and not rng.integers(3) else "base2"
    sink, flush = ("start", "end")[int(rng.integers(2))], bool(rng.integers(4))
    arithmetic = {
        "block_k": block, "dot": "hopper_mma" if order == "hopper" else "any", "logits": "scaled",
        "accumulator": "normalised" if normalised else "unnormalised", "exp_flush": flush,
        "lse": lse, "sink": sink,
    }  # fmt: skip
    choice = int(rng.integers(5))
    if choice == 0:  # a stranger
        arithmetic = {key: arithmetic[key] for key in ("accumulator", "exp_flush")}
    elif choice < 3:
        arithmetic |= ({"sink": "any", "lse": "any"}, {"logits": "any"})[choice - 1]
    kernel = Kernel(block, order, normalised=normalised, lse=lse, sink=sink)
    if problem.dtype == "float32":
        kernel.precision = arithmetic["dot_precision"] = ("ieee", "tf32", "tf32x3")[seed // 3 % 3]
    return arithmetic, kernel, flush


@pytest.mark.parametrize("first", range(0, 160, 40))
def test_full_half_ulp_steps_in_any_direction_stay_within_the_budget(first):
    worst = np.zeros(3)
    for seed in range(first, first + 40):
        kind, problem = mixture(seed)
        arithmetic, kernel, flush = schedules(seed, problem)
        for pattern in ("nearest", *PATTERNS):
            kernel.to = Rounding() if pattern == "nearest" else stressed(pattern, seed)
            kernel.to.flush = flush
            found = shares(problem, arithmetic, kernel)
            assert max(found) <= 1 + 1e-9, (seed, kind, pattern, arithmetic, found)
            worst = np.maximum(worst, found)
    assert (worst > 0.5).all()  # the stress reaches the budget, so it could have exceeded it


FAMILIES = [
    (kind, dtype)
    for kind in ("normal", "times_3", "all_negative", "rising", "outliers")
    for dtype in ("bfloat16", "float16")
]


@pytest.mark.parametrize(("kind", "dtype"), FAMILIES)
def test_both_budgets_are_tight_on_the_designated_families(kind, dtype):
    found = [shares(family(kind, dtype, seed), KNOWN, Kernel()) for seed in range(20)]
    medians = np.median(found, 0)
    assert np.max(found) <= 1
    assert medians[0] >= 0.25
    assert medians[1] >= 0.5


FAULTS = (
    *("P truncated", "P not rounded", "l from rounded P", "alpha in bf16", "acc in bf16"),
    *("acc not rescaled", "block not in l"),
)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_one_rounding_is_rejected_by_the_replay(fault, dtype):
    for seed in range(3):
        problem = family("few_bits", dtype, seed, groups=1)
        assert max(shares(problem, KNOWN, Kernel())) <= 1
        assert shares(problem, KNOWN, Kernel(fault=fault))[1] > 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_scores_kept_in_fp16_are_rejected_where_they_are_not_exact(dtype):
    for seed in range(3):
        found = shares(
            family("normal", dtype, seed, groups=1), KNOWN, Kernel(fault="scores in fp16")
        )
        assert found[1] > 1
        assert found[2] > 1  # lse alone shows it


def test_a_stranger_is_not_called_wrong_for_a_block_size_or_an_order():
    for seed in range(6):
        problem = family("normal", "float16", seed, groups=1)
        for block in (1, 16, 64):
            for order in ("blas", "hopper"):
                assert max(shares(problem, STAGES, Kernel(block, order))) <= 1


def test_materialised_weights_may_be_divided_and_rounded_before_they_meet_v():
    problem = family("normal", "float16", 1, groups=1)
    s = (problem.q @ problem.k.swapaxes(-1, -2) * problem.softmax_scale).astype(np.float32)
    s = np.where(problem.visible, s, np.float32(-np.inf))
    p = np.exp(s - s.max(-1, keepdims=True))
    w = FORMATS["float16"].round((p / p.sum(-1, keepdims=True)).astype(np.float64))
    assert forward(problem, STAGES).out.inside((w @ problem.v).astype(np.float32)).all()


def test_rows_without_a_key_are_exact_and_their_lse_is_minus_infinity():
    problem = family("normal", "bfloat16", 0, rows=70, keys=20)  # bottom-right: 50 rows see nothing
    out, lse = Kernel()(problem)
    assert np.isneginf(lse).any()
    for arithmetic in (KNOWN, STAGES):
        found = forward(problem, arithmetic)
        empty = ~problem.visible.any(-1)
        assert (found.out.bound[empty] == 0).all()
        assert (found.lse.bound[empty] == 0).all()
        for name, actual, budget in (("out", out, found.out), ("lse", lse, found.lse)):
            actual = FORMATS["float32"].round(actual).astype(np.float32)
            assert judge(name, actual, budget).ok
            broken = actual.copy()
            broken[0, 0] = 1e-30
            verdict = judge(name, broken, budget, lambda flat: [None] * len(flat))
            assert not verdict.ok
            broken[0, 0] = np.nan
            assert not judge(name, broken, budget).ok


def test_no_keys_at_all():
    empty = Problem(*(np.zeros((2, n, 8)) for n in (3, 0, 0)), np.zeros((2, 3, 0), bool), 1.0,
                    "float16", "float16", sink=np.array([1.0, -2.0]))  # fmt: skip
    for arithmetic in (KNOWN, STAGES, {**KNOWN, "sink": "end"}):
        found = forward(empty, arithmetic)
        assert (found.out.expected == 0).all()
        assert (found.out.bound == 0).all()
        off = np.abs(found.lse.expected - [[1.0] * 3, [-2.0] * 3])
        assert (off <= found.lse.oracle).all()
        assert (found.lse.bound > 0).all()


@pytest.mark.parametrize("where", ["q", "v"])
def test_what_may_overflow_has_no_bound(where):
    problem = family("normal", "bfloat16", 0, groups=1)
    getattr(problem, where)[...] *= 2.0**127
    for arithmetic in (KNOWN, STAGES):
        found = forward(problem, arithmetic)
        assert np.isinf(found.out.bound).all()
        assert np.isfinite(found.out.oracle).all()
        assert np.isinf(found.lse.bound).all() == (where == "q")


def test_weights_of_which_nothing_is_known_leave_an_infinite_bound():
    problem = family("times_30", "float32", 0, groups=1)
    wide = Scores(*(problem.q @ problem.k.swapaxes(-1, -2) * x for x in (1.0, 0.0)))
    sure, unsure = (
        forward(problem, KNOWN, Scores(wide.centre, wide.error + e)) for e in (0.0, 60.0)
    )
    assert np.isfinite(sure.out.bound).all()
    assert np.isinf(unsure.out.bound).mean() > 0.5  # a bound cut at some size would be unsound


def test_a_sink_of_unknown_place_is_allowed_at_both_ends():
    keys = np.array([[[1.0], [-90.0]]])
    problem = Problem(np.ones((1, 1, 1)), keys, 0.0 * keys + 1e30, np.ones((1, 1, 2), bool), 1.0,
                      "bfloat16", "float32", sink=np.array([80.0]))  # fmt: skip
    found = forward(problem, {**KNOWN, "sink": "any"})
    assert found.out.replay is None
    for place in ("start", "end"):
        one = forward(problem, {**KNOWN, "sink": place})
        for wide, budget in ((found.out, one.out), (found.lse, one.lse)):
            assert all((wide.terms[name] >= term).all() for name, term in budget.terms.items())


def test_given_scores_give_the_budget_of_q_and_k():
    problem = family("normal", "bfloat16", 3)
    own = scores(problem.q, problem.k, Stages.of(problem, KNOWN))
    given = Scores(own.centre, own.error, own.own, own.centre, own.error)
    a, b = forward(problem, KNOWN), forward(problem, KNOWN, given)
    assert np.array_equal(a.out.bound, b.out.bound)
    assert np.array_equal(a.out.replay.radius, b.out.replay.radius)
    assert np.array_equal(a.lse.bound, b.lse.bound)


def test_chunks_of_keys_do_not_change_the_budget(monkeypatch):
    problem = family("normal", "bfloat16", 5, keys=200)
    for arithmetic in (KNOWN, {**KNOWN, "block_k": 20}, STAGES):
        whole = forward(problem, arithmetic)
        monkeypatch.setattr(attention_rows, "CHUNK", 4 * 20 * 40)
        parts = forward(problem, arithmetic)
        monkeypatch.undo()
        for a, b in ((whole.out, parts.out), (whole.lse, parts.lse)):
            assert (np.abs(a.expected - b.expected) <= a.oracle + b.oracle).all()
            assert (np.abs(a.bound - b.bound) <= 2.0**-20 * a.bound).all()


@pytest.mark.parametrize(
    "stages",
    [{"dot": "exact"}, {"p": "float8"}, {"block_k": 0}, {"sink": "middle"}, {"exp_ulp": 0.1},
     {"colour": "red"}, {"block_k": True}],
)  # fmt: skip
def test_an_unknown_stage_value_is_named(stages):
    with pytest.raises(ValueError, match=next(iter(stages))):
        forward(family("normal", "float16", 0, groups=1), stages)


def test_fast_roundings_agree_with_the_formats():
    rng = np.random.default_rng(0)
    x = rng.standard_normal(4000) * 2.0 ** rng.integers(-160, 100, 4000)
    for name in ("float32", "float16", "bfloat16"):
        fmt = FORMATS[name]
        kept = np.where(np.abs(x) < fmt.largest / 2, x, 0.0)
        assert np.array_equal(half_ulp(kept, fmt), fmt.half_ulp(kept))
        assert np.array_equal(rounded(kept, fmt), fmt.round(kept))
        assert np.array_equal(rounded(kept, fmt, True), fmt.truncate(kept))
    assert lowest_bit(np.array([12.0, -0.75, 0.0])).tolist() == [4.0, 0.25, np.inf]
