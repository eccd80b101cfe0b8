"""softplus as the PoPE kernels have it: every float16 and bfloat16, and many float32."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from attention_calls import HOME
from pope_replays import magnitudes

from tightrope.softplus import ABSOLUTE, FORMS, ULPS, form_for, stages

FLUSHED = 2.0**-126 * (1 + 2.0**-10)
OWN = 2.0**-50  # relative error of float64's exp, log1p and sum


def every(dtype: str) -> torch.Tensor:
    if dtype == "float32":
        rng = np.random.default_rng(0)
        tails = np.concatenate(
            [-np.exp(rng.uniform(-80, 88, 20000)), rng.uniform(-110, 110, 20000)]
        )
        return torch.from_numpy(tails.astype(np.float32)).to(HOME)
    bits = torch.arange(65536, dtype=torch.int32).to(torch.int16)
    found = bits.view(getattr(torch, dtype))
    return found[found.isfinite()].to(HOME)


def spent(dtype: str, form: str) -> float:
    """The largest error over what the form declares."""
    x = every(dtype)
    found = magnitudes(x, form).double().cpu().numpy()
    x64 = x.double().cpu().numpy()
    exact = np.maximum(x64, 0) + np.log1p(np.exp(-np.abs(x64)))
    granted = ULPS[form] * 2.0**-24 * exact + ABSOLUTE[form] + OWN * exact
    granted += np.where(exact < FLUSHED, exact, 0.0) + 2.0**-149
    return float((np.abs(found - exact) / granted).max())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("form", FORMS)
def test_it_is_within_its_promise(dtype: str, form: str) -> None:
    if form == "half" and dtype != "float16":
        assert form_for(dtype) != form  # it has no such build
        return
    assert 0.2 < spent(dtype, form) <= 1, "outside the promise, or the promise says little"


def test_the_short_float16_polynomial_is_as_good_as_said() -> None:
    """Every u, by NumPy: products of float16 are exact in float64, and sums of these here too."""
    u = np.arange(1, 0x3C01, dtype=np.uint16).view(np.float16).astype(np.float64)
    p = np.full_like(u, -0.0784912109375)
    for coefficient in (0.26123046875, -0.489990234375, 1.0):
        p = (p * u + coefficient).astype(np.float16).astype(np.float64)
    worst = np.abs(p * u / np.log1p(u) - 1).max() * 2.0**11
    assert 1.8 < worst < 1.84


def test_forms_are_as_different_as_they_say() -> None:
    """Each one breaks the promise of the one before."""
    x = every("float16")
    precise, short, half = (magnitudes(x, form).double() for form in FORMS)
    for rough, fine, form in ((short, precise, "precise"), (half, precise, "short")):
        assert ((rough - fine).abs() > 2 * ULPS[form] * 2.0**-24 * fine).any()


@pytest.mark.parametrize("form", FORMS)
def test_what_is_not_finite_stays_so(form: str) -> None:
    dtype = torch.float16 if form == "half" else torch.float32
    x = torch.tensor([math.nan, math.inf, -math.inf, 0.0], dtype=dtype, device=HOME)
    nan, most, least, zero = magnitudes(x, form).tolist()
    assert math.isnan(nan)
    assert (most, least) == (math.inf, 0.0)
    assert abs(zero - math.log(2)) <= ULPS[form] * 2.0**-24


def test_a_magnitude_rounded_to_float16_is_declared() -> None:
    assert [stages(form)["magnitude"] for form in FORMS] == ["float32", "float32", "input"]
