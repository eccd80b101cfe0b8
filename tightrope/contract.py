"""A contract: what every implementation of one operation agrees on.

It lives in `oracles/<name>.py` as `CONTRACT` and is found by its name. It holds functions, not
code to inherit: cases, inputs, a float64 oracle, an exact oracle and a budget.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from importlib import import_module
from typing import Any

from tightrope.arithmetic import Arithmetic
from tightrope.budget import Budget
from tightrope.formats import Array
from tightrope.limits import Domain, Limits

Arrays = Mapping[str, Array]


def _nothing(case: Any, *_: Any) -> Any:
    return {}


@dataclass(frozen=True, kw_only=True)
class Contract:
    """One operation.

    signature: as users write it. case: a frozen keyword-only dataclass of scalars.
    domain: the fields that limits may narrow, with their values. unless_named: what fields are
    narrowed to where limits do not name them: whoever says nothing is not asked for the others.
    relations: names for `where=`.
    stages: the arithmetic granted to an unknown kernel. outputs: names, in the order returned;
    of_argument: output -> argument without which it is None, and counts as an array of shape (0,).
    cases(limits): a Hypothesis strategy of cases. inputs(case): tensor arguments in call order, as
    NumPy arrays in their own dtypes; those named in `keywords` go by keyword, and are absent when
    off; where one of the others may be off, `positional` names them in order, and None is passed in
    its place. options(case): further keyword arguments (dtypes as names).
    layouts(case): argument -> layout name (tightrope.layouts). in_place(case): output -> argument.
    oracle(case, inputs): output -> float64. exact(case, inputs, output, flat indices): rationals,
    None for a result that is -inf.
    budget(case, inputs, arithmetic): output -> Budget.
    nulls(case, inputs): name -> outputs of a model that does nothing useful; a case whose budget
    would accept one of them is uninformative. alternatives(case, inputs): (sentence, outputs)
    pairs, what a wrong kernel may compute instead. fits(case, inputs, outputs, budgets): the same,
    found from what came out, asked where none of the others is. axes: fields shown in the covered /
    not covered grid.
    """

    name: str
    signature: str
    case: type
    domain: Domain
    outputs: tuple[str, ...]
    stages: Mapping[str, Any]
    cases: Callable[[Limits], Any]
    inputs: Callable[[Any], dict[str, Array]]
    oracle: Callable[[Any, Arrays], dict[str, Array]]
    exact: Callable[[Any, Arrays, str, Sequence[int]], Sequence[Fraction | None]]
    budget: Callable[[Any, Arrays, Arithmetic], dict[str, Budget]]
    keywords: tuple[str, ...] = ()
    positional: tuple[str, ...] = ()
    of_argument: Mapping[str, str] = field(default_factory=dict)
    unless_named: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    relations: Mapping[str, str] = field(default_factory=dict)
    options: Callable[[Any], dict[str, Any]] = _nothing
    layouts: Callable[[Any], Mapping[str, str]] = _nothing
    in_place: Callable[[Any], Mapping[str, str]] = _nothing
    nulls: Callable[[Any, Arrays], Mapping[str, Mapping[str, Array]]] = _nothing
    alternatives: Callable[[Any, Arrays], Iterable[tuple[str, Mapping[str, Array]]]] = _nothing
    fits: Callable[..., Iterable[tuple[str, Mapping[str, Array]]]] = _nothing
    axes: tuple[str, ...] = ()

    def limits(self, given: Mapping[str, Any], where: Iterable[str] = ()) -> Limits:
        return Limits(self.domain, {**self.unless_named, **given}, frozenset(where))

    def arguments(self, given: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Tensor arguments as a call passes them: by place, and by keyword."""
        named = {name: given[name] for name in self.keywords if name in given}
        order = self.positional or [name for name in given if name not in named]
        return [given.get(name) for name in order], named

    def to_json(self, case: Any) -> dict[str, Any]:
        return dataclasses.asdict(case)

    def from_json(self, fields: Mapping[str, Any]) -> Any:
        """The case again; raises TypeError for fields that the case no longer has."""
        return self.case(**fields)


def names() -> tuple[str, ...]:
    """Every contract there is, in the order that users meet them."""
    return tuple(import_module("tightrope.oracles").CONTRACTS)


@cache
def contract(name: str) -> Contract:
    """Find a contract by its name; raises LookupError listing the known ones."""
    if name not in names():
        raise LookupError(f"unknown contract {name!r}; known: {', '.join(names())}")
    found: Contract = import_module(f"tightrope.oracles.{name}").CONTRACT
    return found
