"""The budget of `pope_attention_backward` on simulated kernels: never exceeded, tight, and needed.

Families, and why: docs/error-budgets.md, section pope_attention_backward.
"""

from __future__ import annotations

import numpy as np
import pytest
from pope_backward_calls import SPEC, budgets, call
from simulated_attention import PATTERNS, Rounding, stressed
from simulated_pope import Features, Moved
from simulated_pope_backward import PolarBackwards

from tightrope import Arithmetic

KNOWN = {"trig_ulp": 0.5, "softplus_ulp": 0.5, "sigmoid_ulp": 0.5, "angle_error": 0.0}
TABLES = ("float32", "input", "float16")


def drawn(seed):
    """A small call of any kind, and what its kernel promises."""
    rng = np.random.default_rng(seed)

    def one(*values):
        return values[int(rng.integers(len(values)))]

    heads = one((1, 1), (2, 1), (4, 2))
    case, inputs = call(
        dtype=one("float16", "bfloat16", "float32"), num_heads=heads[0], num_kv_heads=heads[1],
        batch=one(1, 2), seqlen_q=one(2, 5), seqlen_k=one(3, 18), head_dim=one(4, 9),
        rotary_dim=one(1, 4), head_dim_v=3, causal=one(True, False), q_offset=one(0, 2),
        softcap=one(None, None, 4.0), delta=one("none", "kv_heads", "heads"),
        data=one("normal", "times_3", "thresholds", "delicate"), empty_rows=True,
        positions=one("range", "offset"), start=one(0, 1000), out_dtype="float32",
        state=one("exact", "low_precision"), delta_data=one("clamped", "zero"), seed=seed,
    )  # fmt: skip
    stages = {
        "table": one(*TABLES), "phase": one("key", "query", "query_angle"),
        "phase_sums": one("rows", "keys"), "dot": one("any", "hopper_mma"),
        "feature_order": "joined", "softplus_ulp": one(0.5, 6.5), "sigmoid_ulp": one(0.5, 13.0),
        "trig_ulp": one(0.5, 2.5), "angle_error": 0.0,
    }  # fmt: skip
    return case, inputs, stages


def kernel_of(case, stages, to, of_points=None, **more):
    points = Features(
        dtype=case.dtype, to=of_points or to, angle="exact", trig_ulp=stages["trig_ulp"],
        table=stages.get("table", "float32"), phase=stages.get("phase", "key"),
        softplus_ulp=stages["softplus_ulp"], features=stages.get("features", "input"),
    )  # fmt: skip
    hopper = stages.get("dot") == "hopper_mma" and case.dtype != "float32"
    return PolarBackwards(
        "hopper" if hopper else "sequential", to, points=points,
        sums=stages.get("phase_sums", "rows"), sigmoid_ulp=stages["sigmoid_ulp"], **more,
    )  # fmt: skip


def spent(error, bound):
    """The largest error / bound; 0 / 0 is 0, and an infinite bound is never spent."""
    with np.errstate(all="ignore"):
        share = np.where((error == 0) | np.isinf(bound), 0.0, error / bound)
    return float(np.max(np.where(np.isnan(share), np.inf, share), initial=0.0))


def shares(found, outputs):
    """Output -> (worst share of T0, of T1), before the last rounding."""
    worst = {}
    for name, x in outputs.items():
        budget, x = found[name], x.reshape(found[name].expected.shape)
        first = spent(np.abs(x - budget.expected), budget.bound + budget.oracle)
        replay, again = budget.replay, 0.0
        if replay is not None:
            again = spent(np.abs(x - replay.centre), np.broadcast_to(replay.radius, x.shape))
        worst[name] = first, again
    return worst


def patterns(seed):
    """Roundings of points, and of the rest: T1 of a point holds on float32's grid, so there points
    are moved by whole ulps."""
    yield Rounding(), Rounding()
    for pattern in (PATTERNS[seed % len(PATTERNS)], "random"):
        yield stressed(pattern, seed), stressed(pattern, seed)
        yield Moved(seed=seed), stressed(pattern, seed)


