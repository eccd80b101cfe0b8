"""What the limits of one result allow, and those of a later one no longer do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def lost_by(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(axis, what of it is no longer allowed); empty where a result does not say its limits."""
    if "limits" not in was or "limits" not in now:
        return []
    axes = {axis: _lost(old, now["limits"].get(axis, old)) for axis, old in was["limits"].items()}
    found = [(axis, lost) for axis, lost in axes.items() if lost]
    new = [relation for relation in now["where"] if relation not in was["where"]]
    return [*found, ("where", ", ".join(new))] if new else found


def _lost(old: list[Any], new: list[Any]) -> str:
    """Of values, as text; or of a range, of which both are the ends."""
    if old and new and all(isinstance(end, int) for end in (*old, *new)):
        return "" if new[0] <= old[0] and old[1] <= new[1] else f"only {new[0]} to {new[1]}"
    gone = [v for v in old if v not in set(new)]
    return f"without {', '.join(gone[:4])}{', ...' if len(gone) > 4 else ''}" if gone else ""
