"""A wrong kernel is named after the mistake it agrees with best, never after one it does not."""

from __future__ import annotations

import numpy as np

from tightrope.budget import Budget
from tightrope.diagnosis import diagnose, differing

X = np.array([1.0, 2.0, -3.0, 4.0], np.float32)
INFINITE = np.array([1.0, 2.0, -3.0, np.inf], np.float32)
BUDGETS = {"y": Budget(np.array([5.0, 5.0, 5.0, 5.0]), {"a term": 1e-6}, "float32")}


def test_equality_in_every_element_wins_over_agreement():
    close = np.nextafter(X, np.float32(0))
    known = [("nearly", {"y": close}), ("exactly", {"y": X.copy()}), ("nothing", {"y": 0 * X})]
    assert diagnose(known, {"y": X}, BUDGETS) == "It computes what this would: exactly."


def test_of_close_ones_the_one_with_fewest_differences_wins():
    one, all_ = X.copy(), np.nextafter(X, np.float32(0))
    one[0] = all_[0]
    known = [("all differ", {"y": all_}), ("one differs", {"y": one})]
    assert "one differs" in diagnose(known, {"y": X}, BUDGETS)


def test_what_agrees_with_nothing_is_given_no_name():
    assert diagnose([("twice", {"y": 2 * X})], {"y": X}, BUDGETS) == ""
    assert diagnose([], {"y": X}, BUDGETS) == ""


def test_infinities_and_zeros_of_both_signs_are_equal_to_themselves_only():
    zero = np.zeros(2, np.float16)
    assert differing(zero, -zero) == 0
    assert differing(INFINITE, INFINITE) == 0
    assert differing(INFINITE, X) is None
    assert differing(INFINITE, np.array([1, 2, -3, np.nan], np.float32)) is None
