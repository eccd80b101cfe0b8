"""Laws of a rotation's gradient: it is the adjoint, it undoes the rotation, it leaves the tail."""

from __future__ import annotations

import numpy as np

from tightrope import holds_for
from tightrope.compare import budgets, reach, same_bits, within
from tightrope.data import values
from tightrope.formats import stored, widen
from tightrope.oracles.rope import rotate
from tightrope.rotary import join, split

LEAST = 2.0**-1074  # what a float64 product may lose beyond its relative rounding


def _rotated(case, inputs, x):
    """`rope`'s definition in float64."""
    return rotate(x, inputs["cos"], inputs["sin"], inputs["positions"], case.interleaved)


def _sizes(case, inputs, x):
    """The sizes of what a rotation, or its transpose, adds up: |c| and |s| on |x|."""
    c, s = (np.abs(widen(inputs[t])[inputs["positions"]])[:, None] for t in ("cos", "sin"))
    first, second = split(np.abs(x), case)
    return join(first * c + second * s, second * c + first * s, np.abs(x), case)


@holds_for("rope_backward")
def test_the_gradient_is_the_rotation_s_adjoint(impl, case):
    """Demands: <dy, R x> = <R^T dy, x> for another x, pair by pair, within |x| times the budget.

    R x is the float64 oracle of `rope`. Kills: the forward's sign, cos and sin exchanged, products
    of the wrong partner, a pair of which one half is turned.
    """
    inputs = impl.contract.inputs(case)
    outputs, found = impl(case, inputs), budgets(impl, case, inputs)
    rng = np.random.default_rng([case.seed, 1])
    for name in impl.outputs:
        dy, dx = widen(inputs[name]), widen(outputs[name])
        x = widen(values("normal", dy.shape, case.dtype, rng))
        off = dy * _rotated(case, inputs, x) - dx * x
        own = 2.0**-50 * (np.abs(dy) * _sizes(case, inputs, x) + np.abs(dx * x))
        own = own + LEAST * (2 * np.abs(dy) + 2)
        limit = np.abs(x) * reach(found[name]) + own
        story = "the gradient must be the adjoint of the rotation"
        within(f"<{name}, x>", np.add(*split(off, case)), np.add(*split(limit, case)), story)


@holds_for("rope_backward")
def test_the_gradient_of_a_rotation_undoes_it(impl, case):
    """Demands: R^T y = (cos^2 + sin^2) x for y = R x rounded to its dtype, within that rounding,
    turned, and the budget. In the tail the factor is 1.

    Kills: the forward's sign (angles would add up), a scale, other rows of the table than the
    forward's, a layout that is not the forward's.
    """
    inputs = impl.contract.inputs(case)
    exact = {name: _rotated(case, inputs, widen(inputs[name])) for name in impl.outputs}
    given = {**inputs, **{name: stored(y, case.dtype) for name, y in exact.items()}}
    outputs, found = impl(case, given), budgets(impl, case, given)
    c, s = (widen(inputs[t])[inputs["positions"]][:, None] for t in ("cos", "sin"))
    for name in impl.outputs:
        x = widen(inputs[name])
        moved = np.abs(widen(given[name]) - exact[name]) + 2.0**-50 * _sizes(case, inputs, x)
        first, second = ((c**2 + s**2) * half for half in split(x, case))
        back = join(first, second, x, case)
        moved = moved + 2 * LEAST
        limit = _sizes(case, inputs, moved) + reach(found[name]) + 2.0**-49 * np.abs(back)
        limit = limit + LEAST
        story = "the transpose of a rotation must undo it"
        within(name, widen(outputs[name]) - back, limit, story)


@holds_for("rope_backward")
def test_gradients_past_rotary_dim_are_untouched(impl, case):
    """Demands (bitwise): the tail is the given gradient's, widened where out_dtype is wider.

    Kills: a tail that is zeroed, as if it did not reach the result, turned, or left unwritten.
    """
    inputs = impl.contract.inputs(case)
    outputs = impl(case, inputs)
    for name in impl.outputs:
        there = outputs[name][..., case.rotary_dim :]
        given = inputs[name][..., case.rotary_dim :].astype(there.dtype)
        same_bits(f"tail of {name}", there, given, "the tail's gradient must pass through")
