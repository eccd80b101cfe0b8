"""The same question, the same answer."""

from __future__ import annotations

import numpy as np

from tightrope import holds_for
from tightrope.compare import same_bits


@holds_for()
def test_same_call_twice_is_bitwise_equal(impl, case):
    """Demands (bitwise): a second call with the same inputs, after a call with others, repeats.

    Kills: races that show, state kept between calls (history dependence), reads of unwritten
    memory.
    """
    inputs = impl.contract.inputs(case)
    first = impl(case, inputs)
    other = {n: np.flip(a, axis=0).copy() if a.dtype.kind == "i" else a for n, a in inputs.items()}
    impl(case, other)
    for name, array in impl(case, inputs).items():
        same_bits(name, first[name], array, "the same call must repeat")
