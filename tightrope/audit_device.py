"""`tightrope audit device`: how this device computes, function by function, kept as its record.

A record may be built over several runs: those of the same device and versions are added to the
file, probe by probe. Its id is a hash of device, versions and records; whoever uses a constant of
a record names the id.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from tightrope.device import prepare
from tightrope.environment import environment

FUNCTIONS = ("exp2", "exp", "log2", "sin", "cos", "softplus")
MORE = ("log", "sqrt", "rsqrt", "sigmoid", "tanh")
CASTS = ("bfloat16", "float16")
SHAPES = ((16, 16, 16), (16, 64, 64), (64, 64, 64), (128, 128, 128))
STAGES = {"exp_ulp": ("exp2",), "log_ulp": ("log2",), "trig_ulp": ("sin", "cos")}
IDENTITY = ("device", "packages")
Records = Iterator[dict[str, Any]]
Progress = Callable[[str, float], None]


def probes() -> dict[str, Callable[[], Records]]:
    """Name -> what it records, in the order of a run: functions, casts, div, dots."""
    from tightrope.audit_device_division import divisions
    from tightrope.audit_device_scan import cast, scan

    found: dict[str, Callable[[], Records]] = {n: partial(_once, scan, n) for n in FUNCTIONS}
    found |= {f"cast to {n}": partial(_once, cast, n) for n in CASTS}
    found |= {n: partial(divisions, n) for n in ("x / w", "div_rn")}
    found["dots"] = dots
    return found | {n: partial(_once, scan, n) for n in MORE}


def _once(measured: Callable[[str], dict[str, Any]], name: str) -> Records:
    yield measured(name)


def dots() -> Records:
    """16-bit operands through the tensor cores, every output against the model's bits."""
    import torch

    from tightrope.audit_device_dots import measured
    from tightrope.audit_device_kernels import DEVICE

    shapes, products = (SHAPES, 1 << 20) if DEVICE == "cuda" else (SHAPES[:1], 1 << 12)
    for dtype in (torch.float16, torch.bfloat16):
        for shape in shapes:
            yield from measured(dtype, torch.float32, "tf32", shape, products)


def chosen(names: Sequence[str]) -> dict[str, Callable[[], Records]]:
    """The probes named, all without a name. Raises ValueError, listing the known ones."""
    known = probes()
    for name in names:
        if name not in known:
            raise ValueError(f"--probe: expected one of {', '.join(known)}, got {name!r}")
    return {name: known[name] for name in names or known}


def measure(
    names: Sequence[str] = (), *, kind: str | None = None, seconds: float | None = None,
    earlier: Mapping[str, Any] | None = None, progress: Progress = lambda name, share: None,
    keep: Callable[[Mapping[str, Any]], None] = lambda record: None,
) -> dict[str, Any]:  # fmt: skip
    """Run probes and return the record; keep: called after each, so that no result is lost.

    kind: "cuda", "cpu" (the interpreter, on samples) or None. seconds: no probe begins later; what
    was left out is named. earlier: a record to add to. Raises ValueError for an unknown probe and
    for an earlier record of another device or other versions.
    """
    where = prepare(kind)
    record = _begun(where.name)
    if earlier is not None:
        _check_same(earlier, record)
        record["records"] = dict(earlier["records"])
    begun, wanted = time.perf_counter(), chosen(names)
    record["not_run"] = list(wanted)
    for place, (name, probe) in enumerate(wanted.items()):
        if seconds is not None and time.perf_counter() - begun > seconds:
            break
        progress(name, place / len(wanted))
        record["records"][name] = _run(probe)
        record["not_run"].remove(name)
        record["id"] = identity(record)
        keep(record)
    progress("done", 1.0)
    return record


def _begun(device: str) -> dict[str, Any]:
    found = environment()
    found["packages"] = {n: found["packages"][n] for n in ("tightrope", "torch", "triton", "numpy")}
    about = found.pop("device", {})
    about.pop("count", None)
    return {
        "audit": "device", "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": {"name": device, **about}, **found, "records": {},
    }  # fmt: skip


def _check_same(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for key in IDENTITY:
        if earlier.get(key) != now[key]:
            raise ValueError(
                f"a record is of one device and its versions; {key}: expected "
                f"{earlier.get(key)!r} as in the file, got {now[key]!r}"
            )


def _run(probe: Callable[[], Records]) -> list[dict[str, Any]]:
    """Records of a probe; a failure is a record too, and the next probe goes on."""
    import numpy as np

    begun, found = time.perf_counter(), []
    with np.errstate(all="ignore"):
        try:
            for record in probe():
                found.append(record)
        except Exception as error:
            found.append({"error": f"{type(error).__name__}: {error}"[:500]})
    for record in found:
        record["seconds"] = round(time.perf_counter() - begun, 2)
    return found


def identity(record: Mapping[str, Any]) -> str:
    """The record's id: 12 hexadecimal digits of a hash of device, versions and records.

    Times and dates are no part of it: the same results are the same record.
    """
    kept = {
        name: [{k: v for k, v in r.items() if k != "seconds"} for r in records]
        for name, records in record["records"].items()
    }
    words = json.dumps([*(record[k] for k in IDENTITY), kept], sort_keys=True)
    return hashlib.sha256(words.encode()).hexdigest()[:12]


def constants(record: Mapping[str, Any]) -> dict[str, float]:
    """Constants of an arithmetic (stage -> ulps) that a record proves for its device.

    Only functions tried on every float32 number count, by the bound that none of them exceeds; what
    was searched or sampled proves nothing. Whoever uses one names the record's id.
    """
    found: dict[str, float] = {}
    for stage, names in STAGES.items():
        known = [r for n in names for r in record["records"].get(n, ()) if r.get("exhaustive")]
        if len(known) == len(names) and all(r["reference_proved"] for r in known):
            found[stage] = max(r["none_above_ulps"] for r in known)
    return found


def read(path: str) -> dict[str, Any]:
    """A record from a file, its id checked. Raises ValueError for a file that is none."""
    try:
        record: dict[str, Any] = json.loads(Path(path).read_text())
        claimed, actual = record["id"], identity(record)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no record of a device: {error!r}") from error
    if claimed != actual:
        raise ValueError(f"{path}: expected the id {actual} of its contents, got {claimed}")
    return record


def audit(options: Any, progress: Progress) -> dict[str, Any]:
    """What the command asks for; a record that exists at --json is added to."""
    from tightrope.audit import keep

    path = options.json
    earlier = read(path) if path and Path(path).is_file() else None
    return measure(
        options.probe, kind=options.device, seconds=options.max_seconds, earlier=earlier,
        progress=progress, keep=lambda record: keep(record, path) if path else None,
    )  # fmt: skip
