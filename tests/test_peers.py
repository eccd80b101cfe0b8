"""Other people's rotations, and what an `allclose(atol=1e-3)` against one of them would say.

Checklists for RoPE kernels compare with Hugging Face's fp16 rotation at atol=1e-3. That refuses
right kernels; wider tolerances in use let wrong ones pass. The budgeted comparison does neither.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tightrope.compare import budgets
from tightrope.contract import contract
from tightrope.formats import widen
from tightrope.oracles.rope import RopeCase
from tightrope.subjects import under_test

pytest.importorskip("transformers", reason="the peer is Hugging Face's model code")
HERE = Path(__file__).parent
CASE = RopeCase(
    tokens=256, num_heads=8, num_kv_heads=2, head_dim=128, rotary_dim=128, dtype="float16",
    table_rows=4160, table="trigonometric", positions="random", seed=1,
)  # fmt: skip


@pytest.fixture(scope="module")
def calls():
    """Inputs of one case; outputs of the float32 twin and of Hugging Face's rotation."""
    inputs = contract("rope").inputs(CASE)
    right = under_test(["tightrope.impls.rope_torch:torch"])[0]
    theirs = under_test(["tightrope.impls.peer_huggingface:huggingface"])[0]
    return inputs, [(i, i(CASE, inputs), budgets(i, CASE, inputs)) for i in (right, theirs)]


def test_a_right_kernel_fails_an_absolute_tolerance_against_the_peer(calls):
    right, theirs = (outputs for _, outputs, _ in calls[1])
    a, b = (torch.from_numpy(widen(outputs["q"])) for outputs in (right, theirs))
    refused = float(((a - b).abs() > 1e-3).double().mean())
    assert 0.002 < refused < 0.05


def test_both_are_within_their_own_budgets_bit_for_bit(calls):
    for _, outputs, given in calls[1]:
        for name, budget in given.items():
            assert budget.inside(outputs[name]).all()
            assert budget.replayed(outputs[name]).all()
            assert not np.any(budget.replay.radius)


def test_each_is_refused_under_the_others_arithmetic(calls):
    (_, rights, mine), (_, peers, theirs) = calls[1]
    for given, outputs in ((theirs, rights), (mine, peers)):
        assert not all(given[n].replayed(outputs[n]).all() for n in ("q", "k"))


# Liger's own rope test compares with the plain torch rotation at these absolute tolerances.
LIGER = {"bfloat16": 1e-1, "float16": 1e-2}


@pytest.mark.parametrize("dtype", LIGER)
@pytest.mark.parametrize("wrong", ["products_in_the_input_dtype", "table_in_{}"])
def test_a_tolerance_in_use_accepts_wrong_kernels_that_the_budget_rejects(wrong, dtype):
    kernel = under_test([f"{HERE / 'wrong_rope.py'}:{wrong.format(dtype)}"])[0]
    accepted = rejected = 0
    for seed in range(100):
        case = replace(
            CASE, tokens=8, num_heads=4, head_dim=64, rotary_dim=64, dtype=dtype, seed=seed
        )
        inputs = contract("rope").inputs(case)
        outputs, given = kernel(case, inputs), budgets(kernel, case, inputs)
        apart = [np.abs(widen(outputs[n]) - given[n].expected).max() for n in ("q", "k")]
        accepted += max(apart) <= LIGER[dtype]
        rejected += not all(given[n].accepts(outputs[n]) for n in ("q", "k"))
    assert (accepted, rejected) == (100, 100)
