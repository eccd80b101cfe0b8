"""Compile-time combinations that `rope` cases draw from, so that a run compiles few kernels.

Every pair of values of two fields that may occur together does (tests/test_rope_cases.py), in far
fewer rows than the product has. How the list was made, once: fix the triples (head_dim, rotary_dim,
dtype), each head_dim with each dtype, each partial rotation at least with one 16-bit dtype, 57 in
all; draw the other fields at random; then anneal, changing one row or a head_dim's rows at a time,
on 1000 * (pairs missing) + 400 * (combinations missing of 16-bit dtype, interleaved, out_dtype and
inplace under partial rotation) + 20 * (triples missing among dtype, or partial rotation, and two
other fields) + the imbalance of each dtype's values.
"""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

from tightrope.limits import Limits

Build = tuple[Any, ...]

FIELDS = (
    *("dtype", "table_dtype", "position_dtype", "interleaved"),
    *("head_dim", "rotary_dim", "out_dtype", "inplace"),
)

BUILDS: tuple[Build, ...] = (
    ("float32", "float32", "int64", False, 16, 16, "input", False),
    ("float16", "float16", "int32", True, 16, 16, "float32", False),
    ("bfloat16", "bfloat16", "int32", True, 16, 16, "input", False),
    ("float64", "float64", "int32", True, 16, 16, "input", False),
    ("float64", "float32", "int32", False, 16, 16, "input", True),
    ("float32", "bfloat16", "int32", False, 8, 2, "float32", False),
    ("float16", "float32", "int64", True, 8, 2, "float32", False),
    ("bfloat16", "float16", "int32", True, 8, 2, "input", False),
    ("float64", "float64", "int32", True, 8, 2, "input", True),
    ("float32", "float32", "int32", False, 6, 6, "input", True),
    ("float16", "bfloat16", "int32", True, 6, 6, "input", True),
    ("bfloat16", "float16", "int64", False, 6, 6, "float32", False),
    ("float64", "float64", "int64", True, 6, 6, "input", True),
    ("float32", "float16", "int32", False, 32, 32, "input", False),
    ("float16", "float32", "int64", True, 32, 32, "float32", False),
    ("bfloat16", "bfloat16", "int64", False, 32, 32, "input", True),
    ("float64", "float64", "int64", False, 32, 32, "input", False),
    ("float32", "bfloat16", "int64", True, 40, 40, "input", True),
    ("float16", "float16", "int64", False, 40, 40, "float32", False),
    ("bfloat16", "float32", "int32", True, 40, 40, "input", True),
    ("float64", "float64", "int64", False, 40, 40, "input", True),
    ("float32", "float16", "int64", True, 64, 64, "float32", False),
    ("float16", "bfloat16", "int64", False, 64, 64, "input", False),
    ("bfloat16", "float32", "int32", True, 64, 64, "input", False),
    ("float64", "float64", "int64", True, 64, 64, "input", True),
    ("float16", "float32", "int64", True, 64, 32, "input", False),
    ("bfloat16", "float32", "int32", False, 64, 32, "input", False),
    ("float32", "float16", "int64", True, 72, 64, "input", True),
    ("float16", "bfloat16", "int32", False, 72, 64, "float32", False),
    ("bfloat16", "float32", "int64", True, 72, 64, "input", True),
    ("float64", "float64", "int64", False, 72, 64, "input", False),
    ("float32", "float16", "int32", True, 80, 80, "input", True),
    ("float16", "float32", "int64", True, 80, 80, "input", False),
    ("bfloat16", "bfloat16", "int64", False, 80, 80, "float32", False),
    ("float64", "float64", "int32", True, 80, 80, "input", True),
    ("float16", "float16", "int64", False, 80, 32, "input", True),
    ("bfloat16", "bfloat16", "int64", False, 80, 32, "input", True),
    ("float32", "float32", "int64", True, 96, 96, "input", True),
    ("float16", "bfloat16", "int32", True, 96, 96, "float32", False),
    ("bfloat16", "float16", "int32", True, 96, 96, "float32", False),
    ("float64", "float64", "int32", False, 96, 96, "input", False),
    ("float32", "bfloat16", "int32", False, 128, 128, "input", False),
    ("float16", "float16", "int32", True, 128, 128, "input", True),
    ("bfloat16", "float32", "int64", False, 128, 128, "float32", False),
    ("float64", "float64", "int64", False, 128, 128, "input", False),
    ("bfloat16", "bfloat16", "int64", True, 128, 64, "float32", False),
    ("float16", "float32", "int32", True, 128, 96, "input", True),
    ("float32", "float32", "int64", True, 192, 192, "float32", False),
    ("float16", "bfloat16", "int32", False, 192, 192, "input", True),
    ("bfloat16", "float16", "int32", True, 192, 192, "input", False),
    ("float64", "float64", "int64", False, 192, 192, "input", False),
    ("float16", "float16", "int64", False, 192, 64, "input", False),
    ("float32", "bfloat16", "int32", False, 256, 256, "float32", False),
    ("float16", "float32", "int32", False, 256, 256, "input", True),
    ("bfloat16", "float16", "int64", False, 256, 256, "input", True),
    ("float64", "float64", "int32", True, 256, 256, "input", True),
    ("bfloat16", "float32", "int32", False, 256, 64, "float32", False),
    # what most models run, whatever the pairs ask for
    ("float16", "float32", "int64", False, 128, 128, "input", False),
    ("bfloat16", "float32", "int64", False, 128, 128, "input", True),
    ("bfloat16", "bfloat16", "int64", False, 128, 128, "input", False),
    ("float16", "float32", "int64", True, 64, 64, "input", True),
    ("bfloat16", "float32", "int64", False, 64, 64, "input", False),
)

