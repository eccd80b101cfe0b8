"""Results as data: what one law found on one implementation and dtype, and how a failure reads."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tightrope.blackbox import state_folder, write_atomically
from tightrope.budget import Violation
from tightrope.device import current
from tightrope.implementation import Implementation
from tightrope.law import Law
from tightrope.ledger import Ledger

SCHEMA = 1


def freeze(value: Any) -> Any:
    """A drawn value as JSON: a case carries its fields, everything else is a plain value."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {"case": dataclasses.asdict(value)}
    return value


def result(
    law: Law, impl: Implementation, book: Ledger, failure: BaseException | None
) -> dict[str, Any]:
    """Everything the report keeps of one test; JSON-able."""
    from tightrope.compiles import count

    outcome = "failed" if failure is not None else "passed" if book.cases else "not run"
    found: dict[str, Any] = {
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
            "drawn": _frozen(book.drawn),
            "detail": dict(failure.detail) if isinstance(failure, Violation) else {},
        }
    return found


def _frozen(drawn: Mapping[str, Any]) -> dict[str, Any]:
    return {name: freeze(value) for name, value in drawn.items()}


def failure_file(key: str) -> Path:
    return state_folder() / "failures" / (re.sub(r"[^\w.-]+", "-", key).strip("-") + ".json")


def explain(item: Any, excinfo: Any, report: Any) -> Any:
    """The text of a failure: law, case, finding, and the command that replays exactly this case."""
    from tightrope.plugin import key

    data = json.loads(dict(item.user_properties)["tightrope"])
    if "failure" not in data:
        return report.longrepr
    name = data.pop("key")
    path = failure_file(key(item))
    write_atomically(path, json.dumps({"schema": SCHEMA, "results": {name: data}}, indent=1))
    if data["failure"]["detail"].get("of_the_law"):  # no single case shows it
        return f"{data['law']} [{data['implementation']} {data['dtype']}]: {excinfo.value}"
    replay = f"tightrope replay {shlex.quote(str(path))}"
    text = [
        "{law} does not hold for {contract} {implementation} ({dtype})".format(**data),
        "",
    ]
    text += [f"  {label} = {value!r}" for label, value in _drawn(item, data).items()]
    text += ["", str(excinfo.value) or type(excinfo.value).__name__, "", f"replay: {replay}"]
    if excinfo.errisinstance(Violation):
        return "\n".join(text)
    report.sections.append(("tightrope", "\n".join(text)))
    return report.longrepr


def _drawn(item: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    spec = item.funcargs["impl"].contract
    return {k: thaw(v, spec) for k, v in data["failure"]["drawn"].items()}


def thaw(value: Any, spec: Any) -> Any:
    """The inverse of `freeze`."""
    if isinstance(value, dict) and set(value) == {"case"}:
        return spec.from_json(value["case"])
    return tuple(value) if isinstance(value, list) else value
