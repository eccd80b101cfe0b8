"""Laws of one rotation: norms, the identity, composition, inverse, layouts, the tail, heads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from tightrope import holds_for
from tightrope.compare import budgets, reach, same_bits, same_value, within
from tightrope.formats import stored, widen
from tightrope.rotary import join, rotate_with, split, table_of


@holds_for("rope")
def test_rotation_scales_each_pair_by_the_norm_of_its_table_entry(impl, case):
    """Demands: |y|^2 = |x|^2 (cos^2 + sin^2) within 2|y_1|e_1 + 2|y_2|e_2 + e_1^2 + e_2^2.

    Kills: a sign that is wrong in one half only, cos and sin of different rows, a pair that is half
    rotated, products of the wrong partner. Blind to a wrong angle (the oracle sees that).
    """
    inputs = impl.contract.inputs(case)
    outputs = impl(case, inputs)
    c, s = (widen(inputs[t])[inputs["positions"]][:, None, :] for t in ("cos", "sin"))
    for name, budget in budgets(impl, case, inputs).items():
        x1, x2 = split(widen(inputs[name]), case)
        y1, y2 = split(widen(outputs[name]), case)
        e1, e2 = split(reach(budget), case)
        expected = (x1**2 + x2**2) * (c**2 + s**2)
        slack = 2.0**-50 * (expected + y1**2 + y2**2)
        limit = 2 * np.abs(y1) * e1 + 2 * np.abs(y2) * e2 + e1**2 + e2**2 + slack
        within(f"norm of {name}", y1**2 + y2**2 - expected, limit, "a rotation must keep the norm")


@holds_for("rope")
def test_the_identity_row_changes_nothing(impl, case):
    """Demands (by value): cos = 1, sin = 0 gives the input back, exactly.

    Kills: an extra rounding (products in a narrow format are exact here, so only of the input
    itself), a scale, another row of the table, a partner added twice.
    """
    inputs = impl.contract.inputs(case)
    inputs["cos"], inputs["sin"] = np.ones_like(inputs["cos"]), np.zeros_like(inputs["sin"])
    outputs = impl(case, inputs)
    for name in impl.outputs:
        story = "position 0 must be the identity"
        within(name, widen(outputs[name]) - widen(inputs[name]), np.zeros(()), story)


@holds_for(
    "rope",
    where=("out_dtype=input",),
    limits={"inplace": (False,), "layout_q": ("contiguous",), "layout_k": ("contiguous",)},
    needs={"table_rows": (5,)},
    turns=st.integers(1, 6),
)
def test_two_rotations_compose_and_the_opposite_one_undoes(impl, case, turns):
    """Demands: R(b) R(a) x = R(a + b) x and R(-a) R(a) x = x, within the sum of the budgets.

    Tables hold the angles themselves, rounded to their dtype; that rounding is in the limit.
    Kills: a sign or layout that is not a rotation, angles that are scaled, half a pair rotated.
    """
    inputs = impl.contract.inputs(case)
    angles = np.random.default_rng(case.seed).uniform(-3, 3, inputs["cos"].shape[1])
    rows = np.stack([np.zeros_like(angles), angles, turns * angles, (1 + turns) * angles, -angles])
    inputs["cos"], inputs["sin"], table_error = table_of(rows, case.table_dtype)
    first = rotate_with(impl, case, inputs, row=1)
    for second, whole in ((2, 3), (4, 0)):
        then = rotate_with(impl, case, {**inputs, **first.outputs}, row=second)
        once = rotate_with(impl, case, inputs, row=whole)
        for name in impl.outputs:
            limit = _carried(first, then, once, name, case, table_error)
            difference = widen(then.outputs[name]) - widen(once.outputs[name])
            within(f"{name} composed", difference, limit, "rotations must compose")


def _carried(first, then, once, name, case, table_error):
    """Error of R(b)R(a)x - R(a+b)x: both calls' own, the first one's rotated, the tables'."""
    norm = np.hypot(*split(np.abs(widen(first.inputs[name])), case))
    e1, e2 = split(reach(first.budgets[name]), case)
    carried = np.hypot(e1, e2) * (1 + table_error)
    table = 6 * table_error * (norm + np.hypot(e1, e2))
    both = join(carried + table, carried + table, np.zeros_like(reach(once.budgets[name])), case)
    return (both + reach(then.budgets[name]) + reach(once.budgets[name])) * (1 + 2.0**-40)


