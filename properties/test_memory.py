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
    """Demands: the same values in contiguous memory, and with one tensor alone strided, give the
    same outputs (bitwise if prescribed).

    Kills: a stride that is ignored, or one tensor's stride used for another, also where a case
    gives both of them the same layout (cos and sin).
    """
    inputs = impl.contract.inputs(case)
    strided = impl(case, inputs)
    known = budgets(impl, case, inputs)
    for layouts in ({}, *one_alone(impl, case)):
        plain = impl(case, inputs, layouts=layouts)
        for name in set(known) & set(impl.outputs):
            story = f"strided and contiguous inputs must agree ({layouts or 'all contiguous'})"
            same_value(name, strided[name], plain[name], known[name], story)


def one_alone(impl, case):
    """Layouts in which one of several strided tensors, chosen by the seed, keeps its own.

    None where an implementation wants layouts that go together.
    """
    where = impl.contract.layouts(case)
    apart = sorted(name for name, layout in where.items() if layout != "contiguous")
    if len(apart) > 1 and not any("layout" in relation for relation in impl.where):
        name = apart[case.seed % len(apart)]
        yield {name: where[name]}