ENOUGH = 6  # narrow limits keep few rows: they get more, rebuilt from the others
MANY = 16  # a limit of more values than this is a range: it is sampled, not enumerated


def legal(build: Build) -> bool:
    """Whether the contract allows a combination at all."""
    f = dict(zip(FIELDS, build, strict=True))
    wide = f["dtype"] == "float64"
    tables = ("float64", "float32") if wide else ("float32", "float16", "bfloat16")
    return (
        f["rotary_dim"] <= f["head_dim"]
        and f["table_dtype"] in tables
        and not (f["out_dtype"] == "float32" and (f["inplace"] or wide))
    )


def related(build: Build, where: frozenset[str]) -> bool:
    """Whether a combination satisfies the named relations that concern it."""
    f = dict(zip(FIELDS, build, strict=True))
    return not (
        ("full_rotary" in where and f["rotary_dim"] != f["head_dim"])
        or ("same_dtype_table" in where and f["table_dtype"] != f["dtype"])
        or ("aligned16" in where and (f["head_dim"] % 8 or f["rotary_dim"] % 16))
    )


def builds(limits: Limits) -> tuple[Build, ...]:
    """The rows within limits. Where they are few, or a value given has none, rows are rebuilt.

    Raises ValueError if the limits contradict one another.
    """
    kept = [b for b in BUILDS if _allowed(b, limits)]
    if len(kept) < ENOUGH:
        kept += _supplement(kept, _rebuilt(limits))
    for at, name in enumerate(FIELDS):
        values = limits.given.get(name, ())
        for value in values if len(values) <= MANY else ():
            narrowed = limits.narrowed({name: (value,)})
            if narrowed is not None and value not in {b[at] for b in kept}:
                kept += _supplement(kept, _rebuilt(narrowed))
    if not kept:
        raise ValueError(f"no combination of {', '.join(FIELDS)} is within the limits of rope")
    return tuple(sorted(dict.fromkeys(kept), key=_size))


def shapes(limits: Limits, rows: tuple[Build, ...]) -> tuple[tuple[int, int], ...]:
    """(head_dim, rotary_dim) of any row, where both are within limits, and those of `rows`."""
    head, rotary = FIELDS.index("head_dim"), FIELDS.index("rotary_dim")
    known = {(b[head], b[rotary]) for b in BUILDS}
    within = {
        s
        for s in known
        if limits.allows(FIELDS[head], s[0]) and limits.allows(FIELDS[rotary], s[1])
    }
    return tuple(sorted(within | {(b[head], b[rotary]) for b in rows}))


def free(shape: tuple[int, int], limits: Limits) -> tuple[Build, ...]:
    """Every legal combination of the other fields with a shape; may be empty."""
    choices = {n: limits.values(n) for n in FIELDS if n not in ("head_dim", "rotary_dim")}
    choices |= {"head_dim": (shape[0],), "rotary_dim": (shape[1],)}
    every = product(*(choices[n] for n in FIELDS))
    return tuple(b for b in every if legal(b) and related(b, limits.where))


def _size(build: Build) -> tuple[int, int]:
    """Order for shrinking: small heads first."""
    return build[FIELDS.index("head_dim")], build[FIELDS.index("rotary_dim")]


def _pairs(build: Build) -> set[Any]:
    """Pairs of values; whether the rotation is partial counts as one more field."""
    f = dict(zip(FIELDS, build, strict=True))
    return set(combinations([*f.items(), ("partial", f["rotary_dim"] < f["head_dim"])], 2))


def _supplement(kept: list[Build], others: list[Build]) -> list[Build]:
    """Rows that make kept ENOUGH, or one, those first that add the most pairs."""
    covered = set().union(*map(_pairs, kept))
    added: list[Build] = []
    while others and len(added) < max(1, ENOUGH - len(kept)):
        best = max(others, key=lambda b: len(_pairs(b) - covered))
        if not _pairs(best) - covered:
            break
        covered |= _pairs(best)
        added.append(best)
    return added


def _allowed(build: Build, limits: Limits) -> bool:
    fields = zip(FIELDS, build, strict=True)
    return all(limits.allows(n, v) for n, v in fields) and related(build, limits.where)


def _rebuilt(limits: Limits) -> list[Build]:
    """Every row with forbidden values replaced by the nearest allowed ones that go together."""
    found: list[Build] = []
    for build in BUILDS:
        options = product(*_options(build, limits))
        row = next((b for b in options if legal(b) and related(b, limits.where)), None)
        found += [] if row is None else [row]
    return list(dict.fromkeys(found))


def _options(build: Build, limits: Limits) -> list[list[Any]]:
    """For each field the row's own value if it is allowed, then others, the nearest first."""
    wanted = dict(zip(FIELDS, build, strict=True))
    options = {n: sorted(limits.values(n), key=wanted[n].__ne__) for n in FIELDS}
    aligned = "aligned16" in limits.where
    heads = [n for n in limits.values("head_dim") if not (aligned and n % 8)]
    widths = [n for n in limits.values("rotary_dim") if not (aligned and n % 16)]
    options["head_dim"] = _nearest(heads, wanted["head_dim"], 2)
    options["rotary_dim"] = _nearest(widths, wanted["rotary_dim"], 2)
    for n in options["head_dim"][:1]:
        options["rotary_dim"] += _nearest(widths, n, 1)
    for n in options["rotary_dim"][:2]:
        options["head_dim"] += _nearest(heads, n, 1)
    return [options[n] for n in FIELDS]


def _nearest(values: list[int], wanted: int, count: int) -> list[int]:
    return sorted(values, key=lambda n: (abs(n - wanted), -n))[:count]