@holds_for("rope")
def test_features_past_rotary_dim_are_untouched(impl, case):
    """Demands (bitwise): the tail is the input's, byte for byte (widened where out_dtype is wider).

    Kills: a zeroed, rotated or unwritten tail; the last instead of the first features rotated.
    """
    inputs = impl.contract.inputs(case)
    outputs = impl(case, inputs)
    for name in impl.outputs:
        tail = inputs[name][..., case.rotary_dim :].astype(outputs[name].dtype)
        same_bits(
            f"tail of {name}",
            outputs[name][..., case.rotary_dim :],
            tail,
            "the tail must pass through",
        )


@holds_for("rope", needs={"interleaved": (False, True)})
def test_layouts_agree_after_a_permutation(impl, case):
    """Demands: half-split on permuted features equals interleaved on plain ones (and back).

    Kills: a layout flag that is ignored, pairs at head_dim/2 instead of rotary_dim/2.
    """
    inputs = impl.contract.inputs(case)
    outputs = impl(case, inputs)
    other = replace(case, interleaved=not case.interleaved)
    moved = {n: join(*split(inputs[n], case), inputs[n], other) for n in ("q", "k")}
    for name, array in impl(other, {**inputs, **moved}).items():
        back = join(*split(array, other), array, case)
        budget = budgets(impl, case, inputs)[name]
        same_value(
            name, outputs[name], back, budget, "both layouts are one rotation of permuted features"
        )


@holds_for("rope", limits={"inplace": (True,)}, needs={"inplace": (False,)})
def test_in_place_equals_out_of_place(impl, case):
    """Demands: the same call, writing over its inputs or not, gives the same values.

    Kills: a partner that is overwritten before it is read, a tail left out, in place forgotten
    for k.
    """
    inputs = impl.contract.inputs(case)
    written = impl(case, inputs)
    fresh = impl(replace(case, inplace=False), inputs)
    for name, budget in budgets(impl, case, inputs).items():
        same_value(name, written[name], fresh[name], budget, "in place and out of place must agree")


@holds_for(
    "rope",
    limits={"layout_q": ("contiguous",), "layout_k": ("contiguous",)},
    needs={"num_heads": (1,), "num_kv_heads": (1,)},
)
def test_each_head_is_rotated_alone(impl, case):
    """Demands: head h among many equals head h alone, for q and for k (GQA, MQA).

    Kills: q's head count used for k, heads past a block left out, one head's data used for another.
    """
    inputs = impl.contract.inputs(case)
    outputs = impl(case, inputs)
    alone = replace(case, num_heads=1, num_kv_heads=1)
    for head in {0, case.num_kv_heads - 1}:
        one = {
            "q": inputs["q"][:, -1 - head : case.num_heads - head],
            "k": inputs["k"][:, head : head + 1],
        }
        single = {
            **inputs,
            "q": np.ascontiguousarray(one["q"]),
            "k": np.ascontiguousarray(one["k"]),
        }
        given = budgets(impl, alone, single)
        for name, array in impl(alone, single).items():
            where = case.num_heads - 1 - head if name == "q" else head
            story = f"head {where} of {name} must not depend on the others"
            same_value(name, outputs[name][:, where : where + 1], array, given[name], story)


@holds_for("rope")
def test_halving_is_exact(impl, case):
    """Demands (by value): with cos = 1/2, sin = 0 every output is half the input, rounded once.

    Kills: arithmetic narrower than the input's format, an output that is truncated or rounded
    twice.
    """
    inputs = impl.contract.inputs(case)
    inputs["cos"], inputs["sin"] = np.full_like(inputs["cos"], 0.5), np.zeros_like(inputs["sin"])
    outputs = impl(case, inputs)
    for name in impl.outputs:
        first, second = split(0.5 * widen(inputs[name]), case)
        half = join(first, second, widen(inputs[name]), case)
        exact = widen(stored(half, outputs[name].dtype.name))
        within(name, widen(outputs[name]) - exact, np.zeros(()), "half of the input, rounded once")
