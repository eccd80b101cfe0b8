"""Failures that are known: a TOML file that names them, held to be exact.

    [[known]]
    pattern = "test_oracle::test_matches_oracle[rope-acme-*]"   # a key of the report; * is any text
    reason = "the product is rounded to bfloat16"
    issue = "https://example.org/acme/issues/12"

    [[known]]
    pattern = "*[attention-acme-float16]"
    reason = "head_dim 192 hangs"
    issue = "acme#13"
    quarantine = true             # not run, but counted and shown
    case = { head_dim = 192 }     # only these cases; without it the whole law is left out

A law that is known to fail and holds, or a pattern that matches no law, is an error: the list can
only shrink. Quarantine is for what ends the process or the CUDA context, where running costs more
than it tells.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TEXTS = ("pattern", "reason", "issue")
FIELDS = (*TEXTS, "quarantine", "case")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One `[[known]]`; see the module. place: FILE, and which entry of it."""

    pattern: str
    reason: str
    issue: str
    quarantine: bool = False
    case: Mapping[str, Any] = field(default_factory=dict)
    place: str = ""

    def matches(self, key: str) -> bool:
        """Whether it names a law on one implementation and dtype; only `*` is special."""
        pieces = map(re.escape, self.pattern.split("*"))
        return re.fullmatch(".*".join(pieces), key, re.DOTALL) is not None

    def holds(self, case: Any) -> bool:
        """Whether a case is one of those in quarantine."""
        return all(getattr(case, name, None) == value for name, value in self.case.items())

    def __str__(self) -> str:
        return f"{self.reason} ({self.issue})"


def read(path: str) -> tuple[Entry, ...]:
    """The entries of a file. Raises OSError, or ValueError with the entry, expected and got."""
    try:
        data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from error
    listed = data.pop("known", [])
    if data or not isinstance(listed, list):
        raise ValueError(
            f"{path}: expected [[known]] entries only, got {', '.join(data) or listed}"
        )
    return tuple(_entry(f"{path}, entry {n}", given) for n, given in enumerate(listed, 1))


def _entry(place: str, given: Mapping[str, Any]) -> Entry:
    if not isinstance(given, Mapping):
        raise ValueError(f"{place}: expected a table, got {given!r}")
    unknown = set(given) - set(FIELDS)
    if unknown:
        raise ValueError(f"{place}: expected {', '.join(FIELDS)}, got {', '.join(sorted(unknown))}")
    for name in TEXTS:
        if not isinstance(given.get(name), str) or not given[name].strip():
            raise ValueError(f"{place}: {name}: expected some text, got {given.get(name)!r}")
    quarantine, case = given.get("quarantine", False), given.get("case", {})
    if not isinstance(quarantine, bool) or not isinstance(case, dict):
        raise ValueError(
            f"{place}: expected quarantine = true or false, case = {{ field = value }}"
        )
    if case and not quarantine:
        raise ValueError(f"{place}: case: expected beside quarantine = true only, got {case}")
    texts = {name: given[name] for name in TEXTS}
    return Entry(**texts, quarantine=quarantine, case=case, place=place)


@dataclass
class Known:
    """What a run knows beforehand. failing: keys of laws that the baseline saw fail."""

    entries: tuple[Entry, ...] = ()
    failing: frozenset[str] = frozenset()
    unmatched: list[str] = field(default_factory=list)

    def meet(self, keys: Iterable[str]) -> None:
        """Note which entries match none of the collected laws."""
        found = list(keys)
        self.unmatched = [
            f"{e.place}: {e.pattern!r} matches no law here"
            for e in self.entries if not any(map(e.matches, found))
        ]  # fmt: skip

    def quarantined(self, key: str) -> Entry | None:
        """The entry that keeps a whole law from running."""
        return next((e for e in self._of(key) if e.quarantine and not e.case), None)

    def cases(self, key: str) -> tuple[Entry, ...]:
        """Entries that keep some cases of a law from running."""
        return tuple(e for e in self._of(key) if e.case)

    def failure(self, key: str) -> Entry | None:
        """The entry that says a law fails."""
        return next((e for e in self._of(key) if not e.quarantine), None)

    def why(self, key: str) -> str | None:
        """Why the failure of a law is no news, None if it is."""
        entry = self.failure(key)
        if entry:
            return f"known: {entry}"
        return "fails in the baseline too" if key in self.failing else None

    def _of(self, key: str) -> Iterable[Entry]:
        return (e for e in self.entries if e.matches(key))
