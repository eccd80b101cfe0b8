"""Cases of `merge_attention`: what one is, what limits may narrow, and the strategy that draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tightrope.limits import Limits
from tightrope.oracles.attention_cases import related

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

DATA = ("normal", "equal", "spread", "far", "huge", "cancellation", "repeated", "dominant")
EMPTY = ("none", "some", "all but one", "all")
LAYOUTS = ("contiguous", "transposed", "sliced", "strided", "offset")


@dataclass(frozen=True, kw_only=True)
class MergeAttentionCase:
    """One call of `merge_attention`. All tensors follow from these scalars.

    outs (splits, rows, num_heads, head_dim), lses (splits, rows, num_heads). data: how the lses of
    one place lie to each other, and what outs hold; "huge" has lses of 1e4 and more. empty: which
    states have lse = -inf; with "all" half of the places have no other. hidden: what stands in the
    outs of those.
    """

    splits: int = 1
    rows: int = 1
    num_heads: int = 1
    head_dim: int = 16
    dtype: str = "float32"
    data: str = "normal"
    empty: str = "none"
    hidden: str = "finite"
    layout_outs: str = "contiguous"
    layout_lses: str = "contiguous"
    size: str = "small"
    seed: int = 0


DOMAIN: dict[str, tuple[Any, ...] | range] = {
    "dtype": ("float32",),
    "splits": range(1, 1 << 16),
    "rows": range(0, 1 << 21),
    "num_heads": range(1, 257),
    "head_dim": range(1, 257),
    "data": DATA,
    "empty": EMPTY,
    "hidden": ("finite", "nan", "inf"),
    "layout_outs": LAYOUTS,
    "layout_lses": LAYOUTS,
    "size": ("small", "large"),
}

AXES = (
    *("dtype", "splits", "rows", "num_heads", "head_dim", "data", "empty", "hidden"),
    *("layout_outs", "layout_lses", "size"),
)

RELATIONS = {
    "contiguous": "both stacks are contiguous",
    "aligned16": "every row of outs starts at a multiple of 16 bytes, last stride 1",
}

NARROWED_BY: dict[str, dict[str, tuple[Any, ...]]] = {
    "contiguous": {"layout_outs": ("contiguous",), "layout_lses": ("contiguous",)},
    "aligned16": {
        "layout_outs": ("contiguous", "transposed", "sliced"),
        "head_dim": (4, 16, 24, 40, 64, 72, 80, 96, 128, 192, 256),
    },
}

SPLITS = (2, 3, 1, 4, 5, 8, 2, 3, 6, 7, 9, 33)
WIDTHS = (16, 8, 40, 64, 72, 80, 96, 128, 192, 256, 1, 3)
ROWS = {"small": (1, 2, 3, 5, 17, 33), "large": (17, 64, 129, 257, 1000)}
ELEMENTS = {"small": 20_000, "large": 400_000}  # of outs


def cases(limits: Limits) -> SearchStrategy[MergeAttentionCase]:
    """A strategy of cases within limits; simplest first, nothing filtered.

    Raises ValueError if the limits leave no case.
    """
    from hypothesis import strategies as st

    from tightrope.oracles.attention_draws import Draw

    limits = related(limits, NARROWED_BY, "merge_attention")

    @st.composite
    def case(draw: Any) -> MergeAttentionCase:
        d = Draw(draw, st, limits)
        fields = _shape(d)
        fields["data"] = d.one("data", ("normal", "normal", *DATA, *DATA[:4]))
        fields["empty"] = d.one("empty", ("none", "none", "some", "some", *EMPTY))
        fields["hidden"] = d.one("hidden", ("finite", "nan", "inf"))
        for name in ("layout_outs", "layout_lses"):
            fields[name] = d.one(name, ("contiguous", "contiguous", *LAYOUTS))
        return MergeAttentionCase(**fields, seed=d.number(0, 2**16 - 1))

    return case()


def _shape(d: Any) -> dict[str, Any]:
    size = d.one("size", ("small", "large"))
    head_dim, splits = d.one("head_dim", WIDTHS), d.one("splits", SPLITS)
    room = max(ELEMENTS[size] // (splits * head_dim), 1)
    num_heads = d.one("num_heads", [n for n in (1, 2, 3, 4, 8) if n <= room])
    rows = d.one("rows", [n for n in ROWS[size] if n * num_heads <= room] or [1])
    if d.limits.allows("rows", 0) and d.of((False,) * 47 + (True,)):
        rows = 0
    shape = {"splits": splits, "rows": rows, "num_heads": num_heads, "head_dim": head_dim}
    return {**shape, "size": size}
