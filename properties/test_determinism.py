"""The same question, the same answer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tightrope import holds_for
from tightrope.compare import same_bits
from tightrope.law import check_case

OPPOSITE = ("q", "k", "v", "k_cache", "v_cache", "dout", "outs", "cos", "sin")


@holds_for()
def test_same_call_twice_is_bitwise_equal(impl, case):
    """Demands (bitwise): a second call with the same inputs, after a call with others, repeats; for
    every fourth seed the call between has another scale, and must be within its budget.

    All three calls find their inputs in the same memory. Kills: races that show, state kept between
    calls (history dependence), also by the address of an input or by all of a call but its scale,
    reads of unwritten memory.
    """
    inputs = impl.contract.inputs(case)
    first = impl(case, inputs)
    another = _rescaled(impl, case)
    if another == case:
        impl(case, {name: _others(name, array) for name, array in inputs.items()})
    else:
        others = impl.contract.inputs(another)
        check_case(impl, another, others, impl(another, others))
    for name, array in impl(case, inputs).items():
        same_bits(name, first[name], array, "the same call must repeat")


def _rescaled(impl, case):
    """For every fourth seed the case with a scale that differs, where the limits have one."""
    if case.seed % 4 or not hasattr(case, "softmax_scale"):
        return case
    scale = case.head_dim**-0.5 if case.softmax_scale is None else case.softmax_scale
    allowed = impl.allowed().pick("softmax_scale", (0.5 * scale, 0.0625, 0.3))
    return next((replace(case, softmax_scale=s) for s in allowed if s not in (None, scale)), case)


def _others(name, array):
    """Other positions and the opposite numbers; lengths, masks and what is hidden stay."""
    if "positions" in name:
        return np.flip(array, axis=0).copy()
    return -array if name in OPPOSITE else array
