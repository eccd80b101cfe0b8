"""Diagnosis names the mistake of mutants: one of every family of conventions, of cheap kernels.

tests/record_diagnosis.py does it for all of them; the record is held to what the README says.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from diagnosed import CONVENTIONS, NAMES, judged

from tightrope import mutants, power, power_command
from tightrope.device import prepare
from tightrope.mutants import every

HERE = Path(__file__).parent
RECORD = HERE.parent / "docs" / "measurements" / "2026-12-01-diagnosis.json"
KNOWN = power_command.read_kills(str(HERE / "corpus" / "kills.json"))
CHOSEN = (
    "rope:opposite_angle_first", "rope:position_clamped", "rope:table_in_bfloat16",
    "rope_table:amplitude_of_cos_dropped", "rope_table:quadrant_of_cos",
    "rope_table:sections_one_column_late", "rope_table:llama3_factors_swapped",
    "pope_table:paired_frequencies", "query_scale:shift_dropped",
    "merge_attention:lse_taken_for_base_2", "attention:kv_heads_interleaved",
    "attention:bias_of_the_kv_head", "attention:scale_a_thousandth_off",
    "attention:left_edge_unmasked", "attention:hidden_keys_read", "attention:window_one_key_long",
    "attention:lse_without_the_maximum",
)  # fmt: skip


@pytest.mark.parametrize("name", CHOSEN)
def test_the_mistake_is_named(name, tmp_path):
    prepare()
    mutant = next(m for m in every() if m.id == name)
    told = power.hunted(mutant, tmp_path, KNOWN).kill.diagnosis
    assert judged(name, told) == "right", told


def test_roundings_are_given_no_name_of_a_convention(tmp_path):
    """What differs from the right result by roundings alone agrees with no wrong convention."""
    prepare()
    name = "rope:sum_rounded_twice"
    mutant = next(m for m in every() if m.id == name)
    assert power.hunted(mutant, tmp_path, KNOWN).kill.diagnosis == ""


def test_patterns_are_of_mutants_that_exist():
    assert set(NAMES) <= {m.name for m in mutants.every()}


def test_the_record_names_nine_of_ten_and_blames_few_falsely():
    """Of gradients and rings it names fewer, and none of this holds them."""
    record = json.loads(RECORD.read_text())
    assert tuple(record["families"]["conventions"]) == CONVENTIONS
    rows = record["mutants"]
    assert all(r["judged"] == judged(r["mutant"], r["diagnosis"]) for r in rows)
    assert {r["seed"] for r in rows} == {0, 1}
    forward = [
        r["judged"] for r in rows if r["family"] in CONVENTIONS
        and not any(word in r["mutant"].partition(":")[0] for word in ("backward", "ring"))
    ]  # fmt: skip
    assert forward.count("right") >= 0.9 * len(forward)
    assert forward.count("wrong") <= 0.02 * len(forward)
