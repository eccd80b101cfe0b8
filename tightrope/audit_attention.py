"""`tightrope audit attention`: what each stage's format costs, over length, width, size, outliers.

Errors are those of models that round once a stage (`audit_stages`), against the float64 oracle of
`attention`, whose own error is derived and stands beside them. Every figure is of the data named:
normal vectors, one seed, 32 rows; searched, not worst cases (those are the budgets).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np

from tightrope.audit import Progress
from tightrope.audit_papers import FLASH
from tightrope.audit_stages import STAGES, Data, Stages, error, ranges, truth
from tightrope.environment import environment

DTYPES = ("bfloat16", "float16")
ONLY = "only "  # begins the name of a stage alone
SWEEPS: dict[str, tuple[Any, ...]] = {
    "seqlen_k": (64, 256, 1024, 4096, 16384),
    "head_dim": (32, 64, 128, 256),
    "size": (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0),
    "outlier": (1.0, 2.0, 4.0, 8.0, 16.0, 32.0),
}
SIZES = tuple(2.0**k for k in range(-2, 17))


def arithmetics(low: str) -> tuple[Stages, ...]:
    """Sets of formats that kernels declare, for 16-bit inputs."""
    single = Stages.throughout("float32")
    return (
        single.but(name="float32 throughout"),
        single.but(name=f"tiled, {low} P and output", p=low, output=low),
        single.but(name=f"materialised, {low} P and output", p=low, output=low, tile=None),
        single.but(name=f"tiled, {low} scores, P and output", scores=low, p=low, output=low),
        single.but(name=f"tiled, {low} accumulator too", p=low, accumulator=low, output=low),
        Stages.throughout(low, name=f"tiled, {low} throughout"),
        Stages.throughout(low, name=f"materialised, {low} throughout", tile=None),
    )


def audit(options: Any, progress: Progress) -> dict[str, Any]:
    """Everything, as JSON. Raises ValueError for a dtype that is not of 16 bits."""
    dtypes = tuple(options.dtype) or DTYPES
    for name in dtypes:
        if name not in DTYPES:
            raise ValueError(f"--dtype: expected {' or '.join(DTYPES)}, got {name!r}")
    found: dict[str, Any] = {
        "audit": "attention", "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": environment(), "sweeps": [], "stages": [], "bought": [], "ranges": [],
        "begins": [], "paper": {**FLASH, "rows": []},
    }  # fmt: skip
    steps = [(name, step) for dtype in dtypes for name, step in _steps(dtype, found)]
    for done, (name, step) in enumerate(steps):
        progress(name, done / len(steps))
        step()
    progress("done", 1.0)
    return found


def _steps(dtype: str, found: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for axis, values in SWEEPS.items():
        yield (
            f"{dtype}: error against {axis}",
            lambda a=axis, v=values: found["sweeps"].extend(sweep(dtype, a, v)),
        )
    yield f"{dtype}: each stage alone", lambda: found["stages"].extend(alone(dtype))
    yield f"{dtype}: one stage in float32", lambda: found["bought"].extend(bought(dtype))
    yield (
        f"{dtype}: ranges",
        lambda: found["ranges"].extend(
            {"dtype": dtype, "size": d.size, "stages": ranges(d)}
            for d in (Data(dtype=dtype, size=s) for s in SIZES)
            if np.isfinite(d.arrays()[0]).all()
        ),
    )
    yield (
        f"{dtype}: where losses begin",
        lambda: found["begins"].extend(begins([r for r in found["ranges"] if r["dtype"] == dtype])),
    )
    yield (
        f"{dtype}: tiled against materialised",
        lambda: found["paper"]["rows"].extend(tiled_against_materialised(dtype)),
    )


def one_by_one(low: str) -> tuple[Stages, ...]:
    """One stage in a low format, all others exact."""
    return tuple(Stages(name=f"{ONLY}{stage}").but(**{stage: low}) for stage in STAGES)


def sweep(dtype: str, axis: str, values: tuple[Any, ...]) -> Iterator[dict[str, Any]]:
    """Errors of every arithmetic, and of every stage alone, along one axis, others at defaults."""
    for value in values:
        data = Data(dtype=dtype, **{axis: value})
        right, slack = truth(data)
        for stages in (*arithmetics(dtype), *one_by_one(dtype)):
            yield {
                "dtype": dtype, "axis": axis, "value": value, "arithmetic": stages.name,
                **error(data, stages, right), "oracle_error": slack,
            }  # fmt: skip


def alone(dtype: str) -> Iterator[dict[str, Any]]:
    """Error where one stage alone is rounded, to each of three formats."""
    data = Data(dtype=dtype)
    right, slack = truth(data)
    for stage in STAGES:
        for fmt in ("float32", *DTYPES):
            found = error(data, Stages().but(**{stage: fmt}), right)
            yield {"dtype": dtype, "stage": stage, "format": fmt, **found, "oracle_error": slack}


def bought(dtype: str) -> Iterator[dict[str, Any]]:
    """What one stage in float32 takes off the error of an arithmetic that is low throughout."""
    data = Data(dtype=dtype)
    right, _ = truth(data)
    for tile in (64, None):
        low = Stages.throughout(dtype, tile=tile)
        whole = error(data, low, right)
        for stage in STAGES:
            better = error(data, low.but(**{stage: "float32"}), right)
            yield {
                "dtype": dtype, "tiled": tile is not None, "stage": stage,
                "rms": better["rms"], "of": whole["rms"], "largest": better["largest"],
                "of_largest": whole["largest"],
            }  # fmt: skip


LOSSES = ("overflow_float16", "zero_in_float16", "subnormal_in_float16", "zero_in_float32")


def begins(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The smallest of the tried sizes of q at which a stage loses something, by kind of loss."""
    for stage in rows[0]["stages"]:
        first = {
            loss: next((r["size"] for r in rows if r["stages"][stage][loss] > 0), None)
            for loss in LOSSES
        }
        yield {"dtype": rows[0]["dtype"], "stage": stage, **first}


def tiled_against_materialised(dtype: str) -> Iterator[dict[str, Any]]:
    """Errors of both, low throughout and as kernels are built, and their ratio, by length."""
    kinds = {
        f"{dtype} throughout": Stages.throughout(dtype),
        f"{dtype} P and output": Stages.throughout("float32").but(p=dtype, output=dtype),
        f"{dtype} P, float32 output": Stages.throughout("float32").but(p=dtype),
    }
    for seqlen_k in SWEEPS["seqlen_k"]:
        data = Data(dtype=dtype, seqlen_k=seqlen_k)
        right, _ = truth(data)
        for name, stages in kinds.items():
            tiled, whole = (error(data, stages.but(tile=t), right) for t in (64, None))
            yield {
                "dtype": dtype, "arithmetic": name, "seqlen_k": seqlen_k,
                "tiled": tiled["largest"], "materialised": whole["largest"],
                "ratio": tiled["largest"] / whole["largest"],
                "ratio_rms": tiled["rms"] / whole["rms"],
            }  # fmt: skip
