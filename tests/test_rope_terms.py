"""Every term of the budgets of `rope` and `rope_backward` is needed, for either output.

The gradient is the rotation with the opposite sine, so that families and simulated kernels, whose
docstrings say more, are those of tests/test_rope_budget.py.
"""

from __future__ import annotations

import pytest
from test_rope_budget import FAMILIES, PATTERNS, SIZE, excess

from tightrope.contract import contract

OUTPUTS = {"q": ("rope", 1), "k": ("rope", 1), "dq": ("rope_backward", -1),
           "dk": ("rope_backward", -1)}  # fmt: skip


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_deleting_a_term_is_noticed(family, output):
    chosen, (name, sign) = FAMILIES[family], OUTPUTS[output]
    spec = contract(name)
    case = spec.case(**{**SIZE, **chosen.fields}, interleaved="k" in output)
    given = spec.inputs(case)
    turned = {short.removeprefix("d"): x for short, x in given.items()}
    turned["sin"] = sign * given["sin"]
    budget = spec.budget(case, given, chosen.arithmetic)[output]

    def worst(budget):
        moved = (excess(case, turned, output[-1], chosen.arithmetic, budget, p) for p in PATTERNS)
        return max(moved)

    assert worst(budget) <= 1
    assert worst(budget.without(chosen.term)) > 1
