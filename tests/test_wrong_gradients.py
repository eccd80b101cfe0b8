"""Wrong gradients of attention are rejected, each by the law named for it; right ones pass all.

The laws run as `tightrope run --impl=tests/wrong_attention_backward.py --profile=ci` runs them,
unshrunk.
"""

from __future__ import annotations

from test_wrong_kernels import rejected, run

ADAPTERS = "wrong_attention_backward.py"
RIGHT = ("right", "right_declared")
RIGHT_ONES = f"({' or '.join(f'-{name}-' for name in RIGHT)})"
BALANCE, PARTS = "test_gradients_balance", "test_parts_add_up"
MEET, NOTHING = (
    "test_pairs_that_do_not_see_each_other_do_not_meet",
    "test_what_sees_nothing_changes_nothing",
)
GROUP, ORACLE = "test_a_kv_head_receives_the_sum_over_its_group", "test_matches_oracle"
WRITES = "test_writes_its_outputs_and_nothing_else"
NAMED = {
    **dict.fromkeys(("no_rowsum", "dk_without_scale", "lse_in_base_2", "lse_negated"), BALANCE),
    **dict.fromkeys(("no_causal_mask", "causal_one_key_late", "no_window"), MEET),
    "window_one_short": BALANCE,
    "top_left": MEET,
    "empty_rows_nan": NOTHING,
    "last_partial_keys_dropped": BALANCE,
    "state_of_its_own": PARTS,
    "last_partial_rows_dropped": BALANCE,
    "accumulator_not_emptied": BALANCE,
    **dict.fromkeys(("last_head_of_the_group", "mean_over_the_group"), GROUP),
    "kv_heads_interleaved": GROUP,
    "first_q_offset_for_all": ORACLE,
    **dict.fromkeys(("last_features_of_dv_unwritten", "dout_scaled_in_place"), WRITES),
    **dict.fromkeys(("scale_twice", "no_scale", "no_softcap_derivative"), ORACLE),
    "softcap_derivative_1_minus_tanh": ORACLE,
    "rowsum_of_one_feature_less": BALANCE,
    **dict.fromkeys((f"{what}_in_{short}" for short in ("bfloat16", "float16") for what in (
        "dq_accumulated", "rowsum", "upstream", "heads_added")), ORACLE),
    **dict.fromkeys(("p_not_rounded", "p_truncated", "ds_not_rounded", "ds_truncated",
                     "ds_of_rounded_p"), ORACLE),
}  # fmt: skip

TOLD = {
    "scale_twice": "softmax_scale twice", "no_scale": "no softmax_scale",
    "no_softcap_derivative": "no derivative of the softcap",
}  # fmt: skip


def each_by_its_law() -> str:
    """What -k selects: every wrong kernel under its own law."""
    return " or ".join(f"({law} and -{kernel}-)" for kernel, law in NAMED.items())


def test_every_wrong_gradient_is_rejected_by_the_law_named_for_it(tmp_path):
    words = ("--profile=ci", "--no-shrink", "-k", each_by_its_law())
    judged = [r for r in run(tmp_path, *words, module=ADAPTERS).values() if "cases" in r]
    killed = {(r["implementation"], r["dtype"]): rejected(r) for r in judged if r["cases"]}
    assert {name for name, _ in killed} == set(NAMED)
    assert all(killed.values()), [kernel for kernel, done in killed.items() if not done]
    for result in judged:
        if result["implementation"] in TOLD:
            told = result["failure"]["detail"]["diagnosis"]
            assert TOLD[result["implementation"]] in told


def test_right_gradients_pass_every_law(tmp_path):
    words = ("--profile=ci", "--examples=3", "--no-shrink", "-k", RIGHT_ONES)
    outcomes = {
        (r["law"], r["implementation"]): r["outcome"]
        for r in run(tmp_path, *words, module=ADAPTERS).values() if r.get("outcome") != "skipped"
    }  # fmt: skip
    assert set(outcomes.values()) == {"passed"}, outcomes
    assert {name for law, name in outcomes if law == BALANCE} == set(RIGHT)
