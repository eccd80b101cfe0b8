"""Wrong rotations, tables and attentions are rejected, each by a named law, by the derandomized
`ci` profile; the right rotation passes 500 random cases of each dtype, right attentions every law.

The laws run as `tightrope run --impl=tests/wrong_rope.py --profile=ci` runs them, unshrunk.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LAWS = "matches_oracle or writes_its_outputs or in_place"  # the laws that are named for the kills


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wrong")
    return run(folder, "--profile=ci", "--no-shrink", "-k", f"not right and ({LAWS})")


def run(folder, *words, module="wrong_rope.py"):
    report = folder / "report.json"
    site = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": site, "TIGHTROPE_STATE": str(folder / "state")}
    env = {k: v for k, v in env.items() if not k.startswith("PYTEST_")}
    command = [
        sys.executable,
        "-m",
        "tightrope",
        "run",
        *[f"--impl={HERE / name}" for name in module.split()],
        f"--report={report}",
        "--workers=0",  # the suite's own workers keep every processor busy
        *words,
    ]
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=3000, check=False
    )
    assert done.returncode in (0, 1), done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads(report.read_text())["results"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_wrong_kernel_is_rejected_by_a_named_law(results, dtype):
    wrong = {r["implementation"] for r in results.values() if "implementation" in r}
    assert len(wrong) == 18
    found = [r for r in results.values() if r["outcome"] == "failed" and r["dtype"] == dtype]
    killers = {
        name: sorted(r["law"] for r in found if r["implementation"] == name)
        for name in wrong
    }  # fmt: skip
    survivors = [name for name, laws in killers.items() if not laws]
    assert not survivors, killers


def test_the_right_twin_passes_500_random_cases_of_each_dtype(tmp_path):
    results = run(tmp_path, "--examples=500", "-k", "right and matches_oracle")
    mine = [r for r in results.values() if r.get("implementation") == "right"]
    assert [r["outcome"] for r in mine] == ["passed", "passed"]
    assert all(r["cases"] == 500 for r in mine)


def test_every_wrong_table_is_rejected_and_the_right_one_is_not(tmp_path):
    words = ("--profile=ci", "--no-shrink", "-k", "matches_oracle")
    results = run(tmp_path, *words, module="wrong_rope_table.py")
    found = {r["implementation"]: r["outcome"] for r in results.values() if "implementation" in r}
    assert len(found) == 15
    assert found.pop("right") == "passed"
    assert set(found.values()) == {"failed"}, found


ATTENTION = (
    "wrong_attention.py wrong_attention_arithmetic.py "
    "wrong_attention_sequences.py wrong_attention_parts.py"
)
# kernel -> the law named for it; test_matches_oracle, where a kernel is not listed
NAMED = {
    "accumulator_not_rescaled": "test_the_order_of_keys_is_irrelevant",
    "denominator_not_rescaled": "test_the_order_of_keys_is_irrelevant",
    "normalised_output_mixed_in": "test_out_lies_in_the_hull_of_visible_values",
    "tile_outputs_averaged": "test_any_split_of_the_keys_merges_by_lse",
    "window_one_too_far_left": "test_a_hidden_key_has_no_influence",
    "window_one_too_short_left": "test_a_visible_key_has_influence",
    "window_one_too_far_right": "test_a_hidden_key_has_no_influence",
    "window_one_too_short_right": "test_a_visible_key_has_influence",
    "causal_one_key_too_many": "test_a_hidden_key_has_no_influence",
    "kv_heads_interleaved": "test_grouped_heads_equal_repeated_heads",
    "lse_in_base_2": "test_any_split_of_the_keys_merges_by_lse",
    "lse_one_tile_late": "test_any_split_of_the_keys_merges_by_lse",
    "empty_rows_nan": "test_masked_keys_are_as_if_absent",
    "last_partial_tile_dropped": "test_a_visible_key_has_influence",
    "first_q_offset_for_all": "test_a_sequence_is_the_same_alone_and_in_a_batch",
    "query_scaled_in_place": "test_writes_its_outputs_and_nothing_else",
    "last_features_of_out_unwritten": "test_writes_its_outputs_and_nothing_else",
    "v_read_with_the_strides_of_k": "test_strided_equals_contiguous",
    "last_tile_reads_the_next_sequence": "test_other_sequences_have_no_influence",
    "rows_of_no_sequence_unwritten": "test_writes_its_outputs_and_nothing_else",
    "pages_in_storage_order": "test_the_order_of_pages_is_irrelevant",
    "stale_table_tail_followed": "test_the_order_of_pages_is_irrelevant",
    "first_sequences_pages_for_all": "test_a_sequence_is_the_same_alone_and_among_others",
    "empty_states_multiplied_by_0": "test_a_state_without_keys_is_the_identity",
    "last_state_dropped": "test_the_order_of_states_is_irrelevant",
}


def each_by_its_law() -> str:
    """What -k selects: every wrong kernel under its own law."""
    listed = [f"{law} and -{kernel}-" for kernel, law in NAMED.items()]
    rest = " or ".join(f"-{kernel}-" for kernel in ("right", "right_declared", *NAMED))
    return " or ".join(f"({words})" for words in (*listed, f"test_matches_oracle and not ({rest})"))


def test_every_wrong_attention_is_rejected_by_the_law_named_for_it(tmp_path):
    words = ("--profile=ci", "--no-shrink", "-k", each_by_its_law())
    results = run(tmp_path, *words, module=ATTENTION)
    found = [r for r in results.values() if r.get("outcome") in ("passed", "failed")]
    assert len({(r["contract"], r["implementation"]) for r in found}) == 64
    survivors = [
        f"{r['implementation']} {r['dtype']}: {r['law']}" for r in found if not rejected(r)
    ]
    assert not survivors


def rejected(result) -> bool:
    """Whether a case showed a wrong output; an exception would be no verdict, nor would a law that
    finds its cases uninformative.
    """
    if result["outcome"] != "failed":
        return False
    failure = result["failure"]
    found = failure["kind"] in ("Violation", "MemoryFault")
    return found and not failure["detail"].get("of_the_law")


def test_right_attentions_pass_every_law(tmp_path):
    words = ("--profile=ci", "--examples=10", "--no-shrink", "-k", "(-right- or -right_declared-)")
    results = run(tmp_path, *words, module=ATTENTION)
    failed = [key for key, r in results.items() if r["outcome"] == "failed"]
    assert not failed
    passed = {r["contract"] for r in results.values() if r["outcome"] == "passed"}
    assert len(passed) == 5
