"""The budget of `attention_backward` on simulated kernels: never exceeded, tight, and sharp.

Families, and why: docs/error-budgets.md, section attention_backward.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from attention_draws import family
from simulated_attention import FLOAT32, PATTERNS, Kernel, Rounding, stressed
from simulated_attention_backward import Backwards, given, mixed

from tightrope.formats import FORMATS
from tightrope.oracles.attention_backward_budget import STAGES, backward
from tightrope.oracles.attention_problem import attend

OUTPUTS = ("dq", "dk", "dv")
SCALED = {"state": "given", "logits": "scaled", "heads": "summed"}
HOPPER = {**SCALED, "dot": "hopper_mma"}
GRADIENTS = ("bfloat16", "float16")


def spent(error, bound):
    """The largest error / bound; 0 / 0 is 0, and an infinite bound is never spent."""
    with np.errstate(all="ignore"):
        share = np.where((error == 0) | np.isinf(bound), 0.0, error / bound)
    return float(np.max(np.where(np.isnan(share), np.inf, share), initial=0.0))


def shares(b, arithmetic, kernel, used=None):
    """Worst shares of T0 and of T1 (0 where there is none) of dq, dk, dv, before the last rounding.

    used: what the kernel takes, where it is not what it is given.
    """
    found = backward(b, arithmetic)
    with np.errstate(all="ignore"):
        outputs = dict(zip(OUTPUTS, kernel(used or b), strict=True))
    worst, again = [], []
    for name, x in outputs.items():
        budget = found[name]
        worst.append(spent(np.abs(x - budget.expected), budget.bound + budget.oracle))
        replay = budget.replay
        again.append(0.0 if replay is None else spent(np.abs(x - replay.centre), replay.radius))
    return np.array(worst), np.array(again)


def every_pattern(seed):
    """Roundings to nearest, and moved by full steps in every pattern; flushing in four of five."""
    for pattern in ("nearest", *PATTERNS):
        to = Rounding() if pattern == "nearest" else stressed(pattern, seed)
        to.flush = bool(seed % 5)
        yield pattern, to


@pytest.mark.parametrize("first", [0, 40])
def test_full_half_ulp_steps_in_any_direction_stay_within_the_budget(first):
    worst = np.zeros(6)
    for seed in range(first, first + 40):
        kind, b = mixed(seed)
        hopper = b.forward.dtype != "float32" and seed % 2
        arithmetic = {**(HOPPER if hopper else SCALED), "exp_flush": bool(seed % 5)}
        for pattern, to in every_pattern(seed):
            kernel = Backwards("hopper" if hopper else "sequential", to)
            found = np.concatenate(shares(b, arithmetic, kernel))
            assert found.max() <= 1 + 1e-9, (seed, kind, pattern, arithmetic, found)
            worst = np.maximum(worst, found)
    assert (worst > 0.7).all()  # the stress reaches the budget, so it could have exceeded it


def test_a_kernel_that_runs_its_own_forward_pass_stays_within_what_a_stranger_is_granted():
    """Its own out and lse, moved by full steps as well, in place of those that are given."""
    worst = np.zeros(3)
    for seed in range(30):
        kind, b = mixed(seed)
        order = "hopper" if b.forward.dtype != "float32" and seed % 2 else "sequential"
        for pattern, to in every_pattern(seed):
            with np.errstate(all="ignore"):
                out, lse = Kernel(order=order, to=to)(b.forward)
            out, lse = FORMATS[b.forward.dtype].round(out), FLOAT32.round(lse)
            own = replace(b, out=out, lse=np.where(np.isfinite(lse), lse, 0.0))
            found, _ = shares(b, {"exp_flush": to.flush}, Backwards(order, to), own)
            assert found.max() <= 1, (seed, kind, pattern, found)
            worst = np.maximum(worst, found)
    assert (worst > 0.3).all()


def designated(kind, dtype, seed):
    """One case of a designated family: docs/error-budgets.md, attention_backward."""
    return given(family(kind, dtype, seed), 4 if seed % 2 else 1, seed)


@pytest.mark.parametrize("dtype", GRADIENTS)
@pytest.mark.parametrize("kind", ["normal", "times_3", "rising"])
def test_both_budgets_are_tight_on_the_designated_families(kind, dtype):
    found = [shares(designated(kind, dtype, seed), HOPPER, Backwards()) for seed in range(20)]
    medians = np.median(found, axis=0)
    assert np.max(found) <= 1
    assert (medians[0] >= 0.25).all(), medians
    assert (medians[1] >= 0.5).all(), medians


FAULTS = {
    "P not rounded": (2,), "dS not rounded": (0, 1), "dS truncated": (0, 1),
    "dS from rounded P": (0, 1), "dP in 16 bits": (0, 1), "D in 16 bits": (0, 1),
    "D misses a feature": (0, 1), "lse in bf16": (0, 1, 2), "dq in 16 bits": (0,),
    "scale in 16 bits": (0, 1), "heads in 16 bits": (1, 2),
}  # fmt: skip


@pytest.mark.parametrize("dtype", GRADIENTS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_one_rounding_is_rejected_by_the_replay(fault, dtype):
    for seed in range(3):
        b = given(family("normal", dtype, seed, groups=2), 2, seed)
        if fault == "scale in 16 bits":  # which 32**-0.5, once squared, is not
            b = replace(b, forward=replace(b.forward, softmax_scale=0.3))
            out, lse = attend(b.forward)
            b = replace(b, out=FORMATS[dtype].round(out), lse=FLOAT32.round(lse))
        assert max(map(np.max, shares(b, HOPPER, Backwards()))) <= 1
        wrong = shares(b, HOPPER, Backwards(fault=fault))[1]
        assert (wrong[list(FAULTS[fault])] > 1).all(), wrong


GROSS = ("no D", "lse in base 2", "dk not scaled", "last head alone", "mask one key late")


@pytest.mark.parametrize("fault", GROSS)
def test_a_stranger_is_not_granted_a_mistake(fault):
    for seed in range(3):
        b = given(family("normal", "bfloat16", seed, groups=2), 2, seed)
        assert shares(b, STAGES, Backwards())[0].max() <= 1
        assert shares(b, STAGES, Backwards(fault=fault))[0].max() > 1


def test_a_stranger_may_store_the_gradients_of_heads_apart():
    b = given(family("normal", "float16", 0, groups=2), 2, 0)
    kernel = Backwards(fault="heads in 16 bits")
    assert shares(b, STAGES, kernel)[0].max() <= 1
    assert shares(b, HOPPER, kernel)[0].max() > 1


def test_rows_and_keys_that_see_nothing_leave_no_room():
    problem = family("normal", "bfloat16", 0, groups=1, rows=70, keys=20)  # 50 rows see nothing
    b = given(problem, 1, 0)
    for arithmetic in (HOPPER, STAGES):
        found = backward(b, arithmetic)
        empty = ~problem.visible.any(-1)
        assert (found["dq"].bound[empty] == 0).all()
        assert (found["dq"].bound[~empty] > 0).any()
        far = replace(b, forward=replace(problem, visible=problem.visible & (np.arange(20) < 7)))
        for name in ("dk", "dv"):
            assert (backward(far, arithmetic)[name].bound[:, 7:] == 0).all()


@pytest.mark.parametrize("name", ["q", "v"])
def test_what_may_overflow_has_no_bound(name):
    problem = family("normal", "bfloat16", 0, groups=1)
    getattr(problem, name)[...] *= 2.0**127
    b = given(family("normal", "bfloat16", 0, groups=1), 1, 0)
    found = backward(replace(b, forward=problem), HOPPER)
    assert np.isinf(found["dq"].bound).any()
    assert np.isinf(found["dk"].bound).any()
    assert all(np.isfinite(np.broadcast_to(x.oracle, x.expected.shape)).all() for x in (
        found["dq"], found["dk"], found["dv"]))  # fmt: skip


def test_ds_beyond_float16_has_no_bound():
    b = given(family("normal", "float16", 0, groups=1), 1, 0)
    large = replace(b.forward, v=b.forward.v * 2.0**6)
    b = replace(b, forward=large, dout=b.dout * 2.0**10)
    found = backward(b, HOPPER)
    assert np.isinf(found["dq"].bound).any()
    assert np.isfinite(found["dv"].bound).all()


@pytest.mark.parametrize(
    "stages",
    [{"state": "own"}, {"heads": "mixed"}, {"ds": "float8"}, {"p": "int8"}, {"dot": "exact"},
     {"block_k": 16}, {"exp_ulp": 0.1}],
)  # fmt: skip
def test_an_unknown_stage_value_is_named(stages):
    with pytest.raises(ValueError, match=next(iter(stages))):
        backward(given(family("normal", "float16", 0, groups=1), 1, 0), stages)
