"""The audit of rope as tables and pictures."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from tightrope.audit_pictures import Picture
from tightrope.audit_tables import Result, Table

LEAD = (
    "The largest position at which a table of cos and sin, and the pairs it rotates, stay within "
    "2^-8, 2^-11 and 2^-20 of the truth, for each way to build it."
)
POWERS = ("-8", "-11", "-20")
CERTIFIED = (
    "Certified: nothing up to the position is off by as much, and the next one is, by ball "
    "arithmetic. A range: no violation up to its first end (proved), one found at its second "
    "(searched: at 2^k - 1, a builder under test in even ratios). '>': none up to where positions "
    "were scanned. Sines are those of the rounded angle, correctly rounded; 'pair' is the error of "
    "a rotated pair over its length."
)
# "float32 throughout" lies on Hugging Face's line for this base, and is left out
DRAWN = (
    "float32 inv_freq, float64 product", "Hugging Face (float32, torch pow)",
    "Hugging Face, bfloat16 table", "TF32 throughout", "float16 positions", "bfloat16 positions",
    "bfloat16 inv_freq",
)  # fmt: skip


def limit(entry: dict[str, Any]) -> str:
    """A limit as text: a number, ">N", or a range."""
    known = _position(entry["limit"])
    if entry["exact"]:
        return known if "at" in entry else f">{known}"
    if "at" in entry:
        return f"{known} to {_position(entry['at'][0])}"
    if "searched_to" in entry:
        return f">{known} (none found to {_position(entry['searched_to'])})"
    return f">{known} (none found beyond)"


def _position(m: int) -> str:
    return f"{m:,}" if m < 1 << 30 else f"2^{math.log2(m):.1f}"


def _limits(title: str, rows: list[dict[str, Any]], with_scaling: bool = False) -> Table:
    head = ("rope_scaling",) if with_scaling else ()
    columns = ("how the table is built", *head, "base", "rotary_dim")
    columns += tuple(f"{m} 2^{p}" for m in ("table", "pair") for p in POWERS)
    made = []
    for r in rows:
        scaling = (r["rope_scaling"] or "-",) if with_scaling else ()
        numbers = [limit(r[m][p]) for m in ("table", "pair") for p in POWERS]
        made.append((r["way"], *scaling, f"{r['base']:g}", str(r["rotary_dim"]), *numbers))
    return Table(title, columns, made, CERTIFIED)


def tables(found: Result) -> list[Table]:
    every = [_limits("Largest position within a tolerance", found["limits"])]
    if found["builders"]:
        every.append(_limits("Builders under test", found["builders"], with_scaling=True))
    every.append(_limits("With rope_scaling", found["scalings"], with_scaling=True))
    every.append(Table(
        "Positions that share their row",
        ("how the table is built", "first pair found"),
        [(c["way"], _pair(c["pair"])) for c in found["collisions"]],
        f"All pairs below {found['collisions'][0]['all_pairs_below']:,} were compared, beyond them "
        "2^k and 2^k + 1 for k up to 30 (searched); base 10000, rotary_dim 128."
        if found["collisions"] else "",
    ))  # fmt: skip
    every.append(_shift(found["shift"]))
    every.append(_paper(found["paper"]))
    return [table for table in every if table.rows]


def _pair(pair: list[int] | None) -> str:
    return "none found" if pair is None else f"{pair[0]:,} and {pair[1]:,}"


def _shift(rows: list[dict[str, Any]]) -> Table:
    shifts = rows[0]["shifts"] if rows else []
    return Table(
        "Relative-shift violation, median of |change of score| over |q| |k|",
        ("table; q and k", *(f"t = {t:,}" for t in shifts)),
        [(r["name"], *(f"{v:.1e}" for v in r["median"])) for r in rows],
        "400 pairs of normal vectors, head_dim 128, base 10000 (searched). bfloat16 inputs and "
        "tables leave a floor that does not grow; angles formed in float32 grow with the shift. A "
        "wrong but consistent frequency is not seen: compare limits above.",
    )


def _paper(paper: dict[str, Any]) -> Table:
    return Table(
        f"A paper's claim beside ours: {paper['source']}",
        ("rotation", "length", "total change", "of the first key", "of a middle key"),
        [
            (r["way"], str(r["length"]), *(f"{r[k]:.1e}" for k in SHARES)) for r in paper["rows"]
        ],
        f"Claim: {paper['claim']}. Measured: {paper['quantity']} (searched). {paper['differs']}",
    )  # fmt: skip


SHARES = ("total", "first_key", "middle_key")


def _by_way(rows: list[dict[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    names = dict.fromkeys(r["way"] for r in rows)
    return {n: [(r["length"], r["total"]) for r in rows if r["way"] == n] for n in names}


def pictures(found: Result) -> list[tuple[Picture, str]]:
    return list(_pictures(found))


def _pictures(found: Result) -> Iterator[tuple[Picture, str]]:
    own = {r["way"] for r in found["builders"]}
    shown = {n: c for n, c in found["curves"].items() if n in DRAWN or n in own}
    yield (
        Picture(
            "Error of cos and sin against position (base 10000, rotary_dim 128)",
            "position (tokens)", "largest error of cos or sin (absolute)", shown,
            {f"2^{p}": 2.0 ** int(p) for p in POWERS},
            alt="lines rising with the position; bfloat16 and TF32 cross all thresholds at once, "
            "float32 crosses 2^-8 between 2^15 and 2^17",
        ),
        "At each mark the largest error of eight neighbours; dotted lines are the tolerances.",
    )  # fmt: skip
    yield (
        Picture(
            "Relative-shift violation against the shift",
            "shift t of both positions (tokens)", "median |change of score| / (|q| |k|)",
            {r["name"]: list(zip(r["shifts"], r["median"], strict=True)) for r in found["shift"]},
            alt="flat lines for exact angles, rising ones for angles formed in float32",
        ),
        "Flat: the violation comes from rounding q, k and table alone. Rising: from the angle.",
    )  # fmt: skip
    yield (
        Picture(
            "Change of attention when all positions move by 16",
            "context length (tokens)", "sum over queries and keys of |change of weight|",
            _by_way(found["paper"]["rows"]),
            alt="totals grow in proportion to the length for every way, higher in bfloat16",
        ),
        f"Beside {found['paper']['source']}: {found['paper']['differs']}",
    )  # fmt: skip
