"""The record of a device as tables and pictures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tightrope.audit_pictures import Picture
from tightrope.audit_tables import Result, Table, number


def tables(found: Result) -> list[Table]:
    """Functions, casts and divisions, dots, and what failed or was left out."""
    every = [r for records in found["records"].values() for r in records]
    made = [
        Table(
            f"Functions of float32 on {found['device']['name']}, record {found.get('id', '-')}",
            ("function", "arguments", "worst error, ulps", "at", "not the nearest", "instruction",
             "largest result that became 0"),
            list(_functions(every)),
            "Worst errors: exactly, in units of the last place with the last rounding, over "
            "results that are normal numbers; no argument tried exceeds them by more than the "
            "next digit.",
        ),
        Table(
            "Division and casts",
            ("operation", "what was tried", "pairs or arguments", "worst error, ulps",
             "not the nearest", "instruction"),
            list(_others(every)),
        ),
        Table(
            "Dots of 16-bit operands against the model of the tensor core",
            ("operands", "instruction", "outputs", "unlike the model", "of these, sign of a zero"),
            list(_dots(every)),
        ),
    ]  # fmt: skip
    lost: list[tuple[str, ...]] = [
        (name, r["error"]) for name, rs in found["records"].items() for r in rs if "error" in r
    ]
    lost += [(name, "not run") for name in found.get("not_run", ())]
    if lost:
        made.append(Table("Not recorded", ("probe", "why"), lost))
    return [table for table in made if table.rows]


def _tried(record: dict[str, Any]) -> str:
    count = record.get("arguments", record.get("compared", 0))
    return "all 2^32" if record["exhaustive"] else f"{count:,} sampled"


def _instructions(record: dict[str, Any]) -> str:
    known = [i for i in record["instructions"] if not i.startswith(("mul", "add", "fma"))]
    return " ".join(known[:3]) or "fma, mul, add"


def _functions(records: list[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    for r in records:
        if r.get("probe") != "function":
            continue
        name = r["function"] if r["reference_proved"] else f"{r['function']} (reference: library)"
        flushed = float.fromhex(r["largest_that_became_0"])
        yield (
            name, _tried(r), number(r["worst_ulps"], 5), str(r.get("worst_at", "-")),
            number(r["not_nearest"]), _instructions(r), number(flushed) if flushed else "none",
        )  # fmt: skip


def _others(records: list[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    for r in records:
        if r.get("probe") == "division":
            yield (
                r["function"], f"searched: {r['search']}", number(r["pairs"]),
                number(r["worst_ulps"], 5), number(r["not_nearest"]), _instructions(r),
            )  # fmt: skip
        elif r.get("probe") == "cast":
            yield (
                f"float32 to {r['dtype']}", _tried(r), number(r["compared"]), "-",
                number(r["mismatches"]), _instructions(r),
            )  # fmt: skip


def _dots(records: list[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    kinds: dict[tuple[str, str], list[int]] = {}
    for r in records:
        if r.get("probe") == "dot":
            core = [i for i in r["instructions"] if "mma" in i] or r["instructions"]
            sums = kinds.setdefault((r["dtype"].removeprefix("torch."), core[0]), [0, 0, 0])
            for i, key in enumerate(("compared", "mismatches", "only the sign of zero")):
                sums[i] += r[key]
    for (dtype, core), sums in kinds.items():
        yield dtype, core, *map(number, sums)


LEAD = (
    "Elementary functions over all float32 numbers (a sample where nothing is compiled), division "
    "searched, casts and dots against their models; references in float64 with a derived error, "
    "ball arithmetic where it leaves a choice."
)
BINADES = 256


def pictures(found: Result) -> list[tuple[Picture, str]]:
    """Worst error against the size of the argument, one picture a sign."""
    made = []
    for sign, first in (("positive", 0), ("negative", BINADES)):
        series: dict[str, list[tuple[float, float]]] = {}
        for records in found["records"].values():
            for r in (r for r in records if r.get("probe") == "function"):
                errors = r["worst_ulps_by_binade"][first : first + BINADES]
                points = [(e - 127.0, v) for e, v in enumerate(errors) if v is not None and e > 0]
                if points:
                    series[r["function"]] = points
        if series:
            made.append((
                Picture(
                    f"Worst error of each binade of {sign} arguments",
                    "exponent of the argument (power of two)", "worst error (ulps)", series,
                    {"half an ulp": 0.5}, (0, 10),
                    alt="one line a function; correctly rounded ones lie at half an ulp",
                ),
                "Results that are normal numbers; half an ulp is a correctly rounded function.",
            ))  # fmt: skip
    return made
