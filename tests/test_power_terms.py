"""Every named term of the bundled kernels' budgets has a mutant: a small error at its stage alone.

Such a mutant dies like any other (tests/test_power.py, tests/corpus/kills.json), so that no term is
so wide that an error of a few times its stage's promise hides in it. What no mutant can show says
why. tests/test_terms_complete.py demands the other half: that every term is needed.
"""

from __future__ import annotations

import importlib
import pkgutil

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from test_terms_complete import told

import tightrope.impls
from tightrope.device import current, prepare
from tightrope.implementation import registered
from tightrope.law import strategy
from tightrope.mutants import every

BY_ID = {m.id: m for m in every()}
FLUSH = "no mutant: weights below 2^-126 times any float32 but the largest are below the sum's term"
OF_OUT = {
    "exponentials": "attention:weights_off_by_turns", "flush": FLUSH,
    "P rounded to FORMAT": "attention:p_truncated", "accumulation": "attention:accumulator_off",
    "denominator": "attention:denominator_off", "division": "attention:quotient_off",
    "sink": "attention:sink_off",
}  # fmt: skip
OF_LSE = {
    "weights": "attention:weights_off", "denominator": "attention:denominator_off",
    "logarithm": "attention:logarithm_off", "sum": "attention:sum_of_lse_off",
}  # fmt: skip
FORWARD = {"out": OF_OUT, "lse": OF_LSE}
OF_EXACT = {
    "angle within N rad": "{}:low_word_dropped", "cos, sin within N ulp": "{}:values_truncated",
}  # fmt: skip
OF_SINGLE = {
    "position rounded to FORMAT": "{}:float32_position_in_bfloat16",
    "angle rounded to FORMAT": "rope_table:float32_angle_in_float16",
    "inv_freq rounded to FORMAT": "rope_table:frequencies_truncated_to_23_bits",
}
OF_AMPLITUDES = {
    "attention_factor rounded to FORMAT": "rope_table:float32_amplitude_off",
    "cos, sin within N ulp, rounded": "rope_table:float32_function_off",
}
OF_PAIRS = {
    "products rounded to FORMAT": "{}:worked_in_the_input_dtype",
    "sum rounded to FORMAT": "{}:sum_rounded_twice",
}
GRADIENT = {
    "D": "attention_backward:delta_off", "dP": "attention_backward:upstream_off",
    "dS": "attention_backward:ds_off", "accumulation": "attention_backward:sums_off",
    "dS rounded to FORMAT": "attention_backward:ds_truncated",
    "exponentials": "attention_backward:weights_off", "lse": "attention_backward:lse_off",
    "scale": "attention_backward:scale_off", "softcap": "attention_backward:slope_off",
}  # fmt: skip
OF_V = {
    "accumulation": "attention_backward:sums_of_dv_off", "flush": FLUSH,
    "exponentials": "attention_backward:weights_off", "lse": "attention_backward:lse_off",
    "P rounded to FORMAT": "attention_backward:p_truncated",
}  # fmt: skip
GRADIENTS = {"dq": GRADIENT, "dk": GRADIENT, "dv": OF_V}
POINTS = {
    "cos, sin": "pope_attention_backward:angles_off_on_the_way_back",
    "points": "pope_attention_backward:points_of_rows_off",
    "gradients of points rounded": "pope_attention_backward:gradients_of_points_off",
    "way back": "pope_attention_backward:way_back_off",
}  # fmt: skip
OF_Q = {**GRADIENT, **POINTS, "sigmoid": "pope_attention_backward:sigmoid_off"}
OF_PHASES = {
    **GRADIENT, **POINTS, "softplus": "pope_attention_backward:softplus_off",
    "phases added": "pope_attention_backward:phases_off",
}  # fmt: skip
OF_RINGS = {
    "gradients of pairs stored": "ring_attention_backward:pairs_in_the_input_dtype",
    "sums": "ring_attention_backward:sums_of_dk_off",
}
OF_DQ = {**GRADIENT, **OF_RINGS, "sums": "ring_attention_backward:sums_of_dq_off"}


def of(kernel, *terms):
    """Terms with their mutants' names of one kernel."""
    return {t: name.format(kernel) for each in terms for t, name in each.items()}


