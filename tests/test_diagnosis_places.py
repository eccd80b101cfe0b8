"""Where elements are wrong is told if it is exactly so, and not otherwise."""

from __future__ import annotations

import numpy as np
import pytest

from tightrope.budget import Budget
from tightrope.diagnosis_places import place

SHAPE = 2, 6, 130, 8


def told(where, name="out", shape=SHAPE):
    right = np.zeros(shape)
    actual = right.astype(np.float32)
    actual[where] = 1.0
    return place({name: actual}, {name: Budget(right, {"a term": 1e-3}, "float32")})


ALL = slice(None)


@pytest.mark.parametrize(
    ("where", "sentence"),
    [
        ((ALL, slice(4, None)), "where head >= 4"),
        ((ALL, slice(None, 2)), "where head < 2"),
        ((ALL, 3), "at head 3"),
        ((ALL, 5), "at head 5 (the last)"),
        ((ALL, slice(1, 3)), "where 1 <= head <= 2"),
        ((ALL, slice(0, None, 2)), "where head is even"),
        ((ALL, ALL, slice(128, None)), "where row >= 128 (the last partial tile of 128)"),
        ((ALL, ALL, slice(0, None, 64)), "where row is a multiple of 64"),
        ((ALL, ALL, np.arange(130) % 64 != 0), "where row is no multiple of 64"),
        ((ALL, ALL, ALL, slice(4, None)), "where feature >= 4 (the second half)"),
        ((1, slice(4, None)), "at batch 1 (the last), and where head >= 4"),
    ],
)
def test_a_place_is_told(where, sentence):
    assert told(where) == f"out is wrong only {sentence}."


@pytest.mark.parametrize("where", [(ALL,), (ALL, [0, 1, 4]), (0, 0, 0, 0), ((0, 1), (0, 5))])
def test_no_place_is_told_for_all_for_no_pattern_and_for_one_element(where):
    assert "head" not in told(where)


def test_axes_have_the_names_of_their_output():
    assert (
        told((ALL, slice(2, None)), "dk", (1, 4, 9, 8))
        == "dk is wrong only where head >= 2 (the second half)."
    )
    assert told((ALL, ALL, 0), "dk", (1, 4, 9, 8)) == "dk is wrong only at key 0."
    assert told((ALL, 0), "lse", (2, 9)) == "lse is wrong only at token 0."
    assert told((ALL, 3), "cos", (2, 9)) == "cos is wrong only at column 3."
