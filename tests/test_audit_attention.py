"""The audit of attention: stages alone, what one buys, ranges, and a paper's effect again."""

from __future__ import annotations

import numpy as np
import pytest

from tightrope import audit_attention, audit_pope
from tightrope.audit_stages import STAGES, Data, Stages, attend, error, ranges, truth

SMALL = Data(dtype="bfloat16", seqlen_k=160, head_dim=32, seqlen_q=8)


def of(**formats):
    return error(SMALL, Stages().but(**formats), truth(SMALL)[0])["largest"]


@pytest.mark.parametrize("tile", [None, 16, 64])
def test_without_a_rounding_the_models_are_the_oracle(tile):
    right, slack = truth(SMALL)
    q, k, v = SMALL.arrays()
    out = attend(q, k, v, 32**-0.5, Stages(tile=tile))
    assert np.abs(out - right).max() <= 2 * slack  # the models' own roundings are as many


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_alone_costs_what_its_format_has_left(stage):
    exact, single, brain, half = (
        of(**{stage: fmt}) for fmt in ("exact", "float32", "bfloat16", "float16")
    )
    assert exact < single < half < brain
    assert brain > 2.0**10 * single  # 16 bits fewer


def test_alpha_is_no_stage_without_tiles():
    assert of(alpha="bfloat16", tile=None) == of(tile=None)


def test_the_oracle_is_far_better_than_any_model():
    right, slack = truth(SMALL)
    best = error(SMALL, Stages.throughout("float32"), right)["largest"]
    assert slack * 1000 < best


def test_low_precision_throughout_tiles_deviate_more_the_more_there_are():
    rows = {}
    for keys in (64, 1024, 4096):
        data = Data(dtype="bfloat16", seqlen_k=keys)
        right, _ = truth(data)
        low = Stages.throughout("bfloat16")
        tiled, whole = (error(data, low.but(tile=t), right)["rms"] for t in (64, None))
        rows[keys] = tiled / whole
    assert rows[64] < rows[1024] < rows[4096]
    assert rows[4096] > 2


def test_with_a_float32_accumulator_tiles_cost_nothing():
    data = Data(dtype="bfloat16", seqlen_k=2048)
    right, _ = truth(data)
    kernel = Stages.throughout("float32").but(p="bfloat16", output="bfloat16")
    tiled, whole = (error(data, kernel.but(tile=t), right)["rms"] for t in (64, None))
    assert tiled < whole


def test_ranges_say_where_float16_ends():
    small, large = (ranges(Data(dtype="bfloat16", size=s)) for s in (1.0, 4096.0))
    assert small["q.k"]["overflow_float16"] == 0 < large["q.k"]["overflow_float16"]
    assert small["p"]["zero_in_float16"] == 0 < large["p"]["zero_in_float16"]
    assert large["p"]["largest"] == 1


def test_losses_begin_at_the_first_size_that_has_some():
    rows = [
        {"dtype": "bfloat16", "size": s, "stages": ranges(Data(dtype="bfloat16", size=s))}
        for s in (1.0, 512.0, 4096.0)
    ]
    found = {r["stage"]: r for r in audit_attention.begins(rows)}
    assert found["q.k"]["overflow_float16"] == 4096.0
    assert found["sum"]["overflow_float16"] is None


def test_magnitudes_of_a_naive_formula_are_lost_and_of_the_stable_one_not():
    rows = {(r["formula"], r["steps"]): r for r in audit_pope.magnitudes("bfloat16")}
    naive, stable = rows["ln(1 + e^x)", "float32"], rows["max(x, 0) + log1p(e^-|x|)", "float32"]
    assert naive["exhaustive"]
    assert naive["zero_from"] < -16
    assert naive["infinite_from"] > 88
    assert stable["worst_ulps"] < 0.51
    assert stable["zero_from"] is None
    thresholded = next(
        r for r in audit_pope.magnitudes("float16")
        if r["formula"].startswith("x above") and r["steps"] == "float16"
    )  # fmt: skip
    assert thresholded["infinite_from"] < 20  # e^x overflows float16 before the threshold


def test_with_the_other_sign_polar_angles_are_lost_at_once():
    limits = {
        sign: next(
            r for r in audit_pope._limits(sign, 10000.0, 16, 1 << 18)
            if r["way"] == "float32 throughout"
        )["table"]["-8"]["limit"]
        for sign in (-1, 1)
    }  # fmt: skip
    assert limits[-1] > 1000 * limits[1]
    assert limits[1] < 64
