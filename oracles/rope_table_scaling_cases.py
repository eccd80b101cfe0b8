"""Drawing scalings for cases of rope_table."""

from __future__ import annotations

from typing import Any

from tightrope.limits import Limits
from tightrope.oracles.rope_table_scaling import PARTIAL, VARIANTS

FACTORS = (8.0, 2.0, 4.0, 32.0, 40.0, 2.5, 1.0)
SIZES = (8, 16, 32, 40, 64, 128, 2, 4, 6)
LEAST = {"ntk": 4, "dynamic": 4, "proportional": 8}  # rotary_dim
TRUNCATING = 32  # rotary_dim; in narrower ones a ramp has few columns for truncation to move
HUGE = "huge"  # the kind of positions past 2**24
LENGTHS = (4096, 8192, 32768, 2048, 256, 16)


def possible(limits: Limits) -> dict[str, tuple[tuple[int, ...], tuple[float, ...]]]:
    """Types that are asked -> widths and bases, of those drawn, that they are defined for.

    A changed base needs two columns, a quarter of the columns four, yarn a base above 1. Raises
    ValueError where the limits leave none.
    """
    sizes, bases = limits.pick("rotary_dim", SIZES), limits.values("rope_theta")
    found = {
        kind: (
            tuple(d for d in sizes if d >= LEAST.get(kind, 2)),
            tuple(b for b in bases if b > 1 or kind != "yarn"),
        )
        for kind in limits.values("rope_scaling")
    }
    found = {kind: both for kind, both in found.items() if all(both)}
    if not found:
        raise ValueError("no rope_scaling of these limits is defined for their rotary_dim")
    return found


def scaled(limits: Limits, fields: dict[str, Any]) -> Any:
    """A Hypothesis strategy of the fields of a scaling, and of others that it does not go with.

    Half of the cases with a length begin at its edge. Float32 angles of frequencies that are not 1
    say little past 2**20: longer positions are for those that claim them.
    """
    from hypothesis import strategies as st

    kinds, many = possible(limits), limits.values("axes")

    @st.composite
    def more(draw: Any) -> dict[str, Any]:
        kind = draw(st.sampled_from(list(kinds)))
        found = {"rope_scaling": kind, "axes": draw(st.sampled_from(many))}
        for name, values in zip(("rotary_dim", "rope_theta"), kinds[kind], strict=True):
            if fields[name] not in values:
                found[name] = draw(st.sampled_from(values))
        if kind != "default":
            variants = [*VARIANTS[kind], *([PARTIAL] if kind != "proportional" else [])]
            if kind == "yarn" and found.get("rotary_dim", fields["rotary_dim"]) >= TRUNCATING:
                variants += 3 * ["untruncated"]
            found["variant"] = draw(st.sampled_from(variants))
            found["length"] = length = draw(st.sampled_from(LENGTHS))
            factor = draw(st.sampled_from(FACTORS))
            found["factor"] = float(int(factor)) if found["variant"] == "maximum" else factor
            found["seq_len"] = draw(st.sampled_from(lengths(length)))
            if fields["positions"] in ("range", "repeated", "descending") and draw(st.booleans()):
                found["start"] = length - 1
            if fields["positions"] == "long" and HUGE not in limits.given.get("positions", ()):
                found["start"] = min(fields["start"], 2**20)
        return found

    return more()


def lengths(length: int) -> tuple[int | None, ...]:
    """Sequence lengths around the one that a model was trained for."""
    return (None, length + 1, length, length - 1, 2 * length, 32 * length + 3, 0)
