"""Limits: what an implementation supports. They construct cases, they never filter them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import gcd
from typing import Any

Domain = Mapping[str, tuple[Any, ...] | range]


class Usual(tuple[Any, ...]):
    """Values that cases draw from; a limit may also name any other number from `least` to `most`.

    Whole numbers only, if both ends are.
    """

    least: float
    most: float

    def __new__(cls, values: Collection[Any], least: float, most: float) -> Usual:
        made = super().__new__(cls, values)
        made.least, made.most = least, most
        return made

    def __contains__(self, value: object) -> bool:
        whole = isinstance(self.least, int) and isinstance(self.most, int)
        number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
        inside = number and self.least <= value <= self.most  # type: ignore[operator]
        return inside or super().__contains__(value)


@dataclass(frozen=True)
class Limits:
    """A contract's domain narrowed by an implementation.

    domain: field -> all values (a tuple: the known values; a range: any of these integers; Usual).
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
        if isinstance(known, range | Usual):
            return tuple(given)
        return tuple(v for v in known if v in given)

    def allows(self, name: str, value: Any) -> bool:
        return value in self.allowed(name)

    def all_of(self, needs: Mapping[str, Collection[Any]]) -> bool:
        """Whether all these values of these fields are allowed; unknown fields do not count."""
        return all(
            self.allows(name, value)
            for name, values in needs.items() if name in self.domain for value in values
        )  # fmt: skip

    def bounds(self, name: str) -> tuple[int, int]:
        """Smallest and largest allowed integer of a field."""
        values = self.allowed(name)
        ends = (values[0], values[-1]) if isinstance(values, range) else values
        return min(ends), max(ends)

    def allowed(self, name: str) -> Collection[Any]:
        """What is allowed of a field, as it was given: a range stays one."""
        return self.given[name] if name in self.given else self.domain[name]

    def pick(self, name: str, wanted: tuple[Any, ...], most: int | None = None) -> tuple[Any, ...]:
        """Those of `wanted` that are allowed; if none is, what is allowed.

        Of integers the nearest to those wanted, as `nearest` has it; `most` is the largest.
        """
        if isinstance(self.domain[name], range):
            return picked(self.allowed(name), wanted, most)
        kept = tuple(v for v in wanted if self.allows(name, v))
        return kept or self.values(name)

    def narrowed(
        self, more: Mapping[str, Collection[Any]], where: Collection[str] = ()
    ) -> Limits | None:
        """These limits and more; None if nothing is left."""
        given = dict(self.given)
        for name, values in more.items():
            kept = meet(values, given[name] if name in given else self.domain[name])
            if not kept:
                return None
            given[name] = kept
        return Limits(self.domain, given, self.where | frozenset(where))


def meet(some: Collection[Any], others: Collection[Any]) -> tuple[Any, ...] | range:
    """The values in both, in the order of `some`; of two ranges a range, found by arithmetic."""
    if isinstance(some, Usual) and not isinstance(others, Usual):
        return meet(others, some)
    if not isinstance(some, range):
        return tuple(v for v in some if v in others)
    if not isinstance(others, range):
        return tuple(v for v in others if v in some)
    if not some or not others:
        return range(0)
    a, b = (r if r.step > 0 else r[::-1] for r in (some, others))
    common = gcd(a.step, b.step)
    if (b[0] - a[0]) % common:
        return range(0)
    step = a.step // common * b.step
    turns = (b[0] - a[0]) // common * pow(a.step // common, -1, b.step // common)
    first = a[0] + a.step * (turns % (b.step // common))
    first += -(-(max(a[0], b[0]) - first) // step) * step
    return range(first, min(a[-1], b[-1]) + 1, step)


def picked(
    allowed: Collection[int], wanted: Collection[int], most: int | None = None
) -> tuple[int, ...]:
    """Those wanted that are allowed and at most `most`; if none is, the nearest that are allowed.

    Those are in ascending order and no larger than what is wanted; if all are larger, it is the
    smallest one allowed. 0 is only among them if nothing else is. () if nothing is allowed.
    """
    kept = tuple(w for w in wanted if w in allowed and (most is None or w <= most))
    if kept or not allowed:
        return kept
    bound = max(wanted, default=1) if most is None else min(max(wanted, default=most), most)
    near = sorted({n for w in wanted for n in nearest(allowed, w) if n != 0 and n <= bound})
    return tuple(near) or (smallest(allowed),)


def nearest(allowed: Collection[int], wanted: int) -> tuple[int, ...]:
    """The allowed values on either side of the one wanted (one, if it is the same or an end)."""
    if not isinstance(allowed, range):
        below = max((v for v in allowed if v <= wanted), default=None)
        above = min((v for v in allowed if v >= wanted), default=None)
        return tuple({v for v in (below, above) if v is not None})
    up = allowed if allowed.step > 0 else allowed[::-1]
    at = (wanted - up.start) // up.step
    sides = (at, at + ((wanted - up.start) % up.step > 0))
    return tuple({up[min(max(i, 0), len(up) - 1)] for i in sides})


def smallest(allowed: Collection[int]) -> int:
    """The smallest positive value, or if there is none the largest."""
    if isinstance(allowed, range):
        largest = max(allowed[0], allowed[-1])
        positive = meet(allowed, range(1, largest + 1))
        return int(positive[0]) if positive else largest
    return min((v for v in allowed if v > 0), default=max(allowed))


def check_limits(
    domain: Domain, given: Mapping[str, Any], relations: Collection[str], where: Collection[str]
) -> None:
    """Raise ValueError, listing what is known, for a limit, a value or a relation that is not."""
    for name, values in given.items():
        if name not in domain:
            raise ValueError(f"unknown limit {name!r}; known: {', '.join(domain)}")
        if isinstance(values, str) or not isinstance(values, Collection) or not len(values):
            raise ValueError(f"limit {name}: expected a tuple or range of values, got {values!r}")
        some: Collection[Any] = values
        if isinstance(values, range) and isinstance(domain[name], range):
            # three values tell whether one progression lies in another
            some = (values[0], values[:2][-1], values[-1])
        unknown = [v for v in some if v not in domain[name]]
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
    if isinstance(values, Usual):
        return f"{', '.join(map(str, values))}, or any number from {values.least} to {values.most}"
    return ", ".join(str(v) for v in values)
