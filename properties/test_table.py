"""Laws of the tables of cosines and sines."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tightrope import holds_for
from tightrope.compare import budgets, reach, same_bits, within
from tightrope.formats import widen
from tightrope.oracles.rope_table_scaling import amplitude

PLAIN = {"rope_scaling": ("default",), "axes": ("one",)}


@holds_for("rope_table", "pope_table", needs=PLAIN)
def test_cos_and_sin_lie_on_the_unit_circle(impl, case):
    """Demands: cos^2 + sin^2 = 1 within 2(|cos| + |sin|) e + 2 e^2, e the larger of both errors.

    Kills: cos and sin of different angles, a scaled table. Blind to a wrong angle: the larger error
    is taken so that where the right values are small does not matter. (Scaled tables have a norm of
    their own.)
    """
    if amplitude(case) != 1:
        case = replace(case, rope_scaling="default")
    inputs = impl.contract.inputs(case)
    outputs, spent = impl(case, inputs), budgets(impl, case, inputs)
    c, s = widen(outputs["cos"]), widen(outputs["sin"])
    e = np.maximum(reach(spent["cos"]), reach(spent["sin"]))
    limit = 2 * (np.abs(c) + np.abs(s)) * e + 2 * e**2 + 2.0**-50
    within("cos^2 + sin^2", c**2 + s**2 - 1.0, limit, "the table must lie on the unit circle")


@holds_for("rope_table", "pope_table", needs={"positions": ("negative",)})
def test_angles_add(impl, case):
    """Demands: the row of m - n is the difference of the rows of m and n, within the budgets.

    Kills: positions that collide in a narrow format, an angle formed in low precision.
    """
    inputs = impl.contract.inputs(case)
    positions, a = inputs["positions"].astype(np.int64), amplitude(case)
    if positions.shape[-1] < 2:
        return
    apart = positions - np.roll(positions, 1, -1)
    if (np.abs(apart) > 2**31 - 1).any() and inputs["positions"].dtype.itemsize == 4:
        return
    other = {**inputs, "positions": apart.astype(inputs["positions"].dtype)}
    here, there = impl(case, inputs), impl(case, other)
    e, f = budgets(impl, case, inputs), budgets(impl, case, other)
    c, s = widen(here["cos"]), widen(here["sin"])
    cn, sn = np.roll(c, 1, 0), np.roll(s, 1, 0)
    ec, es = reach(e["cos"]), reach(e["sin"])
    spread = (
        (ec + es) * 1.5 * a
        + np.roll(ec + es, 1, 0) * 1.5 * a
        + (ec + es) * np.roll(ec + es, 1, 0)
        + 2.0**-48 * a**2
    )
    within(
        "cos(m - n)",
        c * cn + s * sn - a * widen(there["cos"]),
        spread + a * reach(f["cos"]),
        "angles must add",
    )
    within(
        "sin(m - n)",
        s * cn - c * sn - a * widen(there["sin"]),
        spread + a * reach(f["sin"]),
        "angles must add",
    )


@holds_for("rope_table", "pope_table")
def test_each_row_depends_on_its_position_only(impl, case):
    """Demands (bitwise): rows in another order are the same rows, inv_freq is the same at any.

    Kills: a row taken from the token's place, tables that grow with the longest position seen.
    """
    inputs = impl.contract.inputs(case)
    order = np.random.default_rng(case.seed).permutation(inputs["positions"].shape[-1])
    whole, moved = impl(case, inputs), np.ascontiguousarray(inputs["positions"][..., order])
    mixed = impl(case, {**inputs, "positions": moved})
    for name in impl.outputs:
        expected = whole[name] if name == "inv_freq" else whole[name][order]
        same_bits(name, expected, mixed[name], "a row must depend on its position only")
    if "inv_freq" in impl.outputs:
        away = impl(case, {**inputs, "positions": np.ones_like(inputs["positions"])})
        story = "frequencies must not depend on positions"
        same_bits("inv_freq", whole["inv_freq"], away["inv_freq"], story)


@holds_for("pope_table", returns=("inv_freq",))
def test_frequencies_are_the_angles_of_position_one(impl, case):
    """Demands: at position 1 the table has cos and sin of inv_freq, within the budgets.

    Kills: a table of other frequencies than those returned (another sign of the exponent, another
    rounding), a phase. Cosine and sine change no faster than their angle.
    """
    inputs = impl.contract.inputs(case)
    first = {**inputs, "positions": np.ones_like(inputs["positions"])}
    outputs, spent = impl(case, first), budgets(impl, case, first)
    angle = widen(outputs["inv_freq"])[None, :]
    far = reach(spent["inv_freq"])[None, :] + 2.0**-50
    for name, function in (("cos", np.cos), ("sin", np.sin)):
        within(
            name,
            widen(outputs[name]) - function(angle),
            reach(spent[name]) + far,
            "the angle of position 1 must be inv_freq",
        )


@holds_for("rope_table", "pope_table")
def test_position_zero_is_the_identity(impl, case):
    """Demands (by value): cos = 1, or attention_factor, and sin = 0 at position 0.

    Kills: positions that start at 1, a phase.
    """
    inputs, a = impl.contract.inputs(case), amplitude(case)
    origin = {**inputs, "positions": np.zeros_like(inputs["positions"])}
    zero = impl(case, origin)
    limit = np.zeros(()) if a == 1 else reach(budgets(impl, case, origin)["cos"])
    within("cos", widen(zero["cos"]) - a, limit, "position 0 must be the identity")
    within("sin", widen(zero["sin"]), np.zeros(()), "position 0 must be the identity")


@holds_for("rope_table", "pope_table", needs={"positions": ("negative",)})
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
