"""Record how a device rounds: `python tests/record_device_arithmetic.py FILE [PROBE ...]`.

Every operation that the interpreter models is run on the device and by the model, and compared bit
for bit. Functions, divisions, casts and the dots of 16-bit operands are `tightrope audit device`'s;
here are the same dots in more shapes, and all others. Without a GPU the interpreter runs the
kernels, and must agree with itself.

`python tests/record_device_arithmetic.py --short FILE SHORTER [NOTE]` writes the sums of a record.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
from device_arithmetic_chains import by_rows, chained
from device_arithmetic_functions import multiply_adds
from device_arithmetic_sums import reductions
from device_arithmetic_widened import widened

from tightrope.audit_device import CASTS, FUNCTIONS, MORE
from tightrope.audit_device_division import divisions
from tightrope.audit_device_dots import FP8_SHAPES, HALF_SHAPES, OTHER_SHAPES, measured
from tightrope.audit_device_kernels import DEVICE
from tightrope.audit_device_scan import cast, scan
from tightrope.blackbox import write_atomically
from tightrope.environment import environment
from tightrope.interpreter import install

HALVES = (torch.float16, torch.bfloat16)
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
PRODUCTS = 1 << 20 if DEVICE == "cuda" else 1 << 12
Records = Iterator[dict[str, Any]]


def halves() -> Records:
    shapes = HALF_SHAPES if DEVICE == "cuda" else HALF_SHAPES[:2]
    for dtype in HALVES:
        for shape in shapes:
            yield from measured(dtype, torch.float32, "tf32", shape, PRODUCTS)


def chains() -> Records:
    for dtype in HALVES:
        for shape in ((16, 64, 64), (64, 64, 32)):
            yield chained(dtype, "tf32", shape, PRODUCTS)
    for precision in ("tf32", "tf32x3", "ieee"):
        yield chained(torch.float32, precision, (16, 16, 32), PRODUCTS)


def rows() -> Records:
    for dtype in HALVES:
        yield by_rows(dtype, 64, PRODUCTS)


def singles() -> Records:
    for precision in ("tf32", "tf32x3", "ieee"):
        for shape in OTHER_SHAPES if DEVICE == "cuda" else OTHER_SHAPES[:1]:
            yield from measured(torch.float32, torch.float32, precision, shape, PRODUCTS)


def narrow() -> Records:
    for shape in OTHER_SHAPES if DEVICE == "cuda" else OTHER_SHAPES[:1]:
        yield from measured(torch.float16, torch.float16, "tf32", shape, PRODUCTS // 4)


def eights() -> Records:
    for dtype in FP8:
        for shape in FP8_SHAPES:
            yield from measured(dtype, torch.float32, "tf32", shape, PRODUCTS)


def functions() -> Records:
    for name in (*FUNCTIONS, *MORE):
        yield scan(name)


def casts() -> Records:
    return map(cast, CASTS)


def division() -> Records:
    for name in ("x / w", "div_rn"):
        yield from divisions(name)


def widenings() -> Records:
    for m, k in ((16, 64), (32, 64), (64, 64)) if DEVICE == "cuda" else ((16, 64),):
        yield from widened(m, k, 8)


def doubles() -> Records:
    yield from measured(torch.float64, torch.float64, "ieee", (16, 16, 16), PRODUCTS // 16)


PROBES = {
    "halves": halves, "functions": functions, "divisions": division, "chains": chains,
    "rows": rows, "singles": singles, "reductions": reductions, "casts": casts,
    "multiply_adds": multiply_adds, "narrow": narrow, "eights": eights, "doubles": doubles,
    "widenings": widenings,
}  # fmt: skip


def collected(name: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The records of one probe, and its time; a failure is a record too, and the rest goes on."""
    start, records = time.perf_counter(), []
    try:
        for record in PROBES[name]():
            records.append(record)
    except Exception as error:
        records.append({"probe": name, "error": f"{type(error).__name__}: {error}"[:500]})
    return records, {"seconds": round(time.perf_counter() - start, 1), "records": len(records)}


def main(path: str, *names: str) -> None:
    found: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": environment(),
        "device": torch.cuda.get_device_name() if DEVICE == "cuda" else "interpreter",
        "time": {},
        "records": [],
    }
    with nullcontext() if DEVICE == "cuda" else install(), np.errstate(all="ignore"):
        for name in names or PROBES:
            records, found["time"][name] = collected(name)
            found["records"] += records
            bad = sum(r.get("mismatches", 0) for r in records)
            print(f"{name}: {found['time'][name]}, mismatches {bad}", flush=True)
            # Written after every probe: a run that is cut short leaves what it has.
            write_atomically(Path(path), json.dumps(found, indent=1) + "\n")


DOT = ("dtype", "accumulator", "precision")
COUNTS = ("compared", "mismatches", "only the sign of zero")


def added(records: list[dict[str, Any]]) -> dict[str, Any]:
    """One record for those of one kind of dot: shapes, counts by kind of data, their sums."""
    by_data: dict[str, list[int]] = {}
    for record in records:
        counts = by_data.setdefault(record["data"], [0] * len(COUNTS))
        by_data[record["data"]] = [x + record[y] for x, y in zip(counts, COUNTS, strict=True)]
    sums = (sum(v[i] for v in by_data.values()) for i in range(len(COUNTS)))
    return {
        "probe": "dot", **{key: records[0][key] for key in DOT},
        "instructions": sorted({name for r in records for name in r["instructions"]}),
        "shapes": sorted({tuple(r["shape"]) for r in records}),
        **dict(zip(COUNTS, sums, strict=True)),
        "worst ulp": max(r["worst ulp"] for r in records), f"by data: {', '.join(COUNTS)}": by_data,
    }  # fmt: skip


def shorter(found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The records of a file, the dots of one kind added up, of orders of a sum the first four."""
    dots: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for record in found["records"]:
        if record["probe"] == "dot":
            kind = (*(record[key] for key in DOT), "wgmma" in str(record["instructions"]))
            dots.setdefault(kind, []).append(record)
    yield from map(added, dots.values())
    for record in found["records"]:
        if record["probe"] != "dot":
            yield record | ({"orders": record["orders"][:4]} if "orders" in record else {})


def shorten(path: str, target: str, note: str = "") -> None:
    """Write the shorter records of `path`, one a line."""
    found = json.loads(Path(path).read_text())
    head = {key: value for key, value in found.items() if key not in ("records", "time")}
    head |= {"note": note} if note else {}
    lines = ",\n  ".join(json.dumps(r, ensure_ascii=False) for r in shorter(found))
    text = json.dumps(head, indent=1, ensure_ascii=False).removesuffix("\n}")
    write_atomically(Path(target), f'{text},\n "records": [\n  {lines}\n ]\n}}\n')


if __name__ == "__main__":
    shorten(*sys.argv[2:]) if sys.argv[1] == "--short" else main(*sys.argv[1:])