# contract -> output -> term -> the mutant's name, or why there is none
MUTANT = {
    **dict.fromkeys(("attention", "attention_varlen", "attention_paged", "rope_attention",
                     "pope_attention"), FORWARD),
    "rope": dict.fromkeys("qk", of("rope", OF_PAIRS)),
    "rope_backward": dict.fromkeys(("dq", "dk"), of("rope_backward", OF_PAIRS)),
    "rope_table": dict.fromkeys(
        ("cos", "sin"), of("rope_table", OF_EXACT, OF_SINGLE, OF_AMPLITUDES)
    ),
    "pope_table": {
        **dict.fromkeys(("cos", "sin"), of(
            "pope_table", {**OF_EXACT, "cos, sin within N ulp": "rope_table:values_truncated"},
            OF_SINGLE,
        )),
        "inv_freq": {"inv_freq rounded to FORMAT": "pope_table:float32_frequencies_not_rounded"},
    },
    "query_scale": {"scale": {
        "attn_scale rounded to FORMAT": "query_scale:attn_scale_in_float32",
        "logarithm within N ulp of FORMAT": "query_scale:logarithm_in_float32",
        "product rounded to FORMAT": "query_scale:product_off",
        "sum rounded to FORMAT": "query_scale:sum_off",
    }},
    "merge_attention": {
        "out": {
            "weights": "merge_attention:weights_off_by_turns", "sum": "merge_attention:sum_off",
            "flush": "merge_attention:weights_flushed_early",
            "denominator": "merge_attention:denominator_off",
            "division": "merge_attention:quotient_off",
        },
        "lse": {
            "weights": "merge_attention:weights_off_by_turns",
            "denominator": "merge_attention:denominator_off",
            "logarithm": "merge_attention:logarithm_off",
        },
    },
    "ring_attention": {
        "out": {
            "partial states": "ring_attention:partials_of_the_input_dtype",
            "their lse": "ring_attention:lses_in_bfloat16",
            "merges": "ring_attention:partials_in_bfloat16",
        },
        "lse": {
            "partial states": "ring_attention:lses_in_bfloat16",
            "merges": "ring_attention:lse_of_the_larger_state",
        },
    },
    **dict.fromkeys(("attention_backward", "attention_varlen_backward"),
                    GRADIENTS),
    "pope_attention_backward": {"dq": OF_Q, "dk": OF_Q, "dv": OF_V, "ddelta": OF_PHASES},
    "ring_attention_backward": {
        "dq": OF_DQ, "dk": {**GRADIENT, **OF_RINGS}, "dv": {**OF_V, **OF_RINGS},
    },
}  # fmt: skip


def bundled():
    """Implementations of the bundled kernels; peers are not."""
    for found in pkgutil.iter_modules(tightrope.impls.__path__):
        if not found.name.startswith("peer_"):
            importlib.import_module(f"tightrope.impls.{found.name}")
    mine = registered("tightrope.impls")
    return [i for i in mine if not i.module.rpartition(".")[2].startswith("peer_")]


prepare("cpu")
KERNELS = bundled()


@pytest.mark.parametrize("impl", KERNELS, ids=lambda i: f"{i.contract_name}-{i.name}")
def test_every_term_of_a_kernel_s_budget_has_a_mutant(impl):
    spec, small = impl.contract, {"size": ("small",)}
    narrow = impl.narrow(small if "size" in spec.domain else {})
    terms = set()

    @settings(max_examples=8, derandomize=True, database=None, deadline=None,
              phases=[Phase.generate], suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(strategy(narrow))
    def collect(case):
        for name, budget in impl.budgets(case, spec.inputs(case), current()).items():
            terms.update((name, told(term)) for term in budget.terms)

    collect()
    assert terms
    known = {(name, t) for name, terms in MUTANT[impl.contract_name].items() for t in terms}
    assert terms <= known


def test_every_mutant_of_a_term_can_die_here():
    named = {m for outputs in MUTANT.values() for terms in outputs.values() for m in terms.values()}
    for name in named:
        if name.startswith("no mutant: "):
            assert len(name.split()) > 8
        else:
            mutant = BY_ID[name]
            assert (mutant.equivalent, mutant.needs, mutant.hole) == (None, None, None), name


def test_every_mutant_made_for_a_term_has_its_term():
    named = {m for outputs in MUTANT.values() for terms in outputs.values() for m in terms.values()}
    assert {m.id for m in every() if m.family == "terms"} <= named
