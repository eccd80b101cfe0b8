"""Other people's rotations, and what an `allclose(atol=1e-3)` against one of them would say.

The seeds' checklist compares a kernel with Hugging Face's fp16 rotation at atol=1e-3. That refuses
right kernels and lets wrong ones pass; the budgeted comparison does neither.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tightrope.compare import budgets
from tightrope.contract import contract
from tightrope.device import to_numpy
from tightrope.formats import widen
from tightrope.oracles.rope import RopeCase
from tightrope.subjects import under_test

pytest.importorskip("transformers", reason="the peer is Hugging Face's model code")
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


def test_a_cosine_table_in_bfloat16_passes_the_tolerances_in_use_but_not_the_budget(calls):
    """A bf16 table changes no element by more than 4e-2; the budget refuses it all the same."""
    inputs, found = calls
    right, truth, given = found[0]
    coarse = {**inputs}
    for table in ("cos", "sin"):
        rounded = torch.from_numpy(inputs[table].copy()).bfloat16().float()
        coarse[table] = to_numpy(rounded)
    outputs = right(CASE, coarse)
    assert np.abs(widen(outputs["q"]) - widen(truth["q"])).max() < 4e-2
    assert not given["q"].inside(outputs["q"]).all()
