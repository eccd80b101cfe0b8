"""A worker died: what of, in which case, as a result like any other."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Mapping
from typing import Any

from tightrope import blackbox

NAMES = re.compile(r"(?P<law>\w+)\[(?P<contract>[^-]+)-(?P<implementation>.*)-(?P<dtype>\w+)\]$")


def death(key: str, node: Any, patience: float) -> dict[str, Any]:
    """The result of the law that a worker (xdist's node) died in.

    patience: seconds after which pytest-timeout ends a law, 0 if it does not.
    """
    name, run = node.gateway.id, node.workerinput["testrunuid"]
    case = blackbox.last(name, run)
    late = blackbox.last(name, run, over=True) if case is None else None
    if late is not None and _law(late.get("key", "")) == _law(key):
        case = late
    kind, message = _cause(case or {}, exit_status(node), patience)
    if case is None:
        message += ", outside of any launch"
    elif case is late:
        message += ", after this case's launch"
    found = {"key": key, "home": "", **_named(key), "outcome": "failed", "cases": 1}
    if case is not None:
        found |= _told(case)
    found["failure"] = {
        "kind": kind, "message": message, "detail": {} if case else {"of_the_law": True},
        "drawn": case.get("drawn", {"case": {"case": case["case"]}}) if case else {},
    }  # fmt: skip
    return found


def unfinished(name: str, run: str | None) -> dict[str, Any] | None:
    """The result of the law that a worker (None: this process) was in when the run was ended.

    Its counts are those before the case that ran, which is not judged.
    """
    case = blackbox.last(name, run) or blackbox.last(name, run, over=True)
    if not case or "counts" not in case:
        return None
    counts = {**case["counts"], "cases": case["counts"]["cases"] - 1}
    return {**_told(case), "outcome": "unfinished", **counts}


def _told(case: Mapping[str, Any]) -> dict[str, Any]:
    """Of a case on disk, what its law's result says."""
    found = {k: case.get(k, "") for k in ("key", "home", "law")}
    found |= {k: case[k] for k in ("contract", "implementation", "module", "source")}
    return {**found, "dtype": case["case"].get("dtype", "")}


def _law(key: str) -> str:
    """The part of a key that stays the same where a file of the user's imports the law."""
    return key.partition("::")[2]


def _named(key: str) -> dict[str, str]:
    """What a law's key says of it."""
    found = NAMES.search(key)
    return found.groupdict() if found else {}


def _cause(case: Mapping[str, Any], status: int | None, patience: float) -> tuple[str, str]:
    """(kind, message): DeviceLost or MemoryLimit as told by the process itself, Hang, Crash."""
    if "error" in case:
        return case.get("kind", "DeviceLost"), case["error"]
    ran = time.time() - case["began"] if case.get("began") else 0.0
    if patience and ran >= patience:
        return "Hang", f"no end after {patience:g} seconds (--timeout): the process was ended"
    return "Crash", f"the process died{_how(status)}"


def _how(status: int | None) -> str:
    if status is None:
        return ""
    if status >= 0:
        return f" with exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    killed = " (by hand, or by the system when memory ran out)" if name == "SIGKILL" else ""
    return f" of {name}{killed}"


def exit_status(node: Any) -> int | None:
    """How a worker's process ended; None if xdist does not tell. Waits for it a moment."""
    process = getattr(getattr(node.gateway, "_io", None), "popen", None)
    if process is None:
        return None
    deadline = time.time() + 2.0
    while (status := process.poll()) is None and time.time() < deadline:
        time.sleep(0.01)
    return None if status is None else int(status)
