"""Mutants of the Hopper kernels killed without a Hopper, by simulation: one of every family.

`tightrope power` runs all of them where there is such a GPU.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import hopper_calls
import pope_hopper_calls
import pytest
import simulated_gluon
from attention_calls import HOME

from tightrope import attention_hopper_call, mutants, pope_hopper_call
from tightrope.mutants import Mutant, every
from tightrope.oracles import attention, pope_attention
from tightrope.oracles.attention_cases import AttentionCase
from tightrope.oracles.pope_attention_cases import PopeAttentionCase

pytestmark = pytest.mark.skipif(
    HOME != "cpu", reason="simulated on the CPU; on a GPU `tightrope power` runs the kernels"
)
SHAPE = {
    "num_heads": 4, "num_kv_heads": 2, "seqlen_q": 20, "seqlen_k": 100, "head_dim": 64,
    "head_dim_v": 64, "causal": True, "q_offset": 81, "out_dtype": "float32",
}  # fmt: skip
PLAIN = AttentionCase(**SHAPE)
POLAR = PopeAttentionCase(
    rotary_dim=64, positions="per_batch", start=1000, batch=2, delta="heads", **SHAPE
)
CASES = {
    "attention_hopper": (
        PLAIN, replace(PLAIN, head_dim=128, head_dim_v=128, seqlen_q=100, q_offset=1),
        replace(PLAIN, batch=2, q_offset=-10, data="spiking", empty_rows=True),
        replace(PLAIN, seqlen_k=300, q_offset=281, data="all_negative"),
    ),
    "pope_attention_hopper": (
        POLAR, replace(POLAR, dtype="bfloat16", data="rising"),
        replace(POLAR, delta="kv_heads", batch=1),
    ),
}  # fmt: skip
# The host's part, a store past an output and bfloat16 inside a kernel are not simulated.
NOT_HERE = ("attention_hopper_call", "pope_hopper_call")
# Logits of magnitudes are seldom all far below 0: here, in none of the cases.
TOO_RARE = "pope_attention_hopper:maximum_begins_at_0"
SIMULATED = [
    m for m in every()
    if m.kernel in CASES and m.module not in NOT_HERE and m.family != "out of bounds"
    and "gl.bfloat16" not in m.new and m.id != TOO_RARE
]  # fmt: skip


def representatives() -> list[Mutant]:
    """Of each kernel the first mutant of each family."""
    first: dict[tuple[str, str], Mutant] = {}
    for mutant in SIMULATED:
        first.setdefault((mutant.kernel, mutant.family), mutant)
    return list(first.values())


def simulated(mutant, folder, monkeypatch):
    """What answers a call of the contract, with the mutant's device functions in the kernel."""
    mutants.written(mutant, folder)
    made = [sys.modules[name] for name in mutants.files(mutant)]
    calls = hopper_calls if mutant.kernel == "attention_hopper" else pope_hopper_calls
    run = calls.on_the_cpu(monkeypatch)
    names = {n: getattr(m, n).value for m in made for n in ("LN2", "PAIR") if hasattr(m, n)}
    for name, fn in hopper_calls.functions_of(*made).items():
        monkeypatch.setitem(calls.FUNCTIONS, name, fn)
    for name, value in names.items():
        monkeypatch.setitem(calls.NAMES, name, value)
    return run


def killed(mutant, run):
    """Whether a case is outside of its budget, or the program comes to no end."""
    polar = mutant.kernel == "pope_attention_hopper"
    contract = (pope_attention if polar else attention).CONTRACT
    promise = (pope_hopper_call if polar else attention_hopper_call).promise
    cases = CASES[mutant.kernel]
    if mutant.dtypes:
        cases = [replace(case, dtype=mutant.dtypes[0]) for case in cases]
    try:
        return any(
            not verdict.ok
            for case in cases
            for verdict in hopper_calls.verdicts(contract, case, promise, run)
        )
    except (TimeoutError, AssertionError):  # a deadlock; a barrier that is signalled too often
        return True


@pytest.mark.parametrize("mutant", representatives(), ids=lambda m: m.id)
def test_a_mutant_of_every_family_dies_in_simulation(mutant, tmp_path, monkeypatch):
    monkeypatch.setattr(simulated_gluon, "PATIENCE", 2.0)
    run = simulated(mutant, tmp_path, monkeypatch)
    try:
        assert killed(mutant, run)
    finally:
        mutants.forget(mutant)


@pytest.mark.parametrize("kernel", CASES)
def test_a_copy_with_nothing_changed_passes(kernel, tmp_path, monkeypatch):
    line = "from __future__ import annotations"
    mutant = Mutant(kernel, "nothing", "none", line, line, "attention_hopper_rows")
    run = simulated(mutant, tmp_path, monkeypatch)
    try:
        assert not killed(mutant, run)
    finally:
        mutants.forget(mutant)
