"""Wrong backward passes of rings are rejected, each by the law named for it; right ones pass."""

from __future__ import annotations

import pytest
from test_wrong_kernels import rejected, run

ADAPTERS = "wrong_ring_backward.py"
RIGHT = "(-right- or -right_declared- or -right_sums_in_bfloat16-)"
ORACLE, ANY = "test_matches_oracle", "test_ranks_and_scheme_are_irrelevant"
ORDER, SAME = "test_the_order_of_ranks_is_irrelevant", "test_ranks_that_hold_the_same_row_agree"
LATER = "test_later_keys_of_any_rank_have_no_influence"
NAMED = {
    **dict.fromkeys(("dk_added_in_bfloat16", "dq_added_in_bfloat16"), ORACLE),
    **dict.fromkeys(("last_block_dropped", "dq_of_the_last_block"), ORDER),
    **dict.fromkeys(("own_block_dropped", "own_block_twice", "dk_of_the_last_rank"), SAME),
    **dict.fromkeys(("lse_of_the_block", "rowsum_of_the_block", "out_and_lse_of_the_block"), ANY),
    **dict.fromkeys(("dk_one_hop_short", "dk_one_hop_too_far", "dk_added_one_step_late"), ANY),
    **dict.fromkeys(("mask_by_local_index", "local_positions"), LATER),
    "zigzag_runs_swapped": "test_ranks_without_a_visible_key_add_nothing",
}
TOLD = {
    "dk_one_hop_short": "dk and dv one hop short of home",
    "lse_of_the_block": "lse of each pair of runs, not of the whole",
    "local_positions": "the mask by indices of the shards, not of the whole",
}


def each_by_its_law() -> str:
    """What -k selects: every wrong ring under its own law."""
    return " or ".join(f"({law} and -{kernel}-)" for kernel, law in NAMED.items())


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    told = f"({ORACLE} and ({' or '.join(f'-{ring}-' for ring in TOLD)}))"
    words = ("--profile=ci", "--no-shrink", "-k", f"{each_by_its_law()} or {told}")
    found = run(tmp_path_factory.mktemp("wrong"), *words, module=ADAPTERS)
    return [r for r in found.values() if "cases" in r]


def test_every_wrong_ring_is_rejected_by_the_law_named_for_it(results):
    judged = [r for r in results if r["law"] == NAMED[r["implementation"]]]
    assert {r["implementation"] for r in judged} == set(NAMED)
    survivors = [f"{r['implementation']} {r['dtype']}: {r['law']}" for r in judged
                 if not rejected(r)]  # fmt: skip
    assert not survivors


def test_what_a_wrong_ring_computes_is_told(results):
    told = {(r["implementation"], r["dtype"]): r["failure"]["detail"]["diagnosis"]
            for r in results if r["law"] == ORACLE and r["implementation"] in TOLD}  # fmt: skip
    assert {ring for ring, _ in told} == set(TOLD)
    for (ring, _), sentence in told.items():
        assert TOLD[ring] in sentence, sentence


def test_right_rings_pass_every_law_of_rings(tmp_path):
    laws = f"{RIGHT} and (test_ring or matches_oracle)"
    words = ("--profile=ci", "--examples=3", "--no-shrink", "-k", laws)
    results = run(tmp_path, *words, module=ADAPTERS)
    outcomes = {key: r["outcome"] for key, r in results.items()}
    assert len(outcomes) == 6 * 6  # laws, and twins with their dtypes
    assert set(outcomes.values()) == {"passed"}, outcomes
