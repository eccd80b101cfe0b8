"""Replay: run recorded cases again, exactly, on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tightrope.results import SCHEMA, thaw


def read(path: str | Path, only: str = "") -> dict[str, Any]:
    """The failed results in a report or failure file: key -> result.

    Raises OSError, or ValueError for a file that is not a report or holds no failure.
    """
    data = json.loads(Path(path).read_text())
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise ValueError(f"not a tightrope report of schema {SCHEMA}")
    failed = {k: r for k, r in data["results"].items() if _is_of_a_case(r) and only in k}
    if not failed:
        raise ValueError(
            "it records no failure" + (f" whose name contains {only!r}" if only else "")
        )
    return failed


def _is_of_a_case(result: Mapping[str, Any]) -> bool:
    """Whether a result is a failure that one case shows (not: too many uninformative cases)."""
    return result["outcome"] == "failed" and not result["failure"]["detail"].get("of_the_law")


def draw_from(recorded: Mapping[str, Any], spec: Any) -> Callable[[Any, str], Any]:
    """Stands in for Hypothesis: gives what was drawn when the failure was recorded."""
    drawn = recorded["failure"]["drawn"]

    def draw(strategy: Any, label: str) -> Any:
        if label not in drawn:
            raise KeyError(f"the record has no {label!r}; this law draws more than it did")
        return thaw(drawn[label], spec)

    return draw


def targets(failed: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """(implementation specs, property modules) that a set of failures needs."""
    specs = dict.fromkeys(f"{r['module']}:{r['implementation']}" for r in failed.values())
    files = dict.fromkeys(key.split("::")[0] for key in failed)
    return list(specs), list(files)
