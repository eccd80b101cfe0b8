"""The main check: every output element against its exact value, under a derived budget."""

from __future__ import annotations

from tightrope import holds_for
from tightrope.law import check_case


@holds_for()
def test_matches_oracle(impl, case):
    """Demands: RN(x - e) <= out <= RN(x + e), and the declared roundings replayed (bitwise or T1).

    Kills every mistake that changes a value by more than the budget; the other laws are second
    opinions that need no oracle.
    """
    inputs = impl.contract.inputs(case)
    check_case(impl, case, inputs, impl(case, inputs))
