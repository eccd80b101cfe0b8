"""Results as data: what one law found on one implementation and dtype, and how a failure reads."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tightrope.blackbox import state_folder, write_atomically
from tightrope.budget import Violation
from tightrope.device import current
from tightrope.frozen import freeze, text, thaw
from tightrope.implementation import Implementation
from tightrope.law import Law
from tightrope.ledger import Ledger

SCHEMA = 1


def result(
    law: Law, impl: Implementation, book: Ledger, failure: BaseException | None
) -> dict[str, Any]:
    """Everything the report keeps of one test; JSON-able."""
    from tightrope.compiles import count

    outcome = "failed" if failure is not None else "passed" if book.cases else "not run"
    if outcome == "passed" and book.cases == book.empty:
        outcome = "not run"  # no case had an element
    drawn = book.drawn if book.failing is None else book.failing
    found: dict[str, Any] = {
        "key": book.key, "home": book.home,
        "law": law.name, "contract": impl.contract_name, "implementation": impl.name,
        "module": impl.module, "source": impl.source, "dtype": next(iter(impl.limits["dtype"])),
        "stranger": impl.stranger, "outcome": outcome, "cases": book.cases, "empty": book.empty,
        "informative": book.informative, "uninformative": book.uninformative,
        "settled": book.settled,
        "out_of_time": book.out_of_time, "compiles": count(), "device": current().name,
        "worst": {o: {"share": s, "drawn": _frozen(d)} for o, (s, d) in book.worst.items()},
        "covered": {axis: dict(values) for axis, values in book.covered.items()},
    }  # fmt: skip
    if failure is not None:
        found["failure"] = {
            "kind": type(failure).__name__,
            "message": str(failure),
            "drawn": _frozen(drawn),
            "detail": dict(failure.detail) if isinstance(failure, Violation) else {},
        }
    return found


def _frozen(drawn: Mapping[str, Any]) -> dict[str, Any]:
    return {name: freeze(value) for name, value in drawn.items()}


def failure_file(key: str) -> Path:
    """Where a failure is kept; file systems limit a name to 255 bytes."""
    name = re.sub(r"[^\w.-]+", "-", key).strip("-").encode()[-200:].decode(errors="ignore")
    return state_folder() / "failures" / f"{name}.json"


def keep(key: str, data: Mapping[str, Any]) -> str:
    """Write a failure to a file of its own; the command that replays it, or why there is none."""
    try:
        path = failure_file(key)
        write_atomically(path, text({"schema": SCHEMA, "results": {key: data}}, indent=1))
    except OSError as error:
        return f"(not kept for replay: {error})"
    return f"replay: tightrope replay {shlex.quote(str(path))}"


def explain(item: Any, excinfo: Any, report: Any) -> Any:
    """The text of a failure: law, case, finding, and the command that replays exactly this case."""
    data = json.loads(dict(item.user_properties).get("tightrope", "{}"))
    if "failure" not in data:
        return report.longrepr
    if data["failure"]["detail"].get("of_the_law"):  # no single case shows it
        return f"{data['law']} [{data['implementation']} {data['dtype']}]: {excinfo.value}"
    replay = keep(data["key"], data)
    lines = ["{law} does not hold for {contract} {implementation} ({dtype})".format(**data), ""]
    lines += [f"  {label} = {value!r}" for label, value in _drawn(item, data).items()]
    lines += ["", str(excinfo.value) or type(excinfo.value).__name__, "", replay]
    if excinfo.errisinstance(Violation):
        return "\n".join(lines)
    report.sections.append(("tightrope", "\n".join(lines)))
    return report.longrepr


def _drawn(item: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    spec = item.funcargs["impl"].contract
    return {k: thaw(v, spec) for k, v in data["failure"]["drawn"].items()}
