"""Laws: ordinary pytest functions `law(impl, case, ...)` that run for every implementation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tightrope import blackbox, ledger
from tightrope.budget import Violation
from tightrope.frozen import freeze
from tightrope.interrupts import not_lost
from tightrope.profiles import PROFILES
from tightrope.verdict import judge, terms_at

chosen: dict[str, Any] = {
    **PROFILES["dev"],
    "shrink": True,
}  # the plugin changes it before laws are imported


def choose(
    profile: str, examples: int | None = None, shrink: bool = True, seeded: bool = False
) -> None:
    """Set what laws that are defined from now on run with.

    examples: in place of the profile's. shrink: whether a failure is made smaller before it is
    told. seeded: whether a seed was asked for; without, dev leaves it to Hypothesis, which draws
    the same cases each time on CI.
    """
    chosen.clear()
    chosen.update(PROFILES[profile], shrink=shrink)
    if seeded:
        chosen.setdefault("derandomize", False)
    if examples:
        chosen["max_examples"] = examples


@dataclass(frozen=True)
class Law:
    """A law's terms: contracts it holds for, limits it narrows them to, outputs it needs, draws."""

    name: str
    contracts: tuple[str, ...]
    limits: Mapping[str, Collection[Any]]
    where: tuple[str, ...]
    needs: Mapping[str, Collection[Any]]
    returns: tuple[str, ...]
    drawn: Mapping[str, Any]
    body: Callable[..., None]

    def run(self, impl: Any, draw: Callable[[Any, str], Any]) -> None:
        """One case: draw, note, check. `draw(strategy, label)` is Hypothesis's or a recording."""
        not_lost()
        book = ledger.opened()
        values = {"case": draw(strategy(impl), "case")}
        for label, drawn in self.drawn.items():
            chosen = (
                drawn(values["case"])
                if callable(drawn) and not hasattr(drawn, "example")
                else drawn
            )
            values[label] = draw(chosen, label)
        if book.time_is_up():  # after drawing: Hypothesis wants every case drawn alike
            raise ledger.OutOfTime("this law's share of the time is spent")
        if book.tired(values):
            return  # nothing smaller fails, as far as Hypothesis can tell: it stops shrinking
        book.begin(values)
        drawn = {label: freeze(value) for label, value in values.items()}
        blackbox.about(
            law=self.name, key=book.key, home=book.home, drawn=drawn, counts=book.counts()
        )  # fmt: skip
        try:
            with np.errstate(all="ignore"):  # what a wrong kernel returns must not end as a warning
                self.body(impl, **values)
        except Exception:
            book.fail()
            raise


_strategies: dict[tuple[str, str, tuple[str, ...]], Any] = {}


def strategy(impl: Any) -> Any:
    """The strategy of cases that an implementation supports; built once for the same limits.

    Raises ValueError if there is no such case.
    """
    allowed = impl.allowed()
    key = impl.contract_name, repr(sorted(impl.limits.items())), tuple(sorted(allowed.where))
    if key not in _strategies:
        _strategies[key] = impl.contract.cases(allowed)
    return _strategies[key]


def holds_for(
    *contracts: str, limits: Mapping[str, Collection[Any]] | None = None,
    where: Collection[str] = (), needs: Mapping[str, Collection[Any]] | None = None,
    returns: Collection[str] = (), **drawn: Any,
) -> Callable[[Callable[..., None]], Callable[..., None]]:  # fmt: skip
    """Turn `law(impl, case, **drawn)` into a test of every implementation of the contracts.

    No contract means all of them. limits and where narrow the cases; an implementation that has
    none of these cases is shown as not applicable. So is one that does not allow all of `needs`:
    field -> values that the law calls it with beside the case's own (a field that the contract
    lacks needs nothing), or that does not return all outputs named in `returns`. drawn: label ->
    strategy, or case -> strategy.
    """
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import strategies as st

    phases = [Phase.explicit, Phase.reuse, Phase.generate, Phase.target]
    patient = settings(
        deadline=None,  # kernels compile on first use
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        report_multiple_bugs=False,
        print_blob=False,
        phases=[*phases, Phase.shrink] if chosen["shrink"] else phases,
        **{name: value for name, value in chosen.items() if name != "shrink"},
    )

    def decorate(body: Callable[..., None]) -> Callable[..., None]:
        terms = Law(
            body.__name__, contracts, limits or {}, tuple(where), needs or {}, tuple(returns),
            drawn, body,
        )  # fmt: skip

        def test(impl: Any, data: Any) -> None:
            __tracebackhide__ = True
            terms.run(impl, lambda chosen, label: data.draw(chosen, label=label))

        test.__name__ = test.__qualname__ = body.__name__
        test.__doc__, test.__module__ = body.__doc__, body.__module__
        wrapped: Any = patient(given(data=st.data())(test))
        wrapped.tightrope_law = terms
        done: Callable[..., None] = wrapped
        return done

    return decorate


def check(name: str, actual: Any, budget: Any, exact: Any = None) -> float:
    """Demand that an output is within its budget; records and returns the share spent.

    Raises Violation with the worst element, its exact value and the budget term by term.
    """
    __tracebackhide__ = True
    verdict = judge(name, actual, budget, exact)
    book = ledger.opened()
    book.spend(name, verdict.share, lambda: terms_at(budget, verdict.worst))
    book.settled += verdict.settled
    if not verdict.ok:
        raise Violation(verdict.message, **verdict.detail)
    return verdict.share


def check_case(impl: Any, case: Any, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
    """Demand that all outputs of a call are within the budgets of its contract and arithmetic.

    On failure the message says which known mistake the outputs agree with, or that none does.
    """
    __tracebackhide__ = True
    from tightrope.device import current
    from tightrope.diagnosis_cause import explained

    spec = impl.contract
    budgets = impl.budgets(case, inputs, current())
    try:
        for name in impl.outputs:
            check(
                name,
                outputs[name],
                budgets[name],
                lambda at, name=name: spec.exact(case, inputs, name, at),
            )
    except Violation as violation:
        if not ledger.opened().told():
            raise  # Hypothesis makes it smaller, and comes back to what it ends with
        found = explained(impl, case, inputs, outputs, budgets)
        raise Violation(f"{violation}\n{found}", **violation.detail, **found.data) from None
    ledger.weigh({n: budgets[n] for n in impl.outputs}, spec.nulls(case, inputs))
