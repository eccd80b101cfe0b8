"""Laws of the tables of cosines and sines."""

from __future__ import annotations

import numpy as np

from tightrope import holds_for
from tightrope.compare import budgets, reach, same_bits, within
from tightrope.formats import widen


@holds_for("rope_table")
def test_cos_and_sin_lie_on_the_unit_circle(impl, case):
    """Demands: cos^2 + sin^2 = 1 within 2(|cos| + |sin|) e + 2 e^2, e the larger of both errors.

    Kills: cos and sin of different angles, a scaled table. Blind to a wrong angle: the larger error
    is taken so that where the right values are small does not matter.
    """
    inputs = impl.contract.inputs(case)
    outputs, spent = impl(case, inputs), budgets(impl, case, inputs)
    c, s = widen(outputs["cos"]), widen(outputs["sin"])
    e = np.maximum(reach(spent["cos"]), reach(spent["sin"]))
    limit = 2 * (np.abs(c) + np.abs(s)) * e + 2 * e**2 + 2.0**-50
    within("cos^2 + sin^2", c**2 + s**2 - 1.0, limit, "the table must lie on the unit circle")


@holds_for("rope_table", needs={"positions": ("negative",)})
def test_angles_add(impl, case):
    """Demands: the row of m - n is the difference of the rows of m and n, within the budgets.

    Kills: positions that collide in a narrow format, an angle formed in low precision.
    """
    inputs = impl.contract.inputs(case)
    positions = inputs["positions"].astype(np.int64)
    if len(positions) < 2:
        return
    apart = positions - np.roll(positions, 1)
    if (np.abs(apart) > 2**31 - 1).any() and inputs["positions"].dtype.itemsize == 4:
        return
    other = {**inputs, "positions": apart.astype(inputs["positions"].dtype)}
    here, there = impl(case, inputs), impl(case, other)
    e, f = budgets(impl, case, inputs), budgets(impl, case, other)
    c, s = widen(here["cos"]), widen(here["sin"])
    cn, sn = np.roll(c, 1, 0), np.roll(s, 1, 0)
    ec, es = reach(e["cos"]), reach(e["sin"])
    spread = (
        (ec + es) * 1.5
        + np.roll(ec + es, 1, 0) * 1.5
        + (ec + es) * np.roll(ec + es, 1, 0)
        + 2.0**-50
    )
    within(
        "cos(m - n)",
        c * cn + s * sn - widen(there["cos"]),
        spread + reach(f["cos"]),
        "angles must add",
    )
    within(
        "sin(m - n)",
        s * cn - c * sn - widen(there["sin"]),
        spread + reach(f["sin"]),
        "angles must add",
    )


@holds_for("rope_table")
def test_each_row_depends_on_its_position_only(impl, case):
    """Demands (bitwise): rows in another order, or alone, are the same rows.

    Kills: a row taken from the token's place, tables that grow with the longest position seen.
    """
    inputs = impl.contract.inputs(case)
    order = np.random.default_rng(case.seed).permutation(len(inputs["positions"]))
    whole = impl(case, inputs)
    mixed = impl(case, {**inputs, "positions": np.ascontiguousarray(inputs["positions"][order])})
    for name in impl.outputs:
        same_bits(name, whole[name][order], mixed[name], "a row must depend on its position only")


@holds_for("rope_table")
def test_position_zero_is_the_identity(impl, case):
    """Demands (by value): cos = 1 and sin = 0 at position 0.

    Kills: positions that start at 1, a phase.
    """
    inputs = impl.contract.inputs(case)
    zero = impl(case, {**inputs, "positions": np.zeros_like(inputs["positions"])})
    within("cos", widen(zero["cos"]) - 1.0, np.zeros(()), "position 0 must be the identity")
    within("sin", widen(zero["sin"]), np.zeros(()), "position 0 must be the identity")


@holds_for("rope_table", needs={"positions": ("negative",)})
def test_cos_is_even_and_sin_is_odd(impl, case):
    """Demands: the rows of m and -m agree, but for the sign of sin, within the budgets.

    Kills: |position| or unsigned positions, a phase.
    """
    inputs = impl.contract.inputs(case)
    if (inputs["positions"] == np.iinfo(inputs["positions"].dtype).min).any():
        return  # it has no opposite
    back = {**inputs, "positions": -inputs["positions"]}
    here, there = impl(case, inputs), impl(case, back)
    e, f = budgets(impl, case, inputs), budgets(impl, case, back)
    within(
        "cos",
        widen(here["cos"]) - widen(there["cos"]),
        reach(e["cos"]) + reach(f["cos"]),
        "cos is even",
    )
    within(
        "sin",
        widen(here["sin"]) + widen(there["sin"]),
        reach(e["sin"]) + reach(f["sin"]),
        "sin is odd",
    )
