"""The audit of attention as tables and pictures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tightrope.audit_attention import ONLY
from tightrope.audit_pictures import Picture
from tightrope.audit_tables import Result, Table, number

LEAD = (
    "Error of attention where each stage is rounded to a format of its own, against the float64 "
    "oracle: by length, width, size of the logits and outliers; what one better stage buys."
)
SEARCHED = (
    "Searched: normal vectors of one seed, 32 rows, 1,024 keys, head_dim 64 unless said; typical "
    "errors, no worst cases (those are the budgets). largest: over the largest |v|; rms: over the "
    "rms of v. The oracle's own error is below {slack:.0e}."
)
AXES = {
    "seqlen_k": ("number of keys", 2), "head_dim": ("head_dim (features)", 2),
    "size": ("factor on q (logits have this standard deviation)", 2),
    "outlier": ("factor on channel 0 of q and k", 2),
}  # fmt: skip
LOSSES = {
    "overflow_float16": "overflows float16", "zero_in_float16": "becomes 0 in float16",
    "subnormal_in_float16": "subnormal in float16", "zero_in_float32": "becomes 0 in float32",
}  # fmt: skip


def tables(found: Result) -> list[Table]:
    slack = max((r["oracle_error"] for r in found["sweeps"]), default=0.0)
    note = SEARCHED.format(slack=slack)
    made = [_sweep(found["sweeps"], axis, note) for axis in AXES]
    made += [
        Table(
            "One stage rounded, all others exact",
            ("inputs", "stage", "format", "largest", "rms"),
            [(r["dtype"], r["stage"], r["format"], _e(r["largest"]), _e(r["rms"]))
             for r in found["stages"]],
            note,
        ),
        Table(
            "What one stage in float32 buys, all others low",
            ("format of the others", "kind", "stage in float32", "rms error", "was", "left"),
            [(r["dtype"], "tiled" if r["tiled"] else "materialised", r["stage"], _e(r["rms"]),
              _e(r["of"]), f"{r['rms'] / r['of']:.0%}") for r in found["bought"]],
            "100 %: nothing, since the same value is rounded again right after.",
        ),
        Table(
            "Where a stage begins to lose numbers: the smallest factor on q tried",
            ("inputs", "stage", *LOSSES.values()),
            [(r["dtype"], r["stage"], *(number(r[loss]) for loss in LOSSES))
             for r in found["begins"]],
            "Factors are powers of two from 1/4 on, as far as q itself stays finite; '-': not "
            "reached. P is at most 1, and what becomes 0 in it weighs less than 2^-25 of the "
            "largest weight.",
        ),
        _paper(found["paper"]),
    ]  # fmt: skip
    return [table for table in made if table.rows]


def _e(x: float) -> str:
    return f"{x:.1e}"


def _sweep(rows: list[dict[str, Any]], axis: str, note: str) -> Table:
    mine = [r for r in rows if r["axis"] == axis]
    values = list(dict.fromkeys(r["value"] for r in mine))
    made: dict[tuple[str, str], list[str]] = {}
    for r in mine:
        made.setdefault((r["dtype"], r["arithmetic"]), []).append(_e(r["largest"]))
    return Table(
        f"Largest error against {axis}",
        ("inputs", "arithmetic", *(f"{v:g}" for v in values)),
        [(*key, *texts) for key, texts in made.items()],
        note,
    )


def _paper(paper: dict[str, Any]) -> Table:
    return Table(
        f"A paper's claim beside ours: {paper['source']}",
        ("arithmetic", "keys", "tiled", "materialised", "ratio", "ratio of rms"),
        [(r["arithmetic"], str(r["seqlen_k"]), _e(r["tiled"]), _e(r["materialised"]),
          f"{r['ratio']:.2f}", f"{r['ratio_rms']:.2f}") for r in paper["rows"]],
        f"Claim: {paper['claim']}. Measured: {paper['quantity']} (searched). {paper['differs']}",
    )  # fmt: skip


def _against(found: Result, dtype: str, axis: str, *, alone: bool) -> tuple[Picture, str]:
    """Largest errors along an axis: of arithmetics, or of stages alone."""
    series: dict[str, list[tuple[float, float]]] = {}
    for r in found["sweeps"]:
        single = r["arithmetic"].startswith(ONLY)
        if (r["dtype"], r["axis"]) == (dtype, axis) and single == alone:
            series.setdefault(r["arithmetic"], []).append((r["value"], r["largest"]))
    what = f"one stage in {dtype} alone" if alone else f"{dtype} inputs"
    label, base = AXES[axis]
    return Picture(
        f"{what}: largest error against {axis}", label, "largest |out - exact| / largest |v|",
        series, {}, (base, 10),
        alt=f"one line a stage of {', '.join(series)}" if alone else
        f"one line an arithmetic; float32 lies far below all with {dtype} in them",
    ), "Typical errors of normal data; a stage in 16 bits sets the error of the whole."  # fmt: skip


def pictures(found: Result) -> list[tuple[Picture, str]]:
    return list(_pictures(found))


def _pictures(found: Result) -> Iterator[tuple[Picture, str]]:
    dtypes = list(dict.fromkeys(r["dtype"] for r in found["sweeps"]))
    for dtype in dtypes:
        for axis in AXES:
            yield _against(found, dtype, axis, alone=False)
    for axis in AXES if dtypes else ():
        yield _against(found, dtypes[0], axis, alone=True)
    series: dict[str, list[tuple[float, float]]] = {}
    for r in found["paper"]["rows"]:
        series.setdefault(f"{r['arithmetic']}", []).append((r["seqlen_k"], r["ratio"]))
    yield (
        Picture(
            "Tiled over materialised: ratio of largest errors", "number of keys",
            "error of tiled / error of materialised", series,
            {"equal": 1.0, "about ten, as the paper has it": 10.0},
            alt="with 16 bits throughout the ratio grows with the number of keys past ten; with a "
            "float32 accumulator it stays below one",
        ),
        found["paper"]["differs"],
    )  # fmt: skip
