"""Every wrong table of PoPE is rejected by the law named for it; the right one passes every law."""

from __future__ import annotations

import pytest
from test_wrong_kernels import rejected, run

UNNAMED = "test_matches_oracle"
NAMED = {
    "cos_scaled": "test_cos_and_sin_lie_on_the_unit_circle",
    "cos_for_sin": "test_cos_and_sin_lie_on_the_unit_circle",
    "magnitude_of_the_position": "test_cos_is_even_and_sin_is_odd",
    "positions_in_bfloat16": "test_angles_add",
    "row_of_the_token": "test_each_row_depends_on_its_position_only",
    "inv_freq_for_longer_positions": "test_each_row_depends_on_its_position_only",
    "position_one_late": "test_position_zero_is_the_identity",
    "a_phase_in_every_angle": "test_position_zero_is_the_identity",
    "inv_freq_of_the_other_sign": "test_frequencies_are_the_angles_of_position_one",
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    named = [f"{law} and -{kernel}-" for kernel, law in NAMED.items()]
    rest = " or ".join(f"-{kernel}-" for kernel in NAMED)
    words = [*named, "-right-", f"{UNNAMED} and not ({rest})"]
    chosen = " or ".join(f"({part})" for part in words)
    folder = tmp_path_factory.mktemp("wrong")
    found = run(folder, "--profile=ci", "--no-shrink", "-k", chosen, module="wrong_pope_table.py")
    return [r for r in found.values() if r.get("outcome") in ("passed", "failed")]


def test_every_wrong_table_is_rejected_by_its_law(results):
    wrong = [r for r in results if r["implementation"] != "right"]
    assert {r["implementation"] for r in wrong} > set(NAMED)
    assert len(wrong) == 18
    assert [r["implementation"] for r in wrong if not rejected(r)] == []
    assert all(r["law"] == NAMED.get(r["implementation"], UNNAMED) for r in wrong)


def test_the_right_table_passes_every_law(results):
    right = [r for r in results if r["implementation"] == "right"]
    assert len(right) >= len(set(NAMED.values())) + 1
    assert {r["outcome"] for r in right} == {"passed"}
