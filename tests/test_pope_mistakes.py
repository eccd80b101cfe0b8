"""`pope_attention`: cases that say something, and the mistakes that they make visible."""

from __future__ import annotations

from collections import Counter

import pytest
from attention_case_draws import drawn

from tightrope import Arithmetic
from tightrope.ledger import UNINFORMATIVE_SHARE
from tightrope.oracles.pope_attention import CONTRACT, PopeAttentionCase
from tightrope.oracles.pope_attention_cases import DATA, POSITIONS
from tightrope.polar import EXPONENT_AS_PRINTED

STRANGER = Arithmetic().over(CONTRACT.stages)
LIGHT = {
    **{"angle": "exact", "trig_ulp": 0.51, "table": "float16", "phase": "query", "block_k": 64},
    **{"softplus_ulp": 4.0, "softplus_error": 0.0, "dot": "hopper_mma", "logits": "scaled"},
}
EXACT_ANGLES = Arithmetic(**LIGHT).over(CONTRACT.stages)


def some(count=60, where=(), size="small", **limited):
    return drawn("pope_attention", count, where, size, **limited)


def useless(case, arithmetic):
    """The null models that a case's budget accepts."""
    inputs = CONTRACT.inputs(case)
    budgets = CONTRACT.budget(case, inputs, arithmetic)
    models = CONTRACT.nulls(case, inputs)
    return [n for n, m in models.items() if all(budgets[o].accepts(y) for o, y in m.items())]


@pytest.mark.parametrize(
    ("arithmetic", "limited"), [(STRANGER, {}), (EXACT_ANGLES, {"positions": POSITIONS})]
)
def test_hardly_any_case_would_let_a_useless_model_pass(arithmetic, limited):
    cases = [c for c in some(150, **limited) if c.batch and c.seqlen_q and c.seqlen_k]
    found = [(useless(c, arithmetic), c) for c in cases]
    found = [(names, c) for names, c in found if names]
    assert len({c.seed for _, c in found}) < UNINFORMATIVE_SHARE * len(cases), found


def test_float32_angles_say_nothing_of_far_positions_with_growing_frequencies():
    for start in (2**20, 2**24, 2**40):
        case = PopeAttentionCase(
            seqlen_k=40, seqlen_q=3, q_offset=37, causal=True, positions="long", start=start,
            exponent_sign=EXPONENT_AS_PRINTED, head_dim=64, rotary_dim=64,
        )  # fmt: skip
        assert "positions ignored" in useless(case, STRANGER)
        assert not useless(case, EXACT_ANGLES)


MISTAKES = (
    "relu for softplus",
    "exp for softplus",
    "softplus linear from 5 on",
    "the sum in float16",
    "one frequency for features 2i",
    "one frequency for features i and",
    "exponent's other sign",
    "(sin) left out",
    "angles added",
    "opposite direction",
    "cos and sin rounded to bfloat16",
    "angles in float16",
    "positions ignored",
    "no delta",
    "delta negated",
    "the first head's delta",
    "delta of the heads in reverse order",
    "q_positions one late",
    "k_positions one early",
    "indices taken for positions",
    "the scale of the expanded width",
    "past the end",
    "positions taken for indices by the mask",
    "no causal mask",
    "no softmax_scale",
    "lse in base 2",
)


def test_each_known_mistake_is_visible_in_many_of_the_cases_of_one_run():
    """What the budget of a kernel with exact angles rejects. Seen in 5 of 100, a mistake stays
    unseen in fewer than 1 of 100 such runs: 0.95**100 < 0.006.
    """
    seen: Counter[str] = Counter()
    limited = {"dtype": ("float16",), "positions": POSITIONS, "head_dim": (16, 40)}
    for case in some(100, **limited):
        inputs = CONTRACT.inputs(case)
        budgets = CONTRACT.budget(case, inputs, EXACT_ANGLES)
        told = {
            sentence for sentence, outputs in CONTRACT.alternatives(case, inputs)
            if not all(budgets[n].accepts(y) for n, y in outputs.items())
        }  # fmt: skip
        seen.update(m for m in MISTAKES if any(m in sentence for sentence in told))
    assert {m: seen[m] for m in MISTAKES if seen[m] < 5} == {}
    assert set(DATA) >= {c.data for c in some(100, **limited)}
