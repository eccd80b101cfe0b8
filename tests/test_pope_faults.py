"""Wrong polar attention exceeds its budget: other operations T0, faults in one rounding T1."""

from __future__ import annotations

import numpy as np
import pytest
from pope_shares import KNOWN, case, features, shares
from simulated_attention import Rounding

from tightrope.formats import FORMATS


def opposite(c, inputs):
    return {"delta": -inputs["delta"]}


def first_head(c, inputs):
    return {"delta": np.repeat(inputs["delta"][:1], len(inputs["delta"]), 0)}


def late(c, inputs):
    return {"q_positions": inputs["q_positions"] + 1}


def flipped(c, inputs):
    return {"inv_freq": 1 / inputs["inv_freq"]}


def paired(c, inputs):
    return {"inv_freq": np.repeat(inputs["inv_freq"][::2], 2)}


def in_dtype(dtype):
    """log(1 + exp x) with every operation rounded to the dtype."""
    fmt = FORMATS[dtype].round
    return lambda x: fmt(np.log(fmt(1 + fmt(np.exp(np.minimum(x, 11.0))))))


def without_sine(kernel):
    whole = kernel.turning
    kernel.turning = lambda *given: (whole(*given)[0], 0.0 * whole(*given)[1])


MISTAKES = {
    "relu": {"softplus": lambda dtype: lambda x: np.maximum(x, 0)},
    "exp": {"softplus": lambda dtype: np.exp},
    "softplus linear from 0 on": {
        "softplus": lambda dtype: lambda x: np.where(x > 0, x, np.log1p(np.exp(np.minimum(x, 0))))
    },
    "phase of the other sign": {"wrong": opposite},
    "phase of the first head": {"wrong": first_head},
    "q one late": {"wrong": late},
    "exponent flipped": {"wrong": flipped},
    "frequencies in pairs": {"wrong": paired},
    "scale of the doubled width": {"scale": 0.5**0.5},
    "no sine": {"without": without_sine},
}


def mistaken(name, c, stages, dtype):
    what = MISTAKES[name]
    kernel = features(stages, dtype, Rounding())
    if "softplus" in what:
        kernel.softplus = what["softplus"](dtype)
    if "without" in what:
        what["without"](kernel)
    return shares(c, stages, kernel, wrong=what.get("wrong"), scale=what.get("scale"))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", MISTAKES)
def test_a_wrong_operation_is_rejected_by_every_budget(name, dtype):
    for seed in range(2):
        c = case(seed, dtype=dtype, data="times_3", start=0)
        for stages in (KNOWN, {"angle": "float32"}):
            found = mistaken(name, c, stages, dtype)
            assert max(found[0], found[2]) > 1  # by T0, of out or of lse


def five(x):
    return np.where(x > 5, x, np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))))


FAULTS = {
    "table in bfloat16": {"table": "bfloat16"},
    "magnitude rounded": {"magnitude": "input"},
    "features not rounded": {"features": "float32"},
    "angles in float32, far": {"angle": "float32"},
    "log(1 + exp x) in the dtype": {"form": "low"},
    "softplus linear from 5 on": {"form": "five"},
    "log(1 + exp x) in float32": {"form": "C"},
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_one_rounding_is_rejected_by_the_replay(name, dtype):
    for seed in range(2):
        fault = dict(FAULTS[name])
        form = fault.pop("form", "exact")
        data = "delicate" if form == "C" else "normal" if form == "exact" else "thresholds"
        start = 2**20 if name.endswith("far") else 1000
        kernel = features(KNOWN, dtype, Rounding(), **fault)
        if form == "C":
            kernel.form = form
        elif form != "exact":
            kernel.softplus = five if form == "five" else in_dtype(dtype)
        c = case(seed, dtype=dtype, data=data, start=start)
        right_one = features(KNOWN, dtype, Rounding())
        assert max(shares(c, KNOWN, right_one)) <= 1
        assert max(shares(c, KNOWN, kernel)) > 1
