"""Cases of `rope_attention`: what one is, what limits may narrow, and the strategy that draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tightrope.limits import Limits
from tightrope.oracles import attention_cases
from tightrope.oracles.attention_cases import head_counts, related
from tightrope.oracles.attention_varlen_cases import MATTERS
from tightrope.oracles.rope_attention_builds import FIELDS, builds, free

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from tightrope.oracles.attention_builds import Build
    from tightrope.oracles.attention_draws import Draw

POSITIONS = ("range", "offset", "random", "per_batch")
TABLES = ("unstructured", "trigonometric")
TABLE_LAYOUTS = ("contiguous", "transposed", "sliced", "strided", "offset")


@dataclass(frozen=True, kw_only=True)
class RopeAttentionCase:
    """One call of `rope_attention`. All tensors follow from these scalars.

    rotary_dim: features that turn, the first of head_dim. positions: rows of the table; "range":
    those of the indices (q from q_offset on), "offset": all of them later by `start`, "random",
    "per_batch": (batch, seqlen), each sequence from a start of its own. start: the first row.
    table: what cos and sin hold; with a trigonometric one, logits that follow a curve
    (tightrope.oracles.attention_data) do so after the rotation. The rest is as in AttentionCase.
    """

    batch: int = 1
    num_heads: int = 1
    num_kv_heads: int = 1
    seqlen_q: int = 1
    seqlen_k: int = 1
    head_dim: int = 16
    head_dim_v: int = 16
    rotary_dim: int = 16
    interleaved: bool = False
    dtype: str = "float16"
    table_dtype: str = "float32"
    position_dtype: str = "int64"
    out_dtype: str = "input"
    table_rows: int = 64
    table: str = "unstructured"
    positions: str = "range"
    start: int = 0
    softmax_scale: float | None = None
    causal: bool = False
    q_offset: int = 0
    offsets: str = "int"
    window_left: int | None = None
    window_right: int | None = None
    softcap: float | None = None
    sink: bool = False
    bias_dtype: str = "float32"
    data: str = "normal"
    data_v: str = "normal"
    hidden: str = "finite"
    empty_rows: bool = False
    layout_q: str = "contiguous"
    layout_k: str = "contiguous"
    layout_v: str = "contiguous"
    layout_table: str = "contiguous"
    size: str = "small"
    builds: str = "committed"
    seed: int = 0


UNBIASED = {n: v for n, v in attention_cases.DOMAIN.items() if n not in ("bias", "layout_bias")}
DOMAIN: dict[str, tuple[Any, ...] | range] = {
    **UNBIASED,
    "data": MATTERS,
    "head_dim": range(2, 257),
    "rotary_dim": range(2, 257, 2),
    "interleaved": (False, True),
    "table_dtype": ("float32", "input"),
    "position_dtype": ("int64", "int32"),
    "table_rows": range(1, 1 << 20),
    "table": TABLES,
    "positions": POSITIONS,
    "layout_table": TABLE_LAYOUTS,
}


def axes(domain: dict[str, tuple[Any, ...] | range], *more: str) -> tuple[str, ...]:
    """attention's axes that are fields of a domain, more, and where builds come from."""
    last = ("size", "builds")
    kept = (axis for axis in attention_cases.AXES if axis in domain and axis not in last)
    return (*kept, *more, *last)


AXES = axes(
    DOMAIN, "rotary_dim", "interleaved", "table_dtype", "position_dtype", "table", "positions",
    "layout_table",
)  # fmt: skip

RELATIONS = {
    **attention_cases.RELATIONS,
    "full_rotary": "rotary_dim == head_dim: no feature is left unrotated",
    "same_dtype_table": "cos and sin have the dtype of q, k and v",
}

NARROWED_BY: dict[str, dict[str, tuple[Any, ...]]] = {
    **attention_cases.NARROWED_BY,
    "contiguous": {f"layout_{x}": ("contiguous",) for x in ("q", "k", "v", "table")},
    "aligned16": {
        **attention_cases.NARROWED_BY["aligned16"],
        "layout_table": ("contiguous",),
        "rotary_dim": tuple(range(16, 257, 16)),
    },
}

ROWS = (64, 1024, 4160, 8192)


def cases(limits: Limits) -> SearchStrategy[RopeAttentionCase]:
    """A strategy of cases within limits; simplest first, nothing filtered.

    Raises ValueError if the limits leave no case.
    """
    from tightrope.oracles.attention_draws import contents
    from tightrope.oracles.attention_varlen_draws import layouts

    limits = related(limits, NARROWED_BY, "rope_attention")

    def rest(d: Draw, fields: dict[str, Any]) -> dict[str, Any]:
        found = _positions(d, fields)
        found |= contents(d, fields)
        found |= layouts(d, fields)
        table = d.one("layout_table", ("contiguous",) * 3 + TABLE_LAYOUTS)
        return {**found, "layout_table": table}

    return dense_cases(
        limits, "rope_attention", (builds(limits), free(limits), FIELDS), rest, RopeAttentionCase
    )


def dense_cases(
    limits: Limits, contract: str, pool: tuple[Sequence[Build], Sequence[Build], Sequence[str]],
    rest: Callable[[Draw, dict[str, Any]], dict[str, Any]], make: Callable[..., Any],
) -> SearchStrategy[Any]:  # fmt: skip
    """Cases of a contract with a batch axis: a build, lengths, a mask, the rest, a seed.

    pool: committed rows, free ones, names of their fields. rest(d, fields): the fields that
    lengths and masks do not decide. Raises ValueError if the limits leave no case.
    """
    from hypothesis import strategies as st

    from tightrope.oracles.attention_draw_lengths import differences, lengths
    from tightrope.oracles.attention_draws import Draw, masks
    from tightrope.oracles.attention_varlen_draws import common

    heads, apart = head_counts(limits), differences(limits, contract)

    @st.composite
    def case(draw: Any) -> Any:
        d = Draw(draw, st, limits)
        fields = common(d, *pool)
        fields |= lengths(d, fields["size"], fields, heads, apart)
        fields |= masks(d, fields)
        fields |= rest(d, fields)
        return make(**fields, seed=d.number(0, 2**16 - 1))

    return case()


def _positions(d: Any, fields: dict[str, Any]) -> dict[str, Any]:
    rows = d.one("table_rows", ROWS)
    kind = d.one("positions", ("random", "offset", "per_batch", "range"))
    start = 0 if kind == "range" else d.number(min(1, rows - 1), rows - 1)
    # a key at its query's own position is met at the angle 0, which only independent cos, sin show
    alone = fields["causal"] and (fields["window_left"] == 0 or fields["seqlen_q"] == 1)
    table = d.one("table", ("unstructured",) if alone else ("unstructured", "trigonometric"))
    return {"table_rows": rows, "positions": kind, "start": start, "table": table}
