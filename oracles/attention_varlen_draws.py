"""Drawing the fields of packed and paged cases: how many sequences, how long, under which mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tightrope.limits import Limits, meet, picked, smallest
from tightrope.oracles.attention_builds import Build
from tightrope.oracles.attention_draw_lengths import FAR, LENGTHS, QUERIES, WORK, both
from tightrope.oracles.attention_draws import SOFT, Draw
from tightrope.oracles.attention_varlen_builds import FIELDS

COUNTS = (2, 1, 3, 4, 2, 3, 5, 6)
PROGRAMS = {"small": 12, "large": 64}  # (sequence, head, 16 rows) of a launch
MEMBERS = ("both",) * 7 + ("no queries", "neither")
EMPTY_MEMBERS = ("both",) * 5 + ("no keys", "no keys", "no queries", "neither")


def common(
    d: Draw, rows: Sequence[Build], every: Sequence[Build], names: Sequence[str] = FIELDS
) -> dict[str, Any]:
    """size, builds, what a build fixes (its fields are `names`), scale, softcap and sink."""
    size = d.one("size", ("small", "large"))
    pool = d.one("builds", ("committed", "free"))
    chosen = rows if pool == "committed" or not every else every
    build = chosen[d.number(0, len(chosen) - 1)]  # there may be thousands
    fields = dict(zip(names, build, strict=True))
    fields["softcap"] = d.one("softcap", SOFT) if fields["softcap"] else None
    fields["sink"] = d.one("sink", (False, False, True))
    fields["softmax_scale"] = d.one("softmax_scale", (None, None, None, 0.0625, 0.3, 1.0))
    return {**fields, "size": size, "builds": pool}


def masks(d: Draw) -> dict[str, Any]:
    """Causal, windows, offsets, and whether a row may be empty."""
    return {
        "empty_rows": d.one("empty_rows", (False, False, True)),
        "causal": d.one("causal", (False, True, True)),
        "window_left": d.one("window_left", (None,) * 8 + (15, 16, 17, 31, 64, 0, 1, 2, 3, 7)),
        "window_right": d.one("window_right", (None,) * 8 + (16, 7, 2, 1, 0)),
        "offsets": d.one("offsets", ("default", "default", "tensor")),
    }


def possible(limits: Limits, contract: str) -> Limits:
    """These limits without masks under which a row would be empty that may not be.

    Raises ValueError if lengths contradict one another, or the relations.
    """
    more: dict[str, Any] = {}
    if "no_empty_member" in limits.where:
        more |= {name: range(1, FAR) for name in ("seqlen_q", "seqlen_k")}
    if "square" in limits.where:
        more |= dict.fromkeys(("seqlen_q", "seqlen_k"), limits.allowed("seqlen_q"))
        more["seqlen_q"] = limits.allowed("seqlen_k")
    narrowed = limits.narrowed(more)
    fewest = narrowed and max(smallest(narrowed.allowed("seqlen_q")), 0)
    if narrowed and narrowed.bounds("seqlen_k")[1] < (fewest or 0):
        unmasked = {"causal": (False,), "window_left": (None,), "window_right": (None,)}
        keys = narrowed.bounds("seqlen_k")[1]
        narrowed = narrowed.narrowed({"empty_rows": (True,)}) or (
            narrowed.narrowed(unmasked) if keys else None
        )
    if narrowed is None:
        raise ValueError(f"no seqlen_q and seqlen_k of {contract} are within these limits")
    if "no_empty_member" in limits.where and "square" in limits.where:
        common = meet(narrowed.allowed("seqlen_q"), range(1, FAR))
        narrowed = narrowed.narrowed({"seqlen_q": common, "seqlen_k": common}) if common else None
    if narrowed is None:
        raise ValueError(f"no seqlen_q == seqlen_k > 0 of {contract} is within these limits")
    return narrowed


def members(
    d: Draw, fields: dict[str, Any], heads: Sequence[tuple[int, int]], queries: bool = True
) -> dict[str, Any]:
    """Head counts and lengths whose launch and whose budget stay small.

    queries: whether a sequence may have more than one query (else only where limits demand it).
    """
    size = fields["size"]
    num_heads, num_kv_heads = d.of(heads)
    most = max(PROGRAMS[size] // num_heads, 1)
    count = d.one("sequences", [n for n in COUNTS if n <= max(most, 2)])
    if d.limits.allows("sequences", 0) and d.of((False,) * 47 + (True,)):
        count = 0
    longest = d.one("seqlen_k", LENGTHS[size])
    volume = num_heads * max(count, 1) * max(longest, 1) * fields["head_dim_v"]
    room = min(WORK[size] // volume, 16 * most // max(count, 1)) if queries else 1
    kinds = EMPTY_MEMBERS if fields["empty_rows"] else MEMBERS
    found = [_member(d, fields, kinds if i else (), longest, room) for i in range(count)]
    first = d.number(0, max(count - 1, 0))  # where the longest stands
    found = found[first:] + found[:first]
    lengths = {"seqlens_q": tuple(n for n, _ in found), "seqlens_k": tuple(m for _, m in found)}
    return {"num_heads": num_heads, "num_kv_heads": num_kv_heads, **lengths}


def _member(
    d: Draw, fields: dict[str, Any], kinds: Sequence[str], longest: int, room: int
) -> tuple[int, int]:
    """(queries, keys) of one sequence; of these kinds, or, if there are none, the longest."""
    size = fields["size"]
    if "square" in d.limits.where:
        # one query, or two, at offset 0 see a single key, or mostly so
        n = m = both(d, size, room, 3 if "without_lse" in d.limits.where else 1)
    else:
        n = d.one("seqlen_q", QUERIES[size], room)
        m = d.one("seqlen_k", LENGTHS[size], longest) if kinds else longest
        n, m = _seen(d.limits, fields, n, m)
    kind = d.of(kinds) if kinds else "both"
    if "no_empty_member" in d.limits.where or kind == "both":
        return n, m
    none = {"no queries": (0, m), "no keys": (n, 0), "neither": (0, 0)}[kind]
    if "square" in d.limits.where or (none[1] == 0 and not fields["empty_rows"]):
        none = (0, 0)
    named = zip(("seqlen_q", "seqlen_k"), none, strict=True)
    return none if all(d.limits.allows(name, x) for name, x in named) else (n, m)


def _seen(limits: Limits, fields: dict[str, Any], n: int, m: int) -> tuple[int, int]:
    """These lengths, or allowed ones near them where no row may be empty."""
    sides = (fields["window_left"], fields["window_right"])
    masked = fields["causal"] or any(side is not None for side in sides)
    if fields["empty_rows"] or n <= m or not (masked or m == 0):
        return n, m
    fewer = picked(meet(limits.allowed("seqlen_q"), range(1, m + 1)), (m,))
    if fewer:
        return fewer[-1], m
    n = smallest(limits.allowed("seqlen_q"))
    more = picked(meet(limits.allowed("seqlen_k"), range(max(n, 1), FAR)), (n,))
    return (n, more[0]) if more else (0, m)


def layouts(d: Draw, fields: dict[str, Any]) -> dict[str, Any]:
    """Of q, k and v, independently; v may be a view of k."""
    found = {}
    for name in ("layout_q", "layout_k", "layout_v"):
        known = [x for x in d.limits.domain[name] if x != "view of k"]
        found[name] = d.one(name, ("contiguous", "contiguous", "contiguous", *known))
    if "same_kv_layout" in d.limits.where:
        return {**found, "layout_v": found["layout_k"]}
    possible = d.limits.allows("layout_v", "view of k")
    if possible and fields["head_dim_v"] <= fields["head_dim"]:
        only = d.limits.values("layout_v") == ("view of k",)
        if only or d.of((False,) * 15 + (True,)):
            found["layout_v"] = "view of k"
    return found
