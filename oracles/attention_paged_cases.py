"""Cases of `attention_paged`: what one is, what limits may narrow, and the strategy that draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tightrope.limits import Limits
from tightrope.oracles import attention_varlen_cases as varlen
from tightrope.oracles.attention_cases import HEADS, LAYOUTS, head_counts, related
from tightrope.oracles.attention_varlen_builds import builds, free

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

STARTS = ("layout_starts_q", "layout_starts_k")  # of a packed case alone
CACHES = tuple(layout for layout in LAYOUTS if layout != "expanded")
TABLES = ("contiguous", "sliced", "strided", "offset", "transposed")
TAILS = ("zero", "negative", "huge")
PAGES = (16, 32, 64, 128, 256)


@dataclass(frozen=True, kw_only=True)
class AttentionPagedCase:
    """One call of `attention_paged`. All tensors follow from these scalars.

    seqlens_q: queries of each sequence, 1 in decode, more in chunked prefill. seqlens_k: the
    cache_seqlens, the new tokens among them. spare: rows of q past the last sequence; spare_pages:
    pages of the cache that nobody uses. tail: what stands in the block table past the pages of a
    sequence, tail_length: how many such columns even the longest sequence has. hidden: what stands
    in spare rows, unused pages, slots past a sequence and keys that none of its rows sees.
    layout_k, layout_v: of the caches (pages, page_size, num_kv_heads, ..); "transposed" has heads
    before slots, "packed" has k and v in turn, page by page. The rest is as in AttentionVarlenCase.
    """

    seqlens_q: varlen.Lengths = (1,)
    seqlens_k: varlen.Lengths = (1,)
    spare: int = 0
    page_size: int = 16
    spare_pages: int = 1
    tail: str = "zero"
    tail_length: int = 1
    num_heads: int = 1
    num_kv_heads: int = 1
    head_dim: int = 16
    head_dim_v: int = 16
    dtype: str = "float16"
    out_dtype: str = "input"
    softmax_scale: float | None = None
    causal: bool = False
    offsets: str = "default"
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

    def __post_init__(self) -> None:
        for name in ("seqlens_q", "seqlens_k"):  # JSON has lists
            object.__setattr__(self, name, tuple(getattr(self, name)))


# sequences, seqlen_q, seqlen_k: how many, and what each member may have
DOMAIN: dict[str, tuple[Any, ...] | range] = {
    **{name: values for name, values in varlen.DOMAIN.items() if name not in STARTS},
    "page_size": range(1, 257),
    "spare_pages": range(0, 1 << 16),
    "tail": TAILS,
    "tail_length": range(0, 1 << 16),
    "layout_k": CACHES,
    "layout_v": (*CACHES, "view of k"),
    "layout_table": TABLES,
}

AXES = (*(a for a in varlen.AXES if a not in STARTS), "page_size", "tail", "layout_table")

RELATIONS = {
    **{name: told for name, told in varlen.RELATIONS.items() if name != "square"},
    "decode": "one query a sequence, the last token of its cache",
    "usual_page_size": "page_size is 16, 32, 64, 128 or 256",
}

NARROWED_BY: dict[str, dict[str, tuple[Any, ...]]] = {
    "without_lse": varlen.NARROWED_BY["without_lse"],
    "out_dtype=input": {"out_dtype": ("input",)},
    "decode": {"offsets": ("default",), "seqlen_q": (1,)},
    "usual_page_size": {"page_size": PAGES},
    "contiguous": {f"layout_{x}": ("contiguous",) for x in ("q", "k", "v", "table")},
    "aligned16": varlen.NARROWED_BY["aligned16"],
}


def cases(limits: Limits) -> SearchStrategy[AttentionPagedCase]:
    """A strategy of cases within limits; simplest first, nothing filtered.

    Raises ValueError if the limits leave no case.
    """
    from hypothesis import strategies as st

    from tightrope.oracles.attention_draws import Draw, contents
    from tightrope.oracles.attention_varlen_draws import (
        common,
        layouts,
        masks,
        members,
        possible,
    )

    limits = possible(related(limits, NARROWED_BY, "attention_paged"), "attention_paged")
    rows, every = builds(limits), free(limits)
    heads = head_counts(limits, (*HEADS, (8, 1), (8, 2)))

    @st.composite
    def case(draw: Any) -> AttentionPagedCase:
        d = Draw(draw, st, limits)
        fields = common(d, rows, every)
        fields |= masks(d)
        decode = "decode" in limits.where or d.of((True, False))
        fields |= members(d, fields, heads, queries=not decode)
        fields |= _pages(d)
        fields |= contents(d, fields)
        fields |= layouts(d, fields)
        fields["layout_table"] = d.one("layout_table", ("contiguous",) * 2 + TABLES)
        return AttentionPagedCase(**fields, seed=d.number(0, 2**16 - 1))

    return case()


def _pages(d: Any) -> dict[str, Any]:
    return {
        "page_size": d.one("page_size", (16, 16, 16, 32, 64, 128, 256, 1, 3, 8, 20)),
        "spare_pages": d.one("spare_pages", (1, 0, 2, 5)),
        "tail": d.one("tail", ("huge", "negative", "zero")),
        "tail_length": d.one("tail_length", (1, 0, 3)),
        "spare": d.one("spare", (0, 0, 0, 1, 5)),
    }
