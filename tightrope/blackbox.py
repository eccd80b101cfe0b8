"""What was about to run, on disk before the launch, so that a killed worker's case is known.

One file a process in the state folder (`.tightrope/`, or $TIGHTROPE_STATE): it is rewritten before
each launch, and a line's end is put behind it afterwards. When its process has died, it names the
case that ran, or else the one that ran last.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tightrope import frozen

if TYPE_CHECKING:
    from tightrope.implementation import Implementation

_context: dict[str, Any] = {}
_began = 0.0
_length = 0  # of the record on disk
_descriptor: int | None = None
_left = False  # the file is to be read after the end of this process


def state_folder() -> Path:
    """Where running cases and failures are kept; made on first use."""
    folder = Path(os.environ.get("TIGHTROPE_STATE", ".tightrope"))
    folder.mkdir(parents=True, exist_ok=True)
    ignore = folder / ".gitignore"
    if not ignore.exists():
        write_atomically(ignore, "*\n")
    return folder


def worker() -> str:
    return os.environ.get("PYTEST_XDIST_WORKER", "main")


def running_file(name: str | None = None, run: str | None = None) -> Path:
    """One worker's file; `run` is xdist's id of the run, so that runs may share a folder."""
    run = run or os.environ.get("PYTEST_XDIST_TESTRUNUID") or str(os.getpid())
    return state_folder() / f"running-{run[:8]}-{name or worker()}.json"


def finish() -> None:
    """Nothing runs any more: take the file away, unless a law was interrupted."""
    global _descriptor
    if _descriptor is not None:
        os.close(_descriptor)
        _descriptor = None
        if not _left:
            running_file().unlink(missing_ok=True)


def leave(end: BaseException | None) -> None:
    """A law has ended. One that was interrupted is told by the controller, from this file."""
    global _left
    _left = _left or isinstance(end, KeyboardInterrupt)


def forget(name: str, run: str | None) -> None:
    """What a worker that is gone left has been told: take it away."""
    with suppress(OSError):
        running_file(name, run).unlink(missing_ok=True)


def begin() -> None:
    """A law begins; how long it has run tells a hang from a crash."""
    global _began
    _began = time.time()


def about(**context: Any) -> None:
    """Say what is running (law, drawn values); part of every record until it is said anew."""
    _context.clear()
    _context.update(context)


def record(impl: Implementation, case: Any, **more: Any) -> None:
    """Write the case to disk. One positioned write: a reader only looks once the writer is dead."""
    global _descriptor, _length
    if _descriptor is None:
        _descriptor = os.open(running_file(), os.O_RDWR | os.O_CREAT, 0o644)
    words = frozen.text({
        **_context, "began": _began,
        "contract": impl.contract_name, "implementation": impl.name, "module": impl.module,
        "source": impl.source, "case": impl.contract.to_json(case), **more,
    }).encode()  # fmt: skip
    os.pwrite(_descriptor, words, 0)
    os.ftruncate(_descriptor, len(words))
    _length = len(words)


def clear() -> None:
    """The launch is over: the case stays, as the last one that ran."""
    if _descriptor is not None:
        os.pwrite(_descriptor, b"\n", _length)


def lost(impl: Implementation, case: Any, error: BaseException) -> None:
    """Nothing here can be trusted: keep the case and, in a worker, make room for a fresh one."""
    record(impl, case, error=str(error), kind=type(error).__name__)
    if worker() != "main":
        os._exit(70)


def last(name: str, run: str | None, over: bool = False) -> Mapping[str, Any] | None:
    """What a dead worker of a run was running or, if `over`, had run last; or None."""
    try:
        words = running_file(name, run).read_text()
        return json.loads(words) if words.endswith("\n") == over else None
    except (OSError, ValueError):
        return None


def write_atomically(path: Path, text: str) -> None:
    """Write a text file so that a reader sees the old or the new one, also on a full disk.

    Links are followed; what is no regular file (/dev/stdout, a pipe) is written to as it is.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        path.write_text(text)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".tightrope-")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
