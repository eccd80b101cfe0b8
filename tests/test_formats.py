"""Rounding and half an ulp, against NumPy's and ml_dtypes' own casts and against rationals."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from tightrope.formats import FORMATS, stored, widen

SMALL = ("float16", "bfloat16", "float32")


def samples(name, count=20000):
    rng = np.random.default_rng(7)
    fmt = FORMATS[name]
    x = rng.standard_normal(count) * 2.0 ** rng.integers(
        fmt.emin - fmt.precision - 2, fmt.emax + 2, count
    )
    grid = fmt.round(x[np.abs(x) < fmt.largest / 2])
    ties = (grid + fmt.neighbours(grid)[1]) / 2
    edges = [fmt.largest, fmt.largest + fmt.ulp(fmt.largest) / 2, fmt.tiny / 2, fmt.tiny, 0.0]
    return np.concatenate([x, ties, -ties, np.nextafter(ties, 0), edges, np.negative(edges)])


@pytest.mark.parametrize("name", SMALL)
def test_rounding_is_the_nearest_number_with_ties_to_even(name):
    fmt, x = FORMATS[name], samples(name)
    rounded = fmt.round(x)
    for value, result in zip(x[::37], rounded[::37], strict=True):
        exact = fmt.round_fraction(Fraction(value))
        assert result == exact, value
    if name != "bfloat16":  # ml_dtypes casts float64 through float32: two roundings
        with np.errstate(over="ignore"):
            assert np.array_equal(rounded, x.astype(name).astype(np.float64))


@pytest.mark.parametrize("name", SMALL)
def test_every_stored_value_survives(name):
    x = samples(name)
    array = stored(x, name)
    assert array.dtype.name == name
    assert np.array_equal(widen(array), FORMATS[name].round(x))


@pytest.mark.parametrize("name", SMALL)
def test_half_an_ulp_bounds_the_rounding_error_and_is_attained(name):
    fmt, x = FORMATS[name], samples(name)
    x = x[np.abs(x) < fmt.largest]
    share = np.abs(fmt.round(x) - x) / fmt.half_ulp(x)
    assert share.max() == 1.0


@pytest.mark.parametrize("name", SMALL)
def test_neighbours_are_the_next_numbers(name):
    fmt = FORMATS[name]
    values = np.unique(fmt.round(samples(name)))
    array = stored(values[np.isfinite(values)], name)
    with np.errstate(over="ignore"):
        below, above = (
            widen(np.nextafter(array, np.array(e, array.dtype))) for e in (-np.inf, np.inf)
        )
    got = fmt.neighbours(widen(array))
    assert np.array_equal(got[0], below)
    assert np.array_equal(got[1], above)


@pytest.mark.parametrize("name", SMALL)
def test_truncation_never_grows_a_number(name):
    fmt, x = FORMATS[name], samples(name)
    y = fmt.truncate(x)
    assert (np.abs(y) <= np.minimum(np.abs(x), fmt.largest)).all()
    lost = np.minimum(np.abs(x), fmt.largest) - np.abs(y)
    assert (lost < fmt.ulp(x)).all()


@pytest.mark.parametrize("name", FORMATS)
def test_rationals_are_rounded_once(name):
    """Also those that no float64 holds, beside a tie, and at both ends of the format."""
    fmt = FORMATS[name]
    one, half = Fraction(1), Fraction(fmt.unit)  # of the last place above 1
    largest, tiny = Fraction(fmt.largest), Fraction(2) ** (fmt.emin - fmt.precision + 1)
    beyond = largest + Fraction(2) ** (fmt.emax - fmt.precision)
    below = Fraction(1, 10**40)
    for value, rounded in (
        (one + half, 1), (one + half + below, 1 + 2 * half), (one + 3 * half - below, 1 + 2 * half),
        (one - half / 2 + below, 1), (one - half / 2 - below, 1 - half),
        (largest, largest), (beyond * (1 - below), largest), (beyond, np.inf),
        (tiny / 2, 0), (tiny / 2 + tiny * below, tiny), (Fraction(0), 0),
    ):  # fmt: skip
        assert fmt.round_fraction(value) == float(rounded)
        assert fmt.round_fraction(-value) == -float(rounded)
    for value in (Fraction(1, 3), Fraction(2, 3), Fraction(10, 7), Fraction(13, 7)):
        spacing = Fraction(float(fmt.ulp(float(value))))
        assert abs(Fraction(fmt.round_fraction(value)) - value) <= spacing / 2


@pytest.mark.parametrize("name", FORMATS)
def test_half_an_ulp_is_a_bound_at_both_ends(name):
    """Of float64, too, whose own half spacing of subnormals, 2**-1075, is no float64."""
    fmt, tiny = FORMATS[name], Fraction(2) ** (FORMATS[name].emin - FORMATS[name].precision + 1)
    for x in (0.0, fmt.tiny, 2.0**fmt.emin):
        assert Fraction(float(fmt.half_ulp(x))) >= tiny / 2
    last = 2.0 ** (fmt.emax - fmt.precision)
    ends = [fmt.largest, np.finfo(np.float64).max, np.inf, -np.inf, np.nan]
    assert (fmt.half_ulp(ends) == last).all()
