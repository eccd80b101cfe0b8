"""Wrong gradients of rotations are rejected, each by a named law; their right twin is not."""

from __future__ import annotations

from test_wrong_kernels import rejected, run

ADJOINT = "test_the_gradient_is_the_rotation_s_adjoint"
UNDOES = "test_the_gradient_of_a_rotation_undoes_it"
MEMORY = "test_writes_its_outputs_and_nothing_else"
# kernel -> the law named for it
NAMED = {
    "sign_of_the_forward": ADJOINT,
    "sign_of_the_forward_for_dk": UNDOES,
    "second_of_a_pair_first": ADJOINT,
    "layout_swapped": UNDOES,
    "not_turned": ADJOINT,
    "inverse_of_unequal_norm": ADJOINT,
    "one_position_late": UNDOES,
    "tail_zeroed": "test_gradients_past_rotary_dim_are_untouched",
    "products_in_the_input_s_dtype": "test_matches_oracle",
    "in_place_on_dk_forgotten": MEMORY,
    "given_gradient_clobbered": MEMORY,
}
ADAPTERS = "wrong_rope_backward.py"


def each_by_its_law() -> str:
    """What -k selects: every wrong kernel under its own law."""
    return " or ".join(f"({law} and -{name}-)" for name, law in NAMED.items())


def test_every_wrong_gradient_is_rejected_by_the_law_named_for_it(tmp_path):
    told = "test_matches_oracle and -sign_of_the_forward-"
    words = ("--profile=ci", "--no-shrink", "-k", f"{each_by_its_law()} or ({told})")
    results = run(tmp_path, *words, module=ADAPTERS)
    found = [r for r in results.values() if r.get("outcome") in ("passed", "failed")]
    assert {r["implementation"] for r in found} == set(NAMED)
    assert not [f"{r['implementation']} {r['dtype']}" for r in found if not rejected(r)]
    diagnosed = [r["failure"]["detail"].get("diagnosis", "") for r in found]
    assert sum("itself, not its transpose" in said for said in diagnosed) == 2  # one a dtype


def test_the_right_gradient_passes_every_law(tmp_path):
    words = ("--profile=ci", "--examples=12", "--no-shrink", "-k", "(-right-)")
    results = run(tmp_path, *words, module=ADAPTERS)
    laws = {r["law"]: r["outcome"] for r in results.values() if r.get("implementation") == "right"}
    assert set(laws.values()) == {"passed"}, laws
    assert set(NAMED.values()) <= set(laws)
