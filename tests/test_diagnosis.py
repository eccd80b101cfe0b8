"""A wrong kernel is named after the mistake it agrees with best, never after one it does not."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from tightrope.arithmetic import Arithmetic
from tightrope.budget import Budget
from tightrope.diagnosis import Mistake, diagnose, differing
from tightrope.diagnosis_cause import HIDDEN, NOTHING, cause, explained

X = np.array([1.0, 2.0, -3.0, 4.0], np.float32)
INFINITE = np.array([1.0, 2.0, -3.0, np.inf], np.float32)
RIGHT = np.array([5.0, 5.0, 5.0, 5.0])
BUDGETS = {"y": Budget(RIGHT, {"a term": 1e-6}, "float32")}
COMPUTES = "It computes what this would: "


def test_equality_in_every_element_wins_over_agreement():
    close = np.nextafter(X, np.float32(0))
    known = [("nearly", {"y": close}), ("exactly", {"y": X.copy()}), ("nothing", {"y": 0 * X})]
    assert diagnose(known, {"y": X}, BUDGETS) == f"{COMPUTES}exactly."


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


def test_a_mistake_is_held_to_the_budget_that_it_has_itself():
    """1e-3 off the mistake: far beyond the right result's budget, within the mistake's own."""
    wide = Mistake(
        {"y": X + np.float32(1e-3)}, lambda _: {"y": Budget(X + 1e-3, {"t": 2e-3}, "float32")}
    )
    tight = Mistake(
        {"y": X + np.float32(1e-3)}, lambda _: {"y": Budget(X + 1e-3, {"t": 1e-4}, "float32")}
    )
    promise = Arithmetic()
    assert diagnose([("it", wide)], {"y": X}, BUDGETS, promise) == f"{COMPUTES}it."
    assert "of the error is explained by this: it" in diagnose(
        [("it", tight)], {"y": X}, BUDGETS, promise
    )


def test_a_part_of_the_error_is_told_as_a_part_and_half_of_it_not_at_all():
    most, half = X + np.float32(0.3), ((X + RIGHT) / 2).astype(np.float32)
    told = diagnose([("most", {"y": most})], {"y": X}, BUDGETS)
    assert told.endswith("% of the error is explained by this: most.")
    assert 90 <= float(told.split(" %")[0]) < 100
    assert diagnose([("half", {"y": half})], {"y": X}, BUDGETS) == ""


def test_a_mistake_that_gives_the_right_result_here_explains_nothing():
    """A last rounding gone wrong agrees with anything that rounds near the right result."""
    budgets = {"y": Budget(X.astype(np.float64), {}, "float32")}
    off = np.nextafter(X, np.float32(9))
    assert diagnose([("harmless", {"y": X.copy()})], {"y": off}, budgets) == ""
    assert "truncated" in diagnose([("truncated", {"y": off.copy()})], {"y": off}, budgets)


def contract(**changes):
    """A contract of one output y whose budget is wider for the promise sum="bfloat16"."""

    def budget(case, inputs, arithmetic):
        wide = {"float32": 1e-6, "bfloat16": 0.01, "float16": 1.0}
        return {"y": Budget(RIGHT, {"a term": wide[arithmetic["sum"]]}, "float32")}

    given = {"alternatives": lambda *_: [], "fits": lambda *_: [], "budget": budget, **changes}
    return SimpleNamespace(**given)


def told(y, **changes):
    return cause(contract(**changes), None, {}, {"y": y}, BUDGETS, Arithmetic(sum="float32"))


def test_another_promise_is_named_only_if_what_it_grants_is_spent():
    off = (RIGHT + 0.005).astype(np.float32)
    assert told(off) == "It would be right if it promised sum='bfloat16', not 'float32'."
    assert told((RIGHT + 0.0002).astype(np.float32)) == ""  # a 50th of it
    assert told((RIGHT + 3).astype(np.float32)) == ""


def test_what_is_fitted_is_asked_after_what_is_known():
    known, fitted = [("known", {"y": X})], [("fitted", {"y": X})]
    both = {"alternatives": lambda *_: known, "fits": lambda *_: fitted}
    assert told(X, **both) == f"{COMPUTES}known."
    assert told(X, fits=lambda *_: fitted) == f"{COMPUTES}fitted."


class Kernel:
    """An implementation that adds what lies in its inputs."""

    outputs = ("y",)

    def __init__(self, reads):
        self.contract, self.reads = contract(), reads

    def promise(self, case, device):
        return Arithmetic(sum="float32")

    def __call__(self, case, inputs):
        return {"y": (RIGHT + self.reads(inputs["x"])).astype(np.float32)}


@pytest.mark.parametrize(
    ("reads", "cause_"), [(lambda x: x[-1] * 0, HIDDEN), (lambda x: x[-1] + 3, "")]
)
def test_reading_hidden_slots_is_told_if_it_alone_is_wrong(reads, cause_):
    kernel, inputs = Kernel(reads), {"x": np.array([1.0, np.nan], np.float32)}
    found = explained(kernel, None, inputs, kernel(None, inputs), BUDGETS)
    assert found.cause == cause_
    assert found.data == ({"diagnosis": cause_} if cause_ else {})
    assert (NOTHING in str(found)) == (not cause_)


def test_outputs_in_each_others_place_are_told_and_other_shapes_are_not_explained():
    budgets = {"a": Budget(np.zeros(2), {}, "float32"), "b": Budget(np.zeros(3), {}, "float32")}
    a, b = np.zeros(2, np.float32), np.zeros(3, np.float32)
    swapped = explained(Kernel(None), None, {}, {"a": b, "b": a}, budgets)
    assert swapped.cause == f"{COMPUTES}a and b returned in each other's place."
    assert explained(Kernel(None), None, {}, {"a": b, "b": b}, budgets).cause == ""
