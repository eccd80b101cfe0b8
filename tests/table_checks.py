"""What the tests of the contracts of tables ask of each."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, find, given, settings
from rope_table_kernels import budgets

from tightrope.arithmetic import Arithmetic
from tightrope.contract import Contract
from tightrope.diagnosis import diagnose
from tightrope.verdict import judge


def quiet(examples: int) -> settings:
    """So many cases, always the same."""
    return settings(
        max_examples=examples, derandomize=True, database=None, deadline=None,
        suppress_health_check=list(HealthCheck), phases=[Phase.generate],
    )  # fmt: skip


def drawn(spec: Contract, limits: Any, examples: int) -> list[Any]:
    """Cases as a law would get them."""
    found: list[Any] = []

    @given(case=spec.cases(limits))
    @quiet(examples)
    def run(case: Any) -> None:
        found.append(case)

    run()
    return found


def says_nothing(spec: Contract, case: Any, arithmetic: Arithmetic) -> bool:
    """Whether the budget lets a model pass that does nothing useful."""
    b, models = budgets(case, arithmetic), spec.nulls(case, spec.inputs(case))
    return any(all(b[n].accepts(m[n]) for n in m) for m in models.values())


def uninformative(spec: Contract, limits: Any, arithmetic: Arithmetic, examples: int) -> float:
    """The share of drawn cases with tokens that say nothing."""
    cases = [case for case in drawn(spec, limits, examples) if case.tokens]
    return float(np.mean([says_nothing(spec, case, arithmetic) for case in cases]))


def simplest(spec: Contract) -> Any:
    """What Hypothesis shrinks to."""
    cases = spec.cases(spec.limits({}))
    return find(cases, lambda case: True, settings=settings(database=None))


def mistakes(spec: Contract, case: Any) -> dict[str, Any]:
    return dict(spec.alternatives(case, spec.inputs(case)))


def named(spec: Contract, sentence: str, cases: list[Any], arithmetic: Arithmetic) -> bool:
    """Whether some case rejects a known mistake, and its diagnosis says which it is."""
    for case in cases:
        wrong, b = mistakes(spec, case)[sentence], budgets(case, arithmetic)
        if all(b[n].accepts(wrong[n]) for n in wrong):
            continue
        if sentence in diagnose(mistakes(spec, case).items(), wrong, b):
            return True
    return False


def all_right(spec: Contract, case: Any, outputs: Any, arithmetic: Arithmetic) -> bool:
    """Whether every output is within its budget, ball arithmetic settling what float64 leaves."""
    inputs = spec.inputs(case)
    return all(
        judge(n, outputs[n], b, lambda at, n=n: spec.exact(case, inputs, n, at)).ok
        for n, b in budgets(case, arithmetic).items()
    )