@pytest.mark.parametrize("first", [0, 20])
def test_full_half_ulp_steps_in_any_direction_stay_within_the_budget(first):
    top = dict.fromkeys(SPEC.outputs, (0.0, 0.0))
    for seed in range(first, first + 20):
        case, inputs, stages = drawn(seed)
        found = budgets(case, inputs, **stages)
        for of_points, to in patterns(seed):
            with np.errstate(all="ignore"):
                outputs = kernel_of(case, stages, to, of_points).of(case, inputs)
            on_grid = of_points.pattern == "nearest"
            for name, (t0, t1) in shares(found, outputs).items():
                found_of = (t0, t1 if on_grid else 0.0)
                assert max(found_of) <= 1 + 1e-9, (seed, name, found_of, to.pattern, stages, case)
                top[name] = tuple(map(max, top[name], found_of))
    assert min(t1 for _, t1 in top.values()) > 0.4, top  # so it could have exceeded it


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("apart", [False, True])
def test_a_stranger_may_round_gradients_of_points_and_store_heads_apart(kept, apart):
    worst = 0.0
    for seed in range(100, 110):
        case, inputs, stages = drawn(seed)
        stages |= {"phase": "key", "table": "float32"}
        stages["sigmoid_ulp"] = min(stages["sigmoid_ulp"], SPEC.stages["sigmoid_ulp"])
        found = SPEC.budget(case, inputs, Arithmetic().over(SPEC.stages))
        for pattern in ("random", "outward"):
            kernel = kernel_of(case, stages, stressed(pattern, seed), kept=kept, apart=apart)
            shared = shares(found, kernel.of(case, inputs)).values()
            assert max(t0 for t0, _ in shared) <= 1, (seed, pattern, case)
            worst = max(worst, *(t0 for t0, _ in shared))
    assert worst > 0.1


FAMILY = {
    "num_heads": 4, "num_kv_heads": 2, "seqlen_q": 20, "seqlen_k": 64, "head_dim": 32,
    "head_dim_v": 32, "rotary_dim": 32, "causal": True, "q_offset": 44, "out_dtype": "float32",
    "positions": "offset", "start": 1000, "delta": "kv_heads", "state": "low_precision",
}  # fmt: skip
LIGHT = {
    **KNOWN, "dot": "hopper_mma", "feature_order": "joined", "table": "float16", "phase": "query",
    "phase_sums": "rows",
}  # fmt: skip


def of_family(data, dtype, seed, **does):
    """Worst shares of T0 and T1, output by output, of a kernel that rounds to nearest."""
    case, inputs = call(**FAMILY, data=data, dtype=dtype, seed=seed)
    kernel = kernel_of(case, LIGHT, Rounding(), Moved(seed=seed), **does)
    found = shares(budgets(case, inputs, **LIGHT), kernel.of(case, inputs))
    return np.array([found[name] for name in SPEC.outputs])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("data", ["normal", "times_3", "rising"])
def test_the_replay_is_tight_on_the_designated_families(data, dtype):
    found = [of_family(data, dtype, seed) for seed in range(6)]
    assert np.max(found) <= 1
    t0, t1 = np.median(found, axis=0).T
    assert (t1 >= 0.5).all(), (t0, t1)


FAULTS = {
    "P not rounded": (2,), "dS not rounded": (0, 1, 3), "dS truncated": (0, 1, 3),
    "dS from rounded P": (0, 1, 3), "dP in 16 bits": (0, 1, 3), "D in 16 bits": (0, 1, 3),
    "lse in bf16": (0, 1, 2, 3),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_one_rounding_is_rejected_by_the_replay(fault):
    wrong = of_family("normal", "bfloat16", 0, fault=fault)[:, 1]
    assert (wrong[list(FAULTS[fault])] > 1).all(), wrong


def test_gradients_of_points_in_16_bits_are_rejected_where_float32_is_promised():
    assert (of_family("normal", "bfloat16", 0, kept=True)[[0, 1, 3], 1] > 1).all()


@pytest.mark.parametrize("delta", ["none", "kv_heads", "heads"])
def test_what_sees_nothing_leaves_no_room(delta):
    case, inputs = call(
        seqlen_q=6, seqlen_k=3, causal=True, q_offset=-4, empty_rows=True, delta=delta
    )
    for stages in ({}, LIGHT):
        found = SPEC.budget(case, inputs, Arithmetic(**stages).over(SPEC.stages))
        assert (found["dq"].bound[:, :, :4] == 0).all()
        assert (found["dq"].bound[:, :, 4:] > 0).any()
        assert (found["dk"].bound[:, :, 2:] == 0).all()
        assert (found["dv"].bound[:, :, 2:] == 0).all()


@pytest.mark.parametrize(
    "stages",
    [{"phase_sums": "columns"}, {"point_gradients": "float8"}, {"sigmoid_ulp": 0.1}, {"ds": "int8"},
     {"sigmoid_error": -1.0}, {"angle": "float16"}, {"block_k": 16}, {"heads": "mixed"}],
)  # fmt: skip
def test_an_unknown_stage_value_is_named(stages):
    with pytest.raises(ValueError, match=next(iter(stages))):
        budgets(*call(), **stages)
