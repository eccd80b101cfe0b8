"""Which rows of a sequence each rank of a ring holds; launcher, budget and laws read it alike.

Sharding is of indices. A rank's rotation and its masks go by these, not by rows of its shard.
"""

from __future__ import annotations

from collections.abc import Iterator

from tightrope.validate import refuse

SCHEMES = ("contiguous", "zigzag")
Span = tuple[int, int]
"""Rows [start, stop) of the whole sequence."""


def spans(length: int, ranks: int, scheme: str, rank: int) -> tuple[Span, ...]:
    """The rows of a sequence that a rank holds, in the order in which its shard holds them.

    contiguous: one run a rank. zigzag: chunks `rank` and 2 ranks - 1 - rank of 2 ranks, which
    evens out the work under a causal mask (Brandon et al. 2023, arXiv:2311.09431, section 3, in
    the form of two chunks a rank). Lengths of runs differ by at most 1; a run may be empty.
    Raises ValueError for an unknown scheme.
    """
    if scheme not in SCHEMES:
        refuse("scheme", " or ".join(map(repr, SCHEMES)), repr(scheme))
    chunks = ranks if scheme == "contiguous" else 2 * ranks
    mine = (rank,) if scheme == "contiguous" else (rank, chunks - 1 - rank)
    return tuple((i * length // chunks, (i + 1) * length // chunks) for i in mine)


def rows(length: int, ranks: int, scheme: str, rank: int) -> list[int]:
    """The global row numbers of a rank's shard: the positions that its rotation takes."""
    return [row for span in spans(length, ranks, scheme, rank) for row in range(*span)]


def held(length: int, ranks: int, scheme: str, rank: int) -> int:
    """How many rows a rank holds."""
    return sum(stop - start for start, stop in spans(length, ranks, scheme, rank))


def owners(ranks: int, rank: int) -> Iterator[int]:
    """Whose keys a rank sees, step by step: its own, then those of the rank before it, ..."""
    return ((rank - step) % ranks for step in range(ranks))


def touches(
    q_rows: Span, keys: Span, q_offset: int, causal: bool,
    window_size: tuple[int | None, int | None] | None,
) -> bool:  # fmt: skip
    """Whether a row of the one span sees a key of the other, by index."""
    if q_rows[0] >= q_rows[1] or keys[0] >= keys[1]:
        return False
    left, right = window_size or (None, None)
    right = 0 if causal else right
    above = right is not None and keys[0] > q_rows[1] - 1 + q_offset + right
    below = left is not None and keys[1] <= q_rows[0] + q_offset - left
    return not (above or below)
