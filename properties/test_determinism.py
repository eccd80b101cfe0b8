"""The same question, the same answer."""

from __future__ import annotations

import numpy as np

from tightrope import holds_for
from tightrope.compare import same_bits

OPPOSITE = ("q", "k", "v", "k_cache", "v_cache", "dout", "outs", "cos", "sin")


@holds_for()
def test_same_call_twice_is_bitwise_equal(impl, case):
    """Demands (bitwise): a second call with the same inputs, after a call with others, repeats.

    All three calls find their inputs in the same memory. Kills: races that show, state kept between
    calls (history dependence), also by the address of an input, reads of unwritten memory.
    """
    inputs = impl.contract.inputs(case)
    first = impl(case, inputs)
    impl(case, {name: _others(name, array) for name, array in inputs.items()})
    for name, array in impl(case, inputs).items():
        same_bits(name, first[name], array, "the same call must repeat")


def _others(name, array):
    """Other positions and the opposite numbers; lengths, masks and what is hidden stay."""
    if "positions" in name:
        return np.flip(array, axis=0).copy()
    return -array if name in OPPOSITE else array
