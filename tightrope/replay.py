"""Replay: run recorded cases again, exactly, on this machine."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tightrope.frozen import thaw
from tightrope.report import load
from tightrope.session import key

LAWS = "tightrope.properties"


def read(path: str | Path, only: str = "") -> dict[str, Any]:
    """The failed results in a report or failure file: key -> result.

    Raises OSError, or ValueError for a file that is not a report or holds no failure.
    """
    try:
        results = load(path)["results"].items()
        failed = {k: r for k, r in results if _is_of_a_case(r) and only in k}
    except (AttributeError, LookupError, TypeError) as error:
        raise ValueError(f"{path} is not a tightrope report: {error}") from error
    if not failed:
        raise ValueError(
            f"{path} records no failure" + (f" whose name contains {only!r}" if only else "")
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
    """(implementation specs, modules or files of laws) that a set of failures needs."""
    specs = dict.fromkeys(_spec(r) for r in failed.values())
    homes = (r.get("home") or f"{LAWS}.{key.split('::')[0]}" for key, r in failed.items())
    return list(specs), list(dict.fromkeys(homes))


def _spec(result: Mapping[str, Any]) -> str:
    """How to load an implementation again: its module, or its file if that is what was loaded."""
    file = result.get("source", "").rpartition(":")[0]
    try:
        sys.path.insert(0, os.getcwd())
        known = importlib.util.find_spec(result["module"]) is not None
    except (ImportError, ValueError):
        known = False
    finally:
        sys.path.pop(0)
    home = result["module"] if known or not Path(file).is_file() else file
    return f"{home}:{result['implementation']}"


class Replayer:
    """A plugin that runs each recorded case in place of what Hypothesis would draw."""

    def __init__(self, recorded: Mapping[str, Any] | None) -> None:
        self.recorded = recorded or {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        law = getattr(pyfuncitem.function, "tightrope_law", None)
        if law is None:
            return None
        impl: Any = pyfuncitem.funcargs["impl"]
        law.run(impl, draw_from(self.recorded[key(pyfuncitem)], impl.contract))
        return True
