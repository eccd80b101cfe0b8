"""Every term in the budget of a polar feature is needed, and sharp where it rules.

Families, fixed before they were measured: docs/error-budgets.md, section pope_attention.
"""

from __future__ import annotations

from dataclasses import dataclass

import mpmath
import numpy as np
import pytest
from simulated_attention import PATTERNS, stressed
from simulated_pope import Features, Moved, Rounding

from tightrope.formats import FORMATS, stored, widen
from tightrope.oracles import pope_features, pope_features_angle, pope_features_held
from tightrope.oracles.pope_attention_budget import STAGES
from tightrope.oracles.pope_features import magnitude, polar
from tightrope.oracles.pope_features_angle import turning
from tightrope.oracles.pope_features_stages import Grant

SHARP = {
    "angle": "exact", "trig_ulp": 0.5, "softplus_ulp": 0.5, "softplus_error": 0.0,
    "features": "float32", "block_k": 16,
}  # fmt: skip
WIDTH, TOKENS, SEEDS = 64, 16, range(20)


@dataclass
class Made:
    """x (1, 2, tokens, width), positions (1, 1, tokens, 1), inv_freq (width,), delta or None."""

    x: np.ndarray
    positions: np.ndarray
    inv_freq: np.ndarray
    delta: np.ndarray | None = None
    keys: bool = False


def far(rng):
    return widen(stored(40 + 8 * rng.standard_normal((1, 2, TOKENS, WIDTH)), "float16"))


def near(rng):
    return widen(stored(rng.standard_normal((1, 2, TOKENS, WIDTH)), "float16"))


def frequencies(dtype="float32"):
    return widen(stored(1e4 ** (-(np.arange(WIDTH) + 0.5) / WIDTH), dtype))


def tokens(positions):
    return np.asarray(positions, np.int64).reshape(1, 1, -1, 1)


def random(rng, low=0, high=2**17):
    return tokens(rng.integers(low, high, TOKENS))


def at_random(rng):
    return Made(far(rng), random(rng), frequencies())


def odd(rng):
    places = 2 * rng.integers(2**23, 2**24, TOKENS) + 1
    return Made(far(rng), tokens(places), 2.0 ** -(8.0 + np.arange(WIDTH) % 8))


def powers(rng):
    places = 2 ** rng.integers(16, 23, TOKENS) * rng.choice([-1, 1], TOKENS)
    return Made(far(rng), tokens(places), frequencies("float64"))


def multiplied(rng):
    return Made(far(rng), random(rng, 2**12), frequencies())


def shifted(rng):
    delta = widen(stored(rng.uniform(-4000, 4000, (1, 1, WIDTH)), "float32"))
    inv_freq = 2.0 ** -(13 + np.arange(WIDTH) % 8.0)
    return Made(far(rng), tokens(np.arange(1, 17)), inv_freq, delta, True)


def opposite(rng):
    delta = widen(stored(rng.uniform(-2 * np.pi, 0, (1, 1, WIDTH)), "float32"))
    return Made(far(rng), random(rng), frequencies(), delta)


def still(rng):
    return Made(near(rng), tokens(np.zeros(TOKENS)), frequencies())


def delicate(rng):
    x = widen(stored(rng.uniform(-20, -8, (1, 2, TOKENS, WIDTH)), "float16"))
    return Made(x, tokens(np.zeros(TOKENS)), frequencies())


SINGLE = {"angle": "float32"}
FAMILIES = {
    # term: stages over SHARP, data, what else is particular of the kernel
    "position": (SINGLE, odd, {}),
    "inv_freq": (SINGLE, powers, {}),
    "product of the angle": (SINGLE, multiplied, {}),
    "delta added": (SINGLE, shifted, {}),
    "angle within": ({"angle_error": np.pi * 2.0**-12}, at_random, {"turns": 12}),
    "cos, sin": ({"trig_ulp": 2.5}, at_random, {}),
    "table bfloat16": ({"table": "bfloat16"}, at_random, {}),
    "table float16": ({"table": "float16"}, at_random, {}),
    "turned by delta": ({"phase": "query"}, opposite, {}),
    "softplus": ({"softplus_ulp": 6.5}, still, {}),
    "softplus, absolute": (
        {"softplus_ulp": 1.5, "softplus_error": 2.0**-24 + 2.0**-48}, delicate, {"form": "C"},
    ),
    "magnitude bfloat16": ({"magnitude": "bfloat16"}, still, {}),
    "magnitude float16": ({"magnitude": "float16"}, still, {}),
    "product": ({}, at_random, {}),
    "features bfloat16": ({"features": "input"}, at_random, {}),
    "features float16": ({"features": "input"}, at_random, {}),
}  # fmt: skip


def only_one_plus_t(x, to):
    """log(1 + exp x), exact but for the sum."""
    return np.log(to(1 + np.exp(x)))


