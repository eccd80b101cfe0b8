"""Shards of a run: which part of it a law on one implementation and dtype belongs to.

The part follows from the name alone: machines that collect different laws (a peer that only one of
them has) still run every law exactly once between them, and no list is passed around.
"""

from __future__ import annotations

import hashlib


def shard(text: str) -> tuple[int, int]:
    """An option's `I/N`, 1 <= I <= N, as (I, N); raises ValueError."""
    part, slash, parts = text.partition("/")
    found = int(part), int(parts)
    if not slash or not 1 <= found[0] <= found[1]:
        raise ValueError(text)
    return found


def inside(key: str, part: tuple[int, int] | None) -> bool:
    """Whether the law with this key (tightrope.session.key) is in a part; all are in None."""
    if part is None:
        return True
    digest = hashlib.sha256(key.encode()).digest()
    return int.from_bytes(digest[:8], "big") % part[1] == part[0] - 1
