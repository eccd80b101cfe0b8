"""Laws of the temperature of queries."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tightrope import holds_for
from tightrope.compare import budgets, reach, same_bits, within
from tightrope.formats import widen


@holds_for("query_scale")
def test_a_step_lasts_floor_scale_positions(impl, case):
    """Demands (bitwise): the last position of a step has the scale of its first, but where the
    arithmetic may round that position into the next step (float32, from about 2^24 on).

    Kills: a floor left out, steps of another length. Blind to steps that all come late together.
    """
    inputs = impl.contract.inputs(case)
    inside = (inputs["positions"].astype(np.int64) + case.shift) % case.floor_scale
    first = inputs["positions"].astype(np.int64) - inside
    last = first + case.floor_scale - 1
    held = (first >= 0) & (last <= np.iinfo(inputs["positions"].dtype).max)
    ends = [end[held].astype(inputs["positions"].dtype) for end in (first, last)]
    off = reach(budgets(impl, case, {**inputs, "positions": ends[1]})["scale"])
    steps = (ends[1].astype(np.int64) + case.shift) // case.floor_scale
    sure = off < case.attn_scale * np.log1p(1 / (1.0 + steps))  # what the next step would add
    here, there = (impl(case, {**inputs, "positions": end[sure]})["scale"] for end in ends)
    same_bits("scale", here, there, "a step must have one scale")


@holds_for("query_scale")
def test_queries_of_the_first_step_keep_their_scale(impl, case):
    """Demands (by value): positions below floor_scale - shift have scale 1, the next one more.

    Kills: a temperature one position late or early, a 1 left out.
    """
    inputs, edge = impl.contract.inputs(case), case.floor_scale - case.shift
    dtype = inputs["positions"].dtype
    before = np.array([p for p in (0, edge // 2, edge - 1) if 0 <= p < edge], dtype)
    below = impl(case, {**inputs, "positions": before})["scale"]
    within("scale", widen(below) - 1.0, np.zeros(()), "the first step must not scale")
    there = {**inputs, "positions": np.array([edge], dtype)}
    least = case.attn_scale * np.log(2.0)
    off = reach(budgets(impl, case, there)["scale"])
    found = widen(impl(case, there)["scale"]) - 1.0 - least
    within("scale", found, off + 2.0**-50, "the second step must begin at floor_scale - shift")


@holds_for("query_scale")
def test_the_scale_never_falls(impl, case):
    """Demands: of two positions the later has at least the earlier one's scale, within budgets.

    Kills: positions cut to fewer bits, a step counted modulo something.
    """
    inputs = impl.contract.inputs(case)
    order = np.argsort(inputs["positions"], kind="stable")
    spent = reach(budgets(impl, case, inputs)["scale"])[order]
    steps = np.diff(widen(impl(case, inputs)["scale"])[order])
    within("scale", np.minimum(steps, 0.0), spent[1:] + spent[:-1], "scales must not fall")


@holds_for("query_scale")
def test_each_scale_depends_on_its_position_only(impl, case):
    """Demands (bitwise): positions in another order, or alone, have the same scales.

    Kills: a scale taken from the token's place, or from the longest position of the call.
    """
    inputs = impl.contract.inputs(case)
    order = np.random.default_rng(case.seed).permutation(len(inputs["positions"]))[::-1]
    whole = impl(case, inputs)["scale"]
    for part in (order, order[: len(order) // 2]):
        moved = {**inputs, "positions": np.ascontiguousarray(inputs["positions"][part])}
        mixed = impl(case, moved)["scale"]
        same_bits("scale", whole[part], mixed, "a scale must depend on its position only")


@holds_for("query_scale", needs={"shift": (0, 1)})
def test_a_shift_is_one_position(impl, case):
    """Demands: shift 1 at a position is shift 0 at the next, within both budgets.

    Kills: a shift that is ignored, or moves the other way.
    """
    inputs = impl.contract.inputs(case)
    positions = inputs["positions"]
    held = positions < np.iinfo(positions.dtype).max
    given = {**inputs, "positions": positions[held]}
    later = {**inputs, "positions": positions[held] + positions.dtype.type(1)}
    one, none = replace(case, shift=1), replace(case, shift=0)
    here, there = impl(one, given), impl(none, later)
    off = reach(budgets(impl, one, given)["scale"]) + reach(budgets(impl, none, later)["scale"])
    within("scale", widen(here["scale"]) - widen(there["scale"]), off, "shift is one position")
