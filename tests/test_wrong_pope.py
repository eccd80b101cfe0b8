"""Wrong polar attentions are rejected, each by the law named for it; right ones pass every law.

The laws run as `tightrope run --impl=tests/wrong_pope.py --profile=ci` runs them, unshrunk.
"""

from __future__ import annotations

from test_wrong_kernels import rejected, run

ADAPTERS = "wrong_pope.py wrong_pope_parts.py"
RIGHT = ("right", "right_exact", "right_declared")
RIGHT_ONES = f"({' or '.join(f'-{name}-' for name in RIGHT)})"
WITHOUT_POSITIONS = "test_without_positions_it_is_attention_on_magnitudes"
SHIFT = "test_a_common_shift_of_all_positions_changes_nothing"
NAMED = {
    "relu_for_softplus": WITHOUT_POSITIONS,
    "plain_features_made_magnitudes": WITHOUT_POSITIONS,
    "plain_features_dropped": WITHOUT_POSITIONS,
    "scale_of_the_doubled_width": WITHOUT_POSITIONS,
    "exp_for_softplus": "test_a_score_is_bounded_by_its_magnitudes",
    "sine_dropped": SHIFT,
    "positions_mask": SHIFT,
    "positions_in_int32": SHIFT,
    "positions_in_float32": SHIFT,
    "angles_in_bfloat16": SHIFT,
    "angles_in_float16": SHIFT,
    "angles_in_float32": SHIFT,
    "phase_on_the_query": "test_a_phase_is_a_shift_of_the_keys",
    "phase_negated": "test_a_phase_is_a_shift_of_the_keys",
    "phase_dropped": "test_a_phase_is_a_shift_of_the_keys",
    "phase_clamped": "test_a_phase_is_periodic",
    "phase_of_kv_heads_interleaved": "test_grouped_heads_equal_repeated_heads",
    "kv_heads_interleaved": "test_grouped_heads_equal_repeated_heads",
    "indices_of_keys_for_positions": "test_the_order_of_keys_is_irrelevant",
    "q_positions_counted_from_0": "test_prefill_in_chunks_and_decode_equal_one_shot",
    "top_left_for_bottom_right": "test_prefill_in_chunks_and_decode_equal_one_shot",
    "first_positions_for_all": "test_a_sequence_is_the_same_alone_and_in_a_batch",
    "bottom_right_whatever_the_offset": "test_keys_of_zeros_that_no_row_sees_change_nothing",
    "padding_to_a_block_seen": "test_a_key_of_zeros_counts",
    "keys_of_zeros_taken_for_padding": "test_a_key_of_zeros_counts",
    **dict.fromkeys(
        (
            *("paired_frequencies", "frequencies_of_rope", "exponent_of_the_other_sign"),
            *("phase_shared_over_heads", "phase_in_bfloat16", "phase_in_float16"),
            *("q_one_position_late", "k_one_position_late", "keys_turned_again"),
            *("softplus_linear_from_5", "naive_softplus"),
            *("naive_softplus_overflows", "naive_softplus_in_bfloat16"),
            *("naive_softplus_in_float16", "magnitudes_in_bfloat16", "magnitudes_in_float16"),
            *("table_in_bfloat16", "table_in_float16", "table_in_bfloat16_at_long_positions"),
            *("frequencies_in_bfloat16", "features_truncated", "features_in_float8"),
            "features_not_rounded",
        ),
        "test_matches_oracle",
    ),
}


def each_by_its_law() -> str:
    """What -k selects: every wrong kernel under its own law."""
    return " or ".join(f"({law} and -{kernel}-)" for kernel, law in NAMED.items())


def test_every_wrong_polar_attention_is_rejected_by_the_law_named_for_it(tmp_path):
    words = ("--profile=ci", "--no-shrink", "-k", each_by_its_law())
    results = run(tmp_path, *words, module=ADAPTERS)
    found = [r for r in results.values() if r.get("outcome") in ("passed", "failed")]
    assert {r["implementation"] for r in found} == set(NAMED)
    survivors = {
        f"{r['implementation']} {r['dtype']}: {r['law']}" for r in found if not rejected(r)
    }
    assert not survivors


def test_right_polar_attentions_pass_every_law(tmp_path):
    words = ("--profile=ci", "--examples=2", "--no-shrink", "-k", RIGHT_ONES)
    results = run(tmp_path, *words, module="wrong_pope.py")
    failed = [key for key, r in results.items() if r["outcome"] == "failed"]
    assert not failed
    assert {r["implementation"] for r in results.values() if r["outcome"] == "passed"} == set(RIGHT)
