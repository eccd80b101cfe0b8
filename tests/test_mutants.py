"""Mutants are made from the kernels as they stand, and change nothing but themselves."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from tightrope import mutants, power
from tightrope.device import prepare
from tightrope.implementation import registered
from tightrope.mutants import DoesNotApply, Mutant, every

KERNELS = (
    "attention", "attention_backward", "attention_key_outer", "attention_paged",
    "attention_varlen", "attention_varlen_backward", "merge_attention", "pope_attention",
    "pope_attention_backward", "pope_table", "query_scale", "ring_attention",
    "ring_attention_backward", "rope", "rope_attention", "rope_backward", "rope_table",
)  # fmt: skip
ON_HOPPER = ("attention_hopper", "pope_attention_hopper")
SIGN = next(m for m in every() if m.id == "query_scale:shift_dropped")
ATTENTION = (
    "attention", "attention_key_outer", "attention_paged", "attention_varlen", "merge_attention",
    "pope_attention", "rope_attention", *ON_HOPPER[:1],
)  # fmt: skip


def nothing(kernel):
    """A mutant that is its kernel."""
    line = "from __future__ import annotations"
    return Mutant(kernel, "nothing", "none", line, line)


def test_every_mutant_applies_to_the_source_as_it_stands():
    assert not list(mutants.problems())


@pytest.mark.parametrize("change", [{"old": "no such snippet"}, {"times": 2}, {"module": "turns"}])
def test_a_mutant_that_does_not_apply_is_an_error(change, tmp_path):
    with pytest.raises(DoesNotApply):
        mutants.made(replace(SIGN, **change), tmp_path)


def test_every_kernel_has_mutants_and_names_say_which_exist():
    assert {m.kernel for m in every()} == {*KERNELS, *ON_HOPPER}
    assert len(every()) > 500
    assert [m.id for m in mutants.chosen(["query_scale:shift_d"])] == [SIGN.id]
    with pytest.raises(LookupError, match="query_scale:shift_dropped"):
        mutants.chosen(["no such mutant"])


@pytest.mark.parametrize(
    "family", ["masks", "windows", "offsets", "head mapping", "lse base", "rescale", "initial max"]
)
def test_every_kernel_of_attention_has_mutants_of_what_they_share(family):
    lacking = set(ATTENTION) - {m.kernel for m in every() if m.family == family}
    assert lacking <= {"merge_attention", *(ON_HOPPER if family == "windows" else ())}


def test_gradients_have_mutants_of_every_family_of_theirs():
    found = {m.family for m in every() if m.kernel == "attention_backward"}
    assert found >= {
        "backward terms", "masks", "windows", "offsets", "head mapping", "tail", "lse base",
        "accumulate dtype", "rounding mode", "doubled rounding", "scale", "constants", "terms",
    }  # fmt: skip


def test_what_cannot_die_here_says_why():
    for m in every():
        assert m.equivalent is None or len(m.equivalent.split()) >= 5, m.id
        assert m.hole is None or len(m.hole.split()) >= 5, m.id
        assert m.needs is None or m.needs.startswith("gpu: "), m.id
        assert not (m.equivalent and m.needs), m.id


def test_plans_and_what_lies_between_are_copies():
    assert mutants.between("attention_varlen", "") >= {"sequence_call"}
    assert mutants.between("pope_attention", "turns") >= {"turns", "pope_angles_call"}
    assert "softplus" not in mutants.between("pope_attention", "turns")
    assert not mutants.between("rope", "")  # its plans are its own
    assert "ring_pool" in mutants.between("ring_attention", "ring_shards")


def test_a_kernel_made_of_another_is_mutated_there(tmp_path):
    prepare()
    mutant = next(m for m in every() if m.id == "rope_backward:tail_zeroed")
    assert set(mutants.files(mutant)) == {
        "mutant_rope_backward_tail_zeroed", "mutant_rope_backward_tail_zeroed__rope",
    }  # fmt: skip
    before = {(i.contract_name, i.name) for i in registered()}
    (made,) = mutants.made(mutant, tmp_path)
    assert made.contract_name == "rope_backward"
    mutants.forget(mutant)
    assert {(i.contract_name, i.name) for i in registered()} == before


def test_the_original_stays_as_it_is(tmp_path):
    prepare()
    before = hashlib.sha256(mutants.source("impls/query_scale").encode()).hexdigest()
    (made,) = mutants.made(SIGN, tmp_path)
    assert hashlib.sha256(mutants.source("impls/query_scale").encode()).hexdigest() == before
    assert made.name == "shift_dropped.triton"
    (tmp_path / "again").mkdir()
    assert mutants.made(SIGN, tmp_path / "again")[0].source != made.source
    assert made.module not in {i.module for i in registered("tightrope.impls")}


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_with_nothing_changed_passes(kernel, tmp_path):
    prepare()
    impls = mutants.made(nothing(kernel), tmp_path)
    main = [(law, i) for law, i in power.pairs(impls) if law.name == power.MAIN]
    assert {power.trial(law, i, examples=4).outcome for law, i in main} == {"passed"}
