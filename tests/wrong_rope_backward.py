"""Gradients of rotations with one mistake each, and their right twin: plain torch, float32.

`tightrope run --impl=tests/wrong_rope_backward.py` must reject all but `right`;
tests/test_wrong_rope_backward.py demands it.
"""

from __future__ import annotations

from wrong_rope import DTYPES, OUT_OF_PLACE, rows, turn

from tightrope import implements


def wrong(name, **limits):
    return implements("rope_backward", name=name, dtype=DTYPES, **(limits or OUT_OF_PLACE))


def back(dy, c, s, interleaved, **how):
    return turn(dy, c, -s, interleaved, **how)


def both(dq, dk, cos, sin, positions, interleaved, **how):
    c, s = rows(cos, sin, positions)
    return back(dq, c, s, interleaved, **how), back(dk, c, s, interleaved, **how)


@implements("rope_backward", name="right", dtype=DTYPES, where=("out_dtype=input",))
def right(dq, dk, cos, sin, positions, *, interleaved, inplace=False):
    out = both(dq, dk, cos, sin, positions, interleaved)
    return (dq.copy_(out[0]), dk.copy_(out[1])) if inplace else out


@wrong("sign_of_the_forward")
def _(dq, dk, cos, sin, positions, *, interleaved):
    c, s = rows(cos, sin, positions)
    return turn(dq, c, s, interleaved), turn(dk, c, s, interleaved)


@wrong("sign_of_the_forward_for_dk")
def _(dq, dk, cos, sin, positions, *, interleaved):
    c, s = rows(cos, sin, positions)
    return back(dq, c, s, interleaved), turn(dk, c, s, interleaved)


@wrong("second_of_a_pair_first")
def _(dq, dk, cos, sin, positions, *, interleaved):
    """The transposes of the pair's two columns in the wrong order."""
    out = both(dq, dk, cos, sin, positions, interleaved)
    half = cos.shape[1]
    for y in out:
        pairs = y[..., : 2 * half]
        pairs = pairs.unflatten(-1, (half, 2) if interleaved else (2, half))
        pairs.copy_(pairs.flip(-1 if interleaved else -2))
    return out


@wrong("layout_swapped")
def _(dq, dk, cos, sin, positions, *, interleaved):
    return both(dq, dk, cos, sin, positions, not interleaved)


@wrong("not_turned")
def _(dq, dk, cos, sin, positions, *, interleaved):
    return dq.clone(), dk.clone()


@wrong("inverse_of_unequal_norm")
def _(dq, dk, cos, sin, positions, *, interleaved):
    """The inverse instead of the transpose: equal only where cos^2 + sin^2 = 1."""
    c, s = rows(cos, sin, positions)
    norm = (c * c + s * s).clamp(min=2.0**-20)
    return back(dq, c / norm, s / norm, interleaved), back(dk, c / norm, s / norm, interleaved)


@wrong("one_position_late")
def _(dq, dk, cos, sin, positions, *, interleaved):
    return both(dq, dk, cos, sin, (positions.long() + 1) % len(cos), interleaved)


@wrong("tail_zeroed")
def _(dq, dk, cos, sin, positions, *, interleaved):
    out = both(dq, dk, cos, sin, positions, interleaved)
    for y in out:
        y[..., 2 * cos.shape[1] :] = 0
    return out


@wrong("products_in_the_input_s_dtype")
def _(dq, dk, cos, sin, positions, *, interleaved):
    return both(dq, dk, cos, sin, positions, interleaved, product=dq.dtype)


@wrong("in_place_on_dk_forgotten", where=("out_dtype=input",))
def _(dq, dk, cos, sin, positions, *, interleaved, inplace=False):
    out = both(dq, dk, cos, sin, positions, interleaved)
    return (dq.copy_(out[0]), out[1]) if inplace else out


@wrong("given_gradient_clobbered")
def _(dq, dk, cos, sin, positions, *, interleaved):
    out = both(dq, dk, cos, sin, positions, interleaved)
    dq.copy_(out[0])
    return out
