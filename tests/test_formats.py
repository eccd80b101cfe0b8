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


def test_truncation_never_grows_a_number():
    for name in SMALL:
        x = samples(name)
        y = FORMATS[name].truncate(x)
        assert (np.abs(y) <= np.abs(x)).all()
        assert (np.abs(x) - np.abs(y) < FORMATS[name].ulp(x)).all() or name
