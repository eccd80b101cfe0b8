"""Drawing cases of the attention contracts in tests, as a law would: quick, derandomized, small."""

from __future__ import annotations

from functools import cache

from hypothesis import HealthCheck, Phase, given, settings

from tightrope.contract import contract

SEQUENCES = ("attention_varlen", "attention_paged")
DENSE = ("attention", "rope_attention")
NAMES = (*DENSE, *SEQUENCES, "merge_attention")
QUICK = settings(
    max_examples=60,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.generate],
)


@cache
def drawn(name, count=60, where=(), size="small", **limited):
    """`count` cases of a contract."""
    spec, found = contract(name), []

    @settings(QUICK, max_examples=count)
    @given(spec.cases(spec.limits({"size": (size,), **limited}, where)))
    def collect(case):
        found.append(case)

    collect()
    return tuple(found)
