"""Wrong builders of scaled tables are rejected, each by a named law; their right twin is not."""

from __future__ import annotations

from test_wrong_kernels import rejected, run

# builder -> the law named for it; test_matches_oracle, where a builder is not listed
FAST = "test_fast_columns_stay_and_slow_ones_are_interpolated"
NORM = "test_pairs_have_the_declared_norm"
AXIS = "test_each_column_turns_by_its_own_axis"
NAMED = {
    "unscaled_returned": FAST,
    "factor_in_the_exponent": "test_matches_oracle",
    "ramp_clamped_at_half": "test_matches_oracle",
    "bounds_untruncated": "test_matches_oracle",
    "ends_of_the_ramp_swapped": FAST,
    "mscale_dropped": NORM,
    "mscale_squared": NORM,
    "attention_factor_once_in_logits": NORM,
    "base_kept_after_a_long_call": "test_a_longer_call_before_changes_nothing",
    "base_kept_until_back_within_l": "test_a_longer_call_before_changes_nothing",
    "short_factors_one_token_too_long": "test_factors_switch_behind_the_trained_length",
    "head_dim_in_the_exponent": "test_rotary_dim_contains_the_partial_factor",
    "smooth_factor_inverted": "test_matches_oracle",
    "interpolated_for_a_new_base": "test_a_changed_base_keeps_the_first_frequency",
    "factor_counted_from_2": "test_a_factor_of_one_changes_nothing",
    "all_columns_turn": "test_columns_past_the_proportion_rest",
    "axes_added_up": "test_equal_axes_are_one_axis",
    "height_and_width_exchanged": AXIS,
    "interleaved_sections_in_a_row": AXIS,
    "sections_ignored": AXIS,
    "counts_of_height_and_width_exchanged": AXIS,
}


def each_by_its_law() -> str:
    """What -k selects: every wrong builder under its own law."""
    return " or ".join(f"({law} and -{name}-)" for name, law in NAMED.items())


def test_every_wrong_builder_is_rejected_by_the_law_named_for_it(tmp_path):
    words = ("--profile=ci", "--no-shrink", "-k", each_by_its_law())
    results = run(tmp_path, *words, module="wrong_scaling.py")
    found = [r for r in results.values() if r.get("outcome") in ("passed", "failed")]
    assert {r["implementation"] for r in found} == set(NAMED)
    assert not [f"{r['implementation']}: {r['law']}" for r in found if not rejected(r)]


def test_the_right_builder_passes_every_law(tmp_path):
    words = ("--profile=ci", "--examples=8", "--no-shrink", "-k", "(-right-)")
    results = run(tmp_path, *words, module="wrong_scaling.py")
    laws = {r["law"]: r["outcome"] for r in results.values() if r.get("implementation") == "right"}
    assert set(laws.values()) == {"passed"}, laws
    assert set(NAMED.values()) <= set(laws)
