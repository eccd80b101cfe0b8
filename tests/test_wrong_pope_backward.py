"""Wrong gradients of polar attention are rejected, each by the law named for it; right ones pass.

The laws run as `tightrope run --impl=tests/wrong_pope_backward.py --profile=ci` runs them,
unshrunk.
"""

from __future__ import annotations

from test_wrong_kernels import rejected, run

ADAPTERS = "wrong_pope_backward.py"
RIGHT = ("right", "right_exact", "right_declared")
RIGHT_ONES = f"({' or '.join(f'-{name}-' for name in RIGHT)})"
ORACLE, PARTS = "test_matches_oracle", "test_parts_add_up"
MEET = "test_pairs_that_do_not_see_each_other_do_not_meet"
NOTHING = "test_what_sees_nothing_changes_nothing"
SHIFT = "test_a_common_shift_of_all_positions_leaves_every_gradient"
PHASE = "test_gradients_of_a_phase_are_those_of_a_shift_of_the_keys"
GROUP = "test_a_kv_head_and_a_phase_receive_the_sum_over_their_group"
MAGNITUDES = "test_without_positions_it_is_the_gradient_of_attention_on_magnitudes"
NAMED = {
    **dict.fromkeys((f"{x}_on_the_way_back" for x in (
        "sine_dropped", "cosine_dropped", "sine_negated")), SHIFT),
    **dict.fromkeys(("positions_in_int32", "positions_in_float32"), SHIFT),
    **dict.fromkeys(("no_sigmoid", "relu_derivative", "sigmoid_of_softplus"), MAGNITUDES),
    **dict.fromkeys(("softplus_for_sigmoid", "relu_for_softplus", "no_rowsum"), MAGNITUDES),
    **dict.fromkeys(("plain_features_dropped", "plain_features_through_sigmoid"), MAGNITUDES),
    **dict.fromkeys(("scale_twice", "no_scale", "dk_without_scale"), MAGNITUDES),
    **dict.fromkeys(("scale_of_the_doubled_width", "lse_in_base_2"), MAGNITUDES),
    "no_softcap_derivative": MAGNITUDES,
    **dict.fromkeys(("no_causal_mask", "no_window"), MEET),
    "empty_rows_nan": NOTHING,
    **dict.fromkeys(("padding_to_a_block_seen", "last_partial_keys_dropped"), PARTS),
    **dict.fromkeys(("last_partial_rows_dropped", "accumulator_not_emptied", "top_left"), ORACLE),
    **dict.fromkeys(("ddelta_of_the_last_sequence", "ddelta_averaged_over_sequences"), PARTS),
    **dict.fromkeys(("last_head_of_the_group", "mean_over_the_group"), GROUP),
    "last_head_of_the_group_of_points": GROUP,
    **dict.fromkeys(("phase_left_out_of_the_points", "phase_left_out_of_the_way_back"), PHASE),
    **dict.fromkeys(("phase_negated", "phase_clamped"), PHASE),
    **dict.fromkeys(("ddelta_negated", "ddelta_without_magnitudes", "ddelta_by_sigmoid"), ORACLE),
    **dict.fromkeys(("exponent_of_the_other_sign", "q_one_position_late"), ORACLE),
    **dict.fromkeys(("k_one_position_late", "keys_turned_again"), ORACLE),
    **dict.fromkeys((f"{what}_in_{short}" for short in ("bfloat16", "float16") for what in (
        "dq_of_points_kept", "sigmoid", "table", "table_of_the_way_back", "rowsum")), ORACLE),
    **dict.fromkeys(("p_not_rounded", "ds_not_rounded", "ds_truncated"), ORACLE),
}  # fmt: skip

TOLD = {
    "ddelta_negated": "ddelta negated",
    "k_one_position_late": "k_positions one late",
}


def each_by_its_law() -> str:
    """What -k selects: every wrong kernel under its own law."""
    return " or ".join(f"({law} and -{kernel}-)" for kernel, law in NAMED.items())


def test_every_wrong_polar_gradient_is_rejected_by_the_law_named_for_it(tmp_path):
    words = ("--profile=ci", "--no-shrink", "-k", each_by_its_law())
    judged = [r for r in run(tmp_path, *words, module=ADAPTERS).values() if r.get("cases")]
    assert {r["implementation"] for r in judged} == set(NAMED)
    assert not [f"{r['implementation']} {r['dtype']}" for r in judged if not rejected(r)]
    for result in judged:
        if result["implementation"] in TOLD:
            told = result["failure"]["detail"]["diagnosis"]
            assert TOLD[result["implementation"]] in told


def test_right_polar_gradients_pass_every_law(tmp_path):
    ones = f"{RIGHT_ONES} and -float16"
    words = ("--profile=ci", "--examples=2", "--no-shrink", "-k", ones)
    results = run(tmp_path, *words, module=ADAPTERS)
    outcomes = {
        (r["law"], r["implementation"]): r["outcome"]
        for r in results.values() if r.get("outcome") != "skipped"
    }  # fmt: skip
    assert set(outcomes.values()) == {"passed"}, outcomes
    assert {name for law, name in outcomes if law == SHIFT} == set(RIGHT)