def off(name, seed, to):
    """How far the features of one case are off, and their budget."""
    stages, make, more = FAMILIES[name]
    made = make(np.random.default_rng(seed))
    dtype = "bfloat16" if name.endswith("bfloat16") else "float16"
    grant = Grant.of(dtype, {**STAGES, **SHARP, **stages})
    known = ("angle", "trig_ulp", "table", "phase", "softplus_ulp", "magnitude", "features")
    given = {n: v for n, v in {**SHARP, **stages, **more}.items() if n in (*known, "turns")}
    kernel = Features(dtype, to, **given)
    if more.get("form"):
        kernel.softplus = lambda x: only_one_plus_t(x, to)
    held = kernel(made.x, made.positions, made.inv_freq, made.delta, made.keys)
    turned = turning(made.positions, made.inv_freq, made.delta, grant, made.keys)
    found = polar(magnitude(made.x, grant), turned, made.x[..., :0], grant)
    return np.abs(np.concatenate(held, -1) - found.exact) - found.own, found.error


def spent(name, seed, to):
    error, bound = off(name, seed, to)
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.max(np.where(error <= 0, 0.0, error / bound)))


def reweighted(monkeypatch, name, factor):
    """The budget with one term multiplied."""
    words = name.split()
    wanted = words[0] if words[-1] in ("bfloat16", "float16") else name
    for module in (pope_features, pope_features_angle, pope_features_held):
        monkeypatch.setattr(module, "term", lambda n, e: e * (factor if n == wanted else 1.0))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_term_is_sharp_on_its_family_and_four_times_it_is_not(name, monkeypatch):
    shares = [spent(name, seed, Moved(seed=seed)) for seed in SEEDS]
    reweighted(monkeypatch, name, 4.0)
    wide = [spent(name, seed, Moved(seed=seed)) for seed in SEEDS]
    assert max(shares) <= 1
    assert np.median(shares) >= 0.5
    assert np.median(wide) < 0.5


@pytest.mark.parametrize("name", FAMILIES)
def test_deleting_a_term_is_noticed(name, monkeypatch):
    rounds = [Rounding(p, seed) for p in PATTERNS for seed in range(3)]
    rounds += [Moved(seed=seed) for seed in range(3)]
    whole = [spent(name, to.seed, to) for to in rounds]
    reweighted(monkeypatch, name, 0.0)
    rest = [spent(name, to.seed, to) for to in rounds]
    assert max(whole) <= 1 + 1e-9
    assert max(rest) > 1 + 1e-6


def every(dtype):
    """All finite numbers of a format of 16 bits."""
    x = np.arange(2**16, dtype=np.uint16).view(FORMATS[dtype].dtype)
    with np.errstate(invalid="ignore"):
        x = x.astype(np.float64)
    return x[np.isfinite(x)]


def in_float32(x, form):
    """softplus by NumPy's float32 functions."""
    x, one = x.astype(np.float32), np.float32(1)
    with np.errstate(all="ignore"):
        if form == "B":
            found = np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))
        else:
            below = np.log1p(np.exp(x)) if form == "A" else np.log(one + np.exp(x))
            found = np.where(x > 20, x, below)
    assert found.dtype == np.float32
    return found.astype(np.float64)


def share_of(found, x, dtype, **stages):
    held = magnitude(x, Grant.of(dtype, {**STAGES, "block_k": 16, **stages}))
    error = np.abs(found - held.value) - held.own
    with np.errstate(invalid="ignore", divide="ignore"):
        return float(np.max(np.where(error <= 0, 0.0, error / held.error)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("form", ["A", "B", "C"])
def test_an_honest_softplus_is_within_the_grant_for_every_input(form, dtype):
    x = every(dtype)
    found = [in_float32(x, form)]
    for pattern in PATTERNS:
        found.append(Features(dtype, stressed(pattern), form=form).softplus(x))
    shares = [share_of(y, x, dtype) for y in found]
    assert 0.5 < max(shares) <= 1
    relative = share_of(found[0], x, dtype, softplus_error=0.0)
    assert (relative > 1) == (form == "C")  # log(1 + e^x) is 0 from -17 down


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_softplus_may_be_linear_from_20_but_not_from_10_on(dtype):
    x = every(dtype)
    exact = np.logaddexp(0, x)
    for start, right in ((20, True), (15, True), (10, False), (5, False)):
        assert (share_of(np.where(x > start, x, exact), x, dtype) <= 1) == right


def test_the_float64_magnitude_is_within_its_own_error():
    """Where formulas change, and far below, against mpmath."""
    x = np.concatenate([-np.linspace(0.01, 745, 40), [0.0, 2.0**-24, 5, 15, 20, 37, 700, 3e38]])
    held = magnitude(x, Grant.of("float32", {**STAGES}))
    with mpmath.workdps(400):  # 1 + e^-745 needs them
        for value, mu, own in zip(x.tolist(), held.value, held.own, strict=True):
            exact = mpmath.log1p(mpmath.exp(value)) if value < 700 else mpmath.mpf(value)
            assert abs(exact - mpmath.mpf(float(mu))) <= mpmath.mpf(float(own))


def test_a_small_magnitude_may_be_flushed_only_where_that_is_declared():
    x = np.array([-88.0, -87.0])
    for flush, right in ((True, True), (False, False)):
        lost = share_of(np.zeros(1), x[:1], "bfloat16", softplus_error=0.0, exp_flush=flush)
        assert (lost <= 1) == right
    assert share_of(np.zeros(1), x[1:], "bfloat16", softplus_error=0.0) > 1
