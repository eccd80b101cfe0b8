"""Wrong gradients of packed attention are rejected, each by the law named for it; right ones pass.

The laws run as `tightrope run --impl=tests/wrong_attention_varlen_backward.py --profile=ci` runs
them, unshrunk.
"""

from __future__ import annotations

from test_wrong_kernels import rejected, run

ADAPTERS = "wrong_attention_varlen_backward.py"
RIGHT_ONES = "(-right- or -right_declared-)"
ALONE = "test_a_sequence_is_the_same_alone_and_among_others"
OTHERS = "test_other_sequences_have_no_influence"
GROUP, ORACLE = "test_a_kv_head_receives_the_sum_over_its_group", "test_matches_oracle"
WRITES = "test_writes_its_outputs_and_nothing_else"
NAMED = {
    **dict.fromkeys(("last_keys_of_the_next_sequence", "last_rows_of_the_next_sequence"), OTHERS),
    **dict.fromkeys(("keys_begin_where_rows_do", "first_q_offset_for_all"), ALONE),
    **dict.fromkeys(("q_offset_of_the_next_sequence", "ends_at_an_empty_sequence"), ALONE),
    **dict.fromkeys(("grid_of_the_first_length", "lse_read_tokens_first"), ALONE),
    "accumulator_not_emptied_between_sequences": ALONE,
    **dict.fromkeys(("last_head_of_the_group", "mean_over_the_group"), GROUP),
    **dict.fromkeys(("top_left", "spare_tokens_join_the_last_sequence"), ORACLE),
    **dict.fromkeys(("last_partial_keys_dropped", "scale_twice", "no_rowsum"), ORACLE),
    "ds_not_rounded": ORACLE,
    "spare_tokens_unwritten": WRITES,
}
TOLD = {
    "top_left": "the mask aligned top-left (q_offset 0)",
    "scale_twice": "softmax_scale twice",
}


def each_by_its_law() -> str:
    """What -k selects: every wrong kernel under its own law."""
    return " or ".join(f"({law} and -{kernel}-)" for kernel, law in NAMED.items())


def test_every_wrong_packed_gradient_is_rejected_by_the_law_named_for_it(tmp_path):
    results = run(
        tmp_path, "--profile=ci", "--no-shrink", "--dtype=float16", "-k", each_by_its_law(),
        module=ADAPTERS,
    )  # fmt: skip
    judged = {r["implementation"]: r for r in results.values() if r.get("cases")}
    assert set(judged) == set(NAMED)
    assert [name for name, result in judged.items() if not rejected(result)] == []
    for name, sentence in TOLD.items():
        assert sentence in judged[name]["failure"]["detail"]["diagnosis"]


def test_right_packed_gradients_pass_every_law(tmp_path):
    words = ("--profile=ci", "--examples=2", "--dtype=bfloat16", "--no-shrink", "-k", RIGHT_ONES)
    results = run(tmp_path, *words, module=ADAPTERS).values()
    judged = [r for r in results if r.get("outcome") != "skipped"]
    assert {r["outcome"] for r in judged} == {"passed"}
    assert {ALONE, OTHERS, GROUP, ORACLE, WRITES} <= {r["law"] for r in judged}
