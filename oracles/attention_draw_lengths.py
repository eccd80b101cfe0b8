"""Lengths of attention cases: within limits and relations, and small enough to judge."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import product
from math import isqrt
from typing import TYPE_CHECKING, Any

from tightrope.limits import Limits, meet, picked, smallest
from tightrope.oracles.attention_inputs import offset_range

if TYPE_CHECKING:
    from tightrope.oracles.attention_draws import Draw


# Around blocks of 16 (the interpreter's), and around those of 64 and 128 (a GPU's); mostly such
# that a row's maximum can change between blocks.
LENGTHS = {
    "small": (3, 5, 7, 15, 16) * 2 + (17, 31, 32, 33, 47, 49, 64, 65, 80) * 4 + (2, 1),
    "large": (130, 65, 127, 128, 129, 200, 255, 256, 257, 320, 511, 513, 640, 1023, 1100),
}
QUERIES = {
    "small": (3, 1, 2, 4, 5, 7, 15, 16, 17, 18, 33),
    "large": (5, 1, 16, 17, 64, 65, 127, 128, 129, 200, 257, 300),
}
PROGRAMS = {"small": 6, "large": 32}  # (batch, head, 16 rows) of a launch
WORK = {"small": 120_000, "large": 2_000_000}  # groups x rows x keys x head_dim_v of the budget

Whole = tuple[int, ...] | range  # a set of integers
FAR = 1 << 22  # no two lengths or offsets are further apart


def reach(limits: Limits, mask: tuple[Any, ...]) -> Whole:
    """Allowed q_offsets under which, keys permitting, no row of (empty, causal, left, right) is
    empty: of those below the first key none, however many keys there are."""
    empty, causal, _, right = mask
    low = -FAR if empty else offset_range(1, 1, causal, None, right)[0]
    return meet(limits.allowed("q_offset"), range(low, FAR))


def apart_under(limits: Limits, mask: tuple[Any, ...]) -> Whole:
    """The seqlen_k - seqlen_q for which some allowed q_offset fits relations and this mask."""
    empty, _, left, _ = mask
    offsets = reach(limits, mask)
    if not offsets:
        return ()
    if "square" in limits.where:
        return (0,)
    if {"bottom_right", "decode"} & limits.where:
        return offsets
    return range(-FAR if empty or left is None else min(offsets[0], offsets[-1]) - left, FAR)


def every_mask(limits: Limits) -> Iterator[tuple[Any, ...]]:
    """(empty_rows, causal, window_left, window_right) within limits."""
    names = ("empty_rows", "causal", "window_left", "window_right")
    return product(*(limits.values(name) for name in names))


def differences(limits: Limits, contract: str) -> Whole:
    """The widest set of seqlen_k - seqlen_q under one of the masks within limits.

    Of two masks' sets one holds the other. Raises ValueError if no length is left.
    """
    found: dict[Whole, None] = dict.fromkeys(apart_under(limits, m) for m in every_mask(limits))
    widest: Whole = max(found, key=len)
    if not pairs(limits, (), widest):
        raise ValueError(
            f"no seqlen_q, seqlen_k and q_offset of {contract} fit these limits and relations"
        )
    return widest


def queries_beside(limits: Limits, seqlen_k: int, apart: Whole) -> Whole:
    """Allowed seqlen_q beside this seqlen_k."""
    some: Whole = tuple(seqlen_k - a for a in apart)[::-1] if isinstance(apart, tuple) else range(
        seqlen_k - apart[-1], seqlen_k - apart[0] + 1, apart.step
    )  # fmt: skip
    found = meet(limits.allowed("seqlen_q"), some)
    nothing = seqlen_k == 0 and not limits.allows("empty_rows", True)
    return meet(found, (0,)) if nothing else found


def pairs(limits: Limits, wanted: Sequence[int], apart: Whole) -> tuple[int, ...]:
    """The seqlen_k of `wanted`, or near them, beside which there is a seqlen_q."""
    if not apart:
        return ()
    kept = tuple(m for m in limits.pick("seqlen_k", tuple(wanted)) if _beside(limits, m, apart))
    if kept:
        return kept
    least = limits.pick("seqlen_q", (1, *QUERIES["small"], *QUERIES["large"]))
    found: list[int] = []
    for n in sorted({*least, smallest(limits.allowed("seqlen_q"))}):
        beside: Whole = tuple(n + a for a in apart) if isinstance(apart, tuple) else range(
            n + apart[0], n + apart[-1] + 1, apart.step
        )  # fmt: skip
        near = picked(meet(limits.allowed("seqlen_k"), beside), wanted or (1,))
        found += [m for m in near if _beside(limits, m, apart)]
    return tuple(sorted(set(found)))[:4]


def _beside(limits: Limits, seqlen_k: int, apart: Whole) -> bool:
    return len(queries_beside(limits, seqlen_k, apart)) > 0


def lengths(
    d: Draw, size: str, fields: dict[str, Any], heads: Sequence[tuple[int, int]], apart: Whole
) -> dict[str, int]:
    """batch, heads and lengths whose launch and whose budget stay small."""
    few = min(max(smallest(d.limits.allowed("seqlen_q")), 1), max(QUERIES[size]))
    short = min(max(smallest(d.limits.allowed("seqlen_k")), 1), max(LENGTHS[size]))
    sequences = max(smallest(d.limits.allowed("batch")), 1)
    volume, tiles = sequences * fields["head_dim_v"], sequences * -(-few // 16)
    num_heads, num_kv_heads = d.of(room_for(heads, few * short * volume, tiles, size))
    groups, volume = sequences * num_heads, num_heads * volume
    if "square" in d.limits.where:
        seqlen_k = seqlen_q = both(d, size, room(size, groups, volume))
    else:
        seqlen_k = d.of(_roomy(d.limits, size, groups, volume, apart))
        most = min(WORK[size] // (volume * max(seqlen_k, 1)), PROGRAMS[size] // groups * 16)
        beside = queries_beside(d.limits, seqlen_k, apart)
        wanted = queries(d.limits, size, beside)
        seqlen_q = d.of(picked(beside, wanted, max(most, min(wanted))))
    work = volume // sequences * max(seqlen_q * seqlen_k, 1)
    launch = num_heads * max(-(-seqlen_q // 16), 1)
    most = max(min(WORK[size] // work, PROGRAMS[size] // launch), 1)
    batch = d.one("batch", (1, 2, 3), most)
    found = {"batch": batch, "num_heads": num_heads, "num_kv_heads": num_kv_heads}
    found |= {"seqlen_q": seqlen_q, "seqlen_k": seqlen_k}
    return found | _nothing(d, found, apart)


def _roomy(limits: Limits, size: str, groups: int, volume: int, apart: Whole) -> tuple[int, ...]:
    """The seqlen_k whose shortest seqlen_q has room; if none has, the one of least work."""
    wanted = pairs(limits, LENGTHS[size], apart)
    every = (*wanted, *pairs(limits, (1,), apart))
    fewest = {m: max(smallest(queries_beside(limits, m, apart)), 1) for m in every}
    rows, work = PROGRAMS[size] // groups * 16, WORK[size] // volume
    fit = tuple(m for m in wanted if fewest[m] * m <= work and fewest[m] <= rows)
    return fit or (min(every, key=lambda m: fewest[m] * m),)


def room_for(
    heads: Sequence[tuple[int, int]], work: int, tiles: int, size: str
) -> Sequence[tuple[int, int]]:
    """Head counts under which the shortest lengths that limits leave have room, else the fewest."""
    most = min(WORK[size] // work, PROGRAMS[size] // tiles)
    fewest = min(h for h, _ in heads)
    return [pair for pair in heads if pair[0] <= max(most, fewest)]


def room(size: str, groups: int, volume: int) -> int:
    """The longest seqlen_q == seqlen_k that has room."""
    return min(isqrt(WORK[size] // volume), PROGRAMS[size] // groups * 16)


def queries(limits: Limits, size: str, allowed: Collection[int]) -> tuple[int, ...]:
    """Wanted seqlen_q; without lse no 1 or 2 rows that may see one key, if others are allowed."""
    wanted = QUERIES[size]
    if {"without_lse", "no_offset"} <= limits.where:
        wanted = tuple(n for n in wanted if n > 2 and n in allowed) or wanted
    return wanted


def both(d: Draw, size: str, most: int, least: int = 3) -> int:
    """A length that seqlen_q and seqlen_k both may have, from `least` on if limits leave one."""
    common = meet(d.limits.allowed("seqlen_q"), d.limits.allowed("seqlen_k"))
    longer = meet(common, range(least, FAR))
    return int(d.of(picked(longer or common, [n for n in QUERIES[size] if n >= least], most)))


def _nothing(d: Draw, found: dict[str, int], apart: Whole) -> dict[str, int]:
    """Now and then a length, or the batch, is 0."""
    which = d.of((None,) * 77 + ("seqlen_k", "seqlen_q", "batch"))
    fixed = {"decode", "square"} & d.limits.where
    if which is None or fixed or not d.limits.allows(which, 0):
        return {}
    n, m = ({**found, which: 0}[name] for name in ("seqlen_q", "seqlen_k"))
    return {which: 0} if n in queries_beside(d.limits, m, apart) else {}
