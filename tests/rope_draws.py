"""Drawing `rope` cases in tests, as a law would: quick, derandomized, small."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, given, settings

from tightrope import Arithmetic
from tightrope.oracles.rope import CONTRACT

DTYPES = ("float16", "bfloat16", "float32", "float64")
STRANGER = Arithmetic().over(CONTRACT.stages)
QUICK = settings(
    max_examples=40,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)


def limits(where=(), **given):
    return CONTRACT.limits({"size": ("small",), **given}, where)


def drawn(count, where=(), **given_limits):
    """`count` cases as a law would draw them."""
    found = []

    @settings(QUICK, max_examples=count, phases=[Phase.generate])
    @given(CONTRACT.cases(limits(where, **given_limits)))
    def collect(case):
        found.append(case)

    collect()
    return found
