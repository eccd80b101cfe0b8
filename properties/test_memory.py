"""Where a kernel writes: its outputs, all of them, and nothing else."""

from __future__ import annotations

from tightrope import holds_for
from tightrope.compare import budgets, same_value


@holds_for()
def test_writes_its_outputs_and_nothing_else(impl, case):
    """Demands (bitwise): guard bands, gaps of strided tensors and inputs keep their bytes, no
    element of an output keeps the poison it started with, an in-place call returns its arguments.

    The arena checks every call of every law; here nothing else is looked at. Kills: stores past the
    head or the token count, clobbered inputs, unwritten tails, in place forgotten for k.
    """
    impl(case)


CONTIGUOUS = dict.fromkeys(("layout", "layout_q", "layout_k", "layout_table"), ("contiguous",))


@holds_for(needs=CONTIGUOUS)
def test_strided_equals_contiguous(impl, case):
    """Demands: the same values in contiguous memory give the same outputs (bitwise if prescribed).

    Kills: a stride that is ignored, or one tensor's stride used for another.
    """
    inputs = impl.contract.inputs(case)
    strided = impl(case, inputs)
    plain = impl(case, inputs, layouts={})
    for name, budget in budgets(impl, case, inputs).items():
        if name in impl.outputs:
            same_value(
                name, strided[name], plain[name], budget, "strided and contiguous inputs must agree"
            )
