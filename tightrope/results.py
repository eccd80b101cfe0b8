"""Results as data: what one law found on one implementation and dtype, and how a failure reads."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import traceback
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
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
REPLAY = "replay: "  # starts what is said of a failure that was kept


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
        "stranger": impl.stranger, "outcome": outcome, **book.counts(),
        "out_of_time": book.out_of_time, "compiles": count(), "device": current().name,
        "record": book.record or None,
        "worst": {
            o: {"share": s, "drawn": _frozen(d), "terms": book.terms[o]}
            for o, (s, d) in book.worst.items()
        },
        "limits": _limits(impl), "where": sorted(impl.where),
        "draws": book.draws.hexdigest(), "again": book.again,
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


def _limits(impl: Implementation) -> dict[str, list[Any]]:
    """Axis of the contract -> values that it may be drawn with, as text; of a range its ends."""
    allowed = impl.allowed()
    found: dict[str, list[Any]] = {}
    for axis, domain in impl.contract.domain.items():
        if isinstance(domain, range):
            given = allowed.given.get(axis, domain)
            ends = (given[0], given[-1]) if isinstance(given, range) else (min(given), max(given))
            found[axis] = sorted(map(int, ends))
        else:
            found[axis] = [str(v) for v in allowed.values(axis)]
    return found


def _frozen(drawn: Mapping[str, Any]) -> dict[str, Any]:
    return {name: freeze(value) for name, value in drawn.items()}


def failure_file(key: str) -> Path:
    """Where a failure is kept: its name as far as file systems take it, and a digest of it all."""
    name = re.sub(r"[^\w.-]+", "-", key).strip("-").encode()[-200:].decode(errors="ignore")
    digest = hashlib.blake2b(key.encode(errors="surrogatepass"), digest_size=4).hexdigest()
    return state_folder() / "failures" / f"{name}-{digest}.json"


def keep(key: str, data: Mapping[str, Any]) -> str:
    """Write a failure to a file of its own; the command that replays it, or why there is none."""
    try:
        path = failure_file(key)
        write_atomically(path, text({"schema": SCHEMA, "results": {key: data}}, indent=1))
    except OSError as error:
        return f"(not kept for replay: {error})"
    return f"{REPLAY}tightrope replay {shlex.quote(str(path))}"


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
    violated = excinfo.errisinstance(Violation)
    found = str(excinfo.value) if violated else raised(excinfo.value, item.funcargs["impl"])
    if violated and data["record"] and data["record"] not in found:
        found += f"\nconstants of record {data['record']}"
    told = "\n".join([*lines, "", found or type(excinfo.value).__name__, "", replay])
    if violated or found:
        return told
    report.sections.append(("tightrope", told))  # raised by this project: all of it is shown
    return report.longrepr


def raised(error: BaseException, impl: Implementation) -> str:
    """What an implementation or a user's law raised, as a traceback that starts in their code.

    Empty for an exception that none of their frames had a part in.
    """
    parts = [_traceback(link, frames) for link, frames in _chain(error) if frames]
    if not parts and _refused(error):
        parts = [f"{_last_line(error)}{impl.source}: called as {impl.contract.signature}"]
    elif parts and not _frames(error):  # only its cause lies in their code
        parts.insert(0, _last_line(error).rstrip())
    return "\n\ncaused by\n\n".join(parts) + (_hint(error, impl) if parts else "")


def _chain(error: BaseException) -> Iterator[tuple[BaseException, list[traceback.FrameSummary]]]:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        yield link, _frames(link)
        seen.add(id(link))
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    machinery, kernels = _folders()
    return [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename.startswith(kernels) or not frame.filename.startswith(machinery)
    ]


@cache
def _folders() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Folders whose frames say nothing to a user, and those inside them that do."""
    roots = [str(root) for root in import_module("tightrope").__path__]
    tools = [str(Path(str(import_module(t).__file__)).parent)
             for t in ("_pytest", "hypothesis", "pluggy")]  # fmt: skip
    inner = [os.path.join(r, part) for r in roots for part in ("oracles", "properties")]
    machinery = [str(Path(__file__).parent), *inner, *tools]
    return tuple(m + os.sep for m in machinery), tuple(
        os.path.join(root, "impls") + os.sep for root in roots
    )


def _traceback(error: BaseException, frames: list[traceback.FrameSummary]) -> str:
    listed = "".join(traceback.StackSummary.from_list(frames).format())
    return f"Traceback (most recent call last):\n{listed}{_last_line(error)}".rstrip()


def _last_line(error: BaseException) -> str:
    """`TypeError: ...`, without the notes that Hypothesis adds to it."""
    bare = traceback.TracebackException(type(error), error, None)
    bare.__notes__ = []
    return "".join(bare.format_exception_only())


def _refused(error: BaseException) -> bool:
    """Whether the call itself failed: the arguments did not fit."""
    last = traceback.extract_tb(error.__traceback__)[-1:]
    return any(f.name == "_call" and Path(f.filename).name == "device.py" for f in last)


def _hint(error: BaseException, impl: Implementation) -> str:
    """What to do about a keyword of the contract that an implementation does not take."""
    lacks = re.search(r"unexpected keyword argument '(\w+)'", str(error))
    spec = impl.contract
    if not isinstance(error, TypeError) or not lacks or lacks[1] not in spec.domain:
        return ""
    name = lacks[1]
    ways = [f"where=({r!r},)" for r in spec.relations if r.startswith(f"{name}=")]
    ways += [f"{name}=({v!r},)" for v in spec.domain[name] if v is False or v is None]
    declare = f"declare {ways[0]} in @implements, or " if ways else ""
    return f"\n{declare}accept the keyword {name!r}"


def _drawn(item: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    spec = item.funcargs["impl"].contract
    return {k: thaw(v, spec) for k, v in data["failure"]["drawn"].items()}
