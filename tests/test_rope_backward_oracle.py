"""`rope_backward`: its oracles against one another, against autograd, and the kernel's corners."""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from rope_draws import QUICK
from test_bad_input import WORDING, WRONG, good

from tightrope import Arithmetic
from tightrope.contract import contract
from tightrope.device import current
from tightrope.oracles import rope_backward_exact, rope_backward_mpmath
from tightrope.oracles.rope_backward import RopeBackwardCase

HOME = current().kind

from tightrope.impls.rope_backward import rope_backward  # noqa: E402  (Triton after `current`)

CONTRACT = contract("rope_backward")
STRANGER = Arithmetic().over(CONTRACT.stages)
FEW = {"head_dim": (6, 8), "tokens": (1, 2), "num_heads": (1, 2), "table_rows": (64,)}
RENAMED = re.compile(r"\b([qk])\b")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_transpose_and_column_agree_exactly_and_float64_within_its_own_bound(dtype):
    @QUICK
    @given(CONTRACT.cases(CONTRACT.limits({"size": ("small",), "dtype": (dtype,), **FEW})))
    def agree(case):
        inputs = CONTRACT.inputs(case)
        for name, own in CONTRACT.budget(case, inputs, STRANGER).items():
            exact = rope_backward_exact.exact(case, inputs, name, range(inputs[name].size))
            assert exact == rope_backward_mpmath.transposed(case, inputs, name)
            float64 = CONTRACT.oracle(case, inputs)[name]
            bounds = np.broadcast_to(own.oracle, float64.shape).ravel()
            found = zip(float64.ravel().tolist(), exact, bounds.tolist(), strict=True)
            assert all(abs(Fraction(x) - value) <= Fraction(e) for x, value, e in found)

    agree()


@pytest.mark.parametrize("interleaved", [False, True])
def test_the_oracle_is_autograd_s_gradient_of_the_plain_formula(interleaved):
    """Products and sums of few-bit numbers are exact in float64: equal, not close."""
    case = RopeBackwardCase(
        tokens=5, num_heads=4, num_kv_heads=2, head_dim=12, rotary_dim=8, interleaved=interleaved,
        dtype="float64", table_dtype="float64", table="few_bits", data="few_bits",
        positions="random",
    )  # fmt: skip
    inputs = CONTRACT.inputs(case)
    rows = torch.from_numpy(inputs["positions"])
    cos, sin = (torch.from_numpy(np.array(inputs[t]))[rows][:, None] for t in ("cos", "sin"))
    for name, expected in CONTRACT.oracle(case, inputs).items():
        dy = torch.from_numpy(inputs[name])
        x = torch.ones_like(dy, requires_grad=True)
        one = slice(0, 8, 2) if interleaved else slice(0, 4)
        two = slice(1, 8, 2) if interleaved else slice(4, 8)
        a, b = x[..., one], x[..., two]
        y = [(a * cos - b * sin, dy[..., one]), (b * cos + a * sin, dy[..., two])]
        sum((part * given).sum() for part, given in [*y, (x[..., 8:], dy[..., 8:])]).backward()
        assert np.array_equal(x.grad.numpy(), expected)


def test_exact_refuses_what_is_not_finite():
    inputs = CONTRACT.inputs(RopeBackwardCase())
    for wrong, error in ((np.inf, ArithmeticError), (np.nan, ValueError)):
        inputs["dq"][0, 0, 0] = wrong
        with pytest.raises(error):
            rope_backward_exact.exact(RopeBackwardCase(), inputs, "dq", [0])


def gradients(**changes):
    renamed = {RENAMED.sub(r"d\1", name): value for name, value in good(**changes).items()}
    return rope_backward(**renamed)


@pytest.mark.parametrize("what", WRONG)
def test_bad_input_is_refused_under_its_own_names(what):
    error, argument, changes = WRONG[what]
    with pytest.raises(error) as raised:
        gradients(**changes)
    assert WORDING.match(str(raised.value)), raised.value
    assert str(raised.value).startswith(RENAMED.sub(r"d\1", argument)), raised.value


def test_a_gradient_of_stride_0_is_read_as_it_is():
    dq = torch.ones((), device=HOME).half().expand(good()["q"].shape)
    for expanded, plain in zip(gradients(q=dq), gradients(q=dq.contiguous()), strict=True):
        assert torch.equal(expanded, plain)
