"""Limits: what an implementation supports. They construct cases, they never filter them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

Domain = Mapping[str, tuple[Any, ...] | range]


@dataclass(frozen=True)
class Limits:
    """A contract's domain narrowed by an implementation.

    domain: field -> all values (a tuple: the known values; a range: any of these integers).
    given: field -> allowed values, a tuple or a range. where: names of relations that must hold.
    """

    domain: Domain
    given: Mapping[str, Collection[Any]] = field(default_factory=dict)
    where: frozenset[str] = frozenset()

    def values(self, name: str) -> tuple[Any, ...]:
        """The allowed values of a field, in the domain's order (simplest first)."""
        known = self.domain[name]
        if name not in self.given:
            return tuple(known)
        given = self.given[name]
        if isinstance(known, range):
            return tuple(given)
        return tuple(v for v in known if v in given)

    def allows(self, name: str, value: Any) -> bool:
        return value in (self.given[name] if name in self.given else self.domain[name])

    def all_of(self, needs: Mapping[str, Collection[Any]]) -> bool:
        """Whether all these values of these fields are allowed; unknown fields do not count."""
        return all(
            self.allows(name, value)
            for name, values in needs.items() if name in self.domain for value in values
        )  # fmt: skip

    def bounds(self, name: str) -> tuple[int, int]:
        """Smallest and largest allowed integer of a field."""
        values = self.given.get(name, self.domain[name])
        ends = (values[0], values[-1]) if isinstance(values, range) else values
        return min(ends), max(ends)

    def pick(self, name: str, wanted: tuple[Any, ...]) -> tuple[Any, ...]:
        """Those of `wanted` that are allowed; if none is, what is allowed (a range: its ends)."""
        kept = tuple(v for v in wanted if self.allows(name, v))
        if kept:
            return kept
        values = self.given.get(name, self.domain[name])
        return (
            tuple(sorted({min(values), max(values)}))
            if isinstance(values, range)
            else tuple(values)
        )

    def narrowed(
        self, more: Mapping[str, Collection[Any]], where: Collection[str] = ()
    ) -> Limits | None:
        """These limits and more; None if nothing is left."""
        given = dict(self.given)
        for name, values in more.items():
            kept = tuple(v for v in values if self.allows(name, v))
            if not kept:
                return None
            given[name] = kept
        return Limits(self.domain, given, self.where | frozenset(where))


def check_limits(
    domain: Domain, given: Mapping[str, Any], relations: Collection[str], where: Collection[str]
) -> None:
    """Raise ValueError, listing what is known, for a limit, a value or a relation that is not."""
    for name, values in given.items():
        if name not in domain:
            raise ValueError(f"unknown limit {name!r}; known: {', '.join(domain)}")
        if isinstance(values, str) or not isinstance(values, Collection) or not len(values):
            raise ValueError(f"limit {name}: expected a tuple or range of values, got {values!r}")
        unknown = [v for v in values if v not in domain[name]]
        if unknown:
            raise ValueError(
                f"limit {name}: unknown value {unknown[0]!r}; known: {describe(domain[name])}"
            )
    for relation in where:
        if relation not in relations:
            raise ValueError(
                f"unknown relation {relation!r}; known: {', '.join(relations) or 'none'}"
            )


def describe(values: Collection[Any]) -> str:
    """`16..256 step 2` for a range, `float16, float32` for a tuple."""
    if isinstance(values, range):
        step = f" step {values.step}" if values.step != 1 else ""
        return f"{values[0]}..{values[-1]}{step}" if len(values) else "none"
    return ", ".join(str(v) for v in values)
