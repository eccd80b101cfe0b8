"""Kernels that are right and that an earlier budget of attention's gradients refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from attention_draws import family
from simulated_attention_backward import Backwards, given

from tightrope.formats import FORMATS, stored, widen
from tightrope.oracles.attention_backward import CONTRACT
from tightrope.oracles.attention_backward_budget import backward
from tightrope.oracles.attention_backward_cases import AttentionBackwardCase
from tightrope.oracles.attention_backward_problem import Backward
from tightrope.oracles.attention_problem import Problem

DECLARED = {"state": "given", "logits": "scaled", "heads": "summed"}


@pytest.mark.parametrize("out_dtype", ["float32", "bfloat16"])
def test_heads_stored_apart_are_not_replayed_as_one_sum(out_dtype: str) -> None:
    b = given(family("normal", "bfloat16", 1, groups=4), 4, 1)
    b = replace(b, forward=replace(b.forward, out_dtype=out_dtype))
    found = backward(b, {"state": "given", "logits": "scaled", "dot": "hopper_mma"})
    outputs = Backwards(fault="heads in 16 bits")(b)
    for name, output in zip(("dq", "dk", "dv"), outputs, strict=True):
        rounded = FORMATS[out_dtype].round(output)
        assert found[name].inside(rounded, 1).all()
        assert found[name].replayed(rounded).all()


def by_products(case: AttentionBackwardCase, inputs: dict[str, np.ndarray]) -> Any:
    """float32, P from the given lse in base 2, D = sum P dP."""
    q, k, v, dout = (inputs[n].astype(np.float32) for n in ("q", "k", "v", "dout"))
    scale = case.head_dim**-0.5 if case.softmax_scale is None else case.softmax_scale
    shift = (inputs["lse"] * np.float32(np.log2(np.e)))[..., None]
    factor = float(np.float32(scale * np.log2(np.e)))
    scores = (q @ k.swapaxes(-1, -2)).astype(float)
    p = np.exp2((scores * factor - shift).astype(np.float32).astype(float)).astype(np.float32)
    dp = dout @ v.swapaxes(-1, -2)
    ds = p * (dp - (p * dp).sum(-1, keepdims=True))
    found = {"dq": ds @ k, "dk": ds.swapaxes(-1, -2) @ q}
    found = {name: np.float32(scale) * x for name, x in found.items()}
    return found | {"dv": p.swapaxes(-1, -2) @ dout}


@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_the_sum_of_p_dp_is_granted_of_a_p_that_does_not_add_up_to_1(scale: float) -> None:
    for seed in range(6):
        case = AttentionBackwardCase(
            seqlen_q=4, seqlen_k=8, head_dim=64, head_dim_v=2, dtype="float32", data="times_30",
            data_v="constant", softmax_scale=scale, seed=seed,
        )  # fmt: skip
        inputs = CONTRACT.inputs(case)
        found = CONTRACT.budget(case, inputs, {})
        for name, output in by_products(case, inputs).items():
            assert found[name].inside(output, 1).all(), (name, seed)


def pair(k: float, v: float, dout: float, out: float, above: float, dtype: str) -> Backward:
    """One query of 1 and one key; its logit is `above` its lse."""
    numbers = [widen(stored(np.full((1, 1, 1), x, float), dtype)) for x in (1.0, k, v, dout, out)]
    q, k_, v_, dout_, out_ = numbers
    p = Problem(q, k_, v_, np.ones((1, 1, 1), bool), 1.0, dtype, "float32", softcap=None)
    return Backward(p, dout_, out_, np.array([[float(np.float32(k - above))]]), 1)


@pytest.mark.parametrize("arithmetic", [DECLARED, {}])
def test_a_weight_beyond_float16_may_be_infinite(arithmetic: dict[str, str]) -> None:
    found = backward(pair(1.0, 1.0, 2.0**-10, 0.5, 12.0, "float16"), arithmetic)["dv"]
    infinite = np.full((1, 1, 1), np.inf)
    assert found.inside(infinite).all()
    assert found.replayed(infinite).all()
    near = backward(pair(1.0, 1.0, 2.0**-10, 0.5, 10.0, "float16"), DECLARED)["dv"]
    assert not near.inside(infinite).any()


@pytest.mark.parametrize(
    ("dtype", "v", "dout", "above"),
    [("bfloat16", 1.5e19, 1.5e19, 0.0), ("float32", 1e10, 1e10, 44)],
)
def test_nothing_is_promised_where_the_way_to_ds_overflows(
    dtype: str, v: float, dout: float, above: float
) -> None:
    found = backward(pair(2.0**-20, v, dout, -v, above, dtype), DECLARED)
    assert np.isinf(found["dq"].bound).all()
    less = backward(pair(2.0**-20, v / 2**8, dout / 2**8, -v / 2**8, above, dtype), DECLARED)
    assert np.isfinite(less["dq"].bound).all()


def test_an_lse_that_is_no_number_promises_nothing_of_its_row() -> None:
    b = pair(1.0, 1.0, 1.0, 0.5, 0.0, "float32")
    found = backward(replace(b, lse=np.full((1, 1), np.nan)), DECLARED)
    assert all(np.isinf(found[name].bound).all() for name in ("dq", "dk", "dv"))
