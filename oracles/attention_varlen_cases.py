"""Cases of `attention_varlen`: what one is, what limits may narrow, and the strategy that draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tightrope.limits import Limits
from tightrope.oracles import attention_cases
from tightrope.oracles.attention_cases import (
    DATA,
    DATA_V,
    DTYPES,
    HIDDEN,
    LAYOUTS,
    SCALES,
    SOFTCAPS,
    WINDOWS,
    head_counts,
    related,
)
from tightrope.oracles.attention_varlen_builds import builds, free

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

Lengths = tuple[int, ...]
# Logits of subnormal q and k are all 0, which only tells `attention` something.
MATTERS = tuple(kind for kind in DATA if kind != "subnormal")
START_LAYOUTS = ("contiguous", "strided", "offset")


@dataclass(frozen=True, kw_only=True)
class AttentionVarlenCase:
    """One call of `attention_varlen`. All tensors follow from these scalars.

    seqlens_q, seqlens_k: queries and keys of each sequence, in the order they are packed; 0 is a
    length. spare: rows of q, k and v past the last sequence. offsets: "default" (bottom-right for
    each) or "tensor" (they follow from the seed). bias_dtype: of the sink. hidden: what stands in
    spare rows and in keys that no row of their own sequence sees. layout_starts_q, layout_starts_k:
    of cu_seqlens. The rest is as in AttentionCase.
    """

    seqlens_q: Lengths = (1,)
    seqlens_k: Lengths = (1,)
    spare: int = 0
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
    layout_starts_q: str = "contiguous"
    layout_starts_k: str = "contiguous"
    size: str = "small"
    builds: str = "committed"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("seqlens_q", "seqlens_k"):  # JSON has lists
            object.__setattr__(self, name, tuple(getattr(self, name)))


# sequences, seqlen_q, seqlen_k: how many, and what each member may have
DOMAIN: dict[str, tuple[Any, ...] | range] = {
    "dtype": DTYPES,
    "out_dtype": ("input", "float32"),
    "bias_dtype": ("float32", "input"),
    "head_dim": range(1, 257),
    "head_dim_v": range(1, 257),
    "sequences": range(0, 1 << 16),
    "seqlen_q": range(0, 1 << 21),
    "seqlen_k": range(0, 1 << 21),
    "spare": range(0, 1 << 16),
    "num_heads": range(1, 257),
    "num_kv_heads": range(1, 257),
    "softmax_scale": SCALES,
    "causal": (False, True),
    "offsets": ("default", "tensor"),
    "window_left": WINDOWS,
    "window_right": WINDOWS,
    "softcap": SOFTCAPS,
    "sink": (False, True),
    "data": MATTERS,
    "data_v": DATA_V,
    "hidden": HIDDEN,
    "empty_rows": (False, True),
    "layout_q": LAYOUTS,
    "layout_k": LAYOUTS,
    "layout_v": (*LAYOUTS, "view of k"),
    "layout_starts_q": START_LAYOUTS,
    "layout_starts_k": START_LAYOUTS,
    "size": ("small", "large"),
    "builds": ("committed", "free"),
}

AXES = (
    *("dtype", "out_dtype", "head_dim", "head_dim_v", "num_heads", "num_kv_heads"),
    *("causal", "window_left", "window_right"),
    *("softcap", "sink", "bias_dtype", "softmax_scale", "offsets", "spare", "data", "data_v"),
    *("hidden", "empty_rows", "layout_q", "layout_k", "layout_v", "layout_starts_q"),
    *("layout_starts_k", "size", "builds"),
)

RELATIONS = {
    "out_dtype=input": "the output has the dtype of q, k and v",
    "same_head_dim": "head_dim_v == head_dim",
    "equal_heads": "num_kv_heads == num_heads",
    "square": "seqlens_q == seqlens_k, and each q_offset is 0",
    "no_empty_member": "every sequence has a query and a key",
    "same_kv_layout": "k and v have the same layout",
    "contiguous": "every tensor is contiguous",
    "aligned16": "every row of q, k and v starts at a multiple of 16 bytes, last stride 1",
    "without_lse": attention_cases.RELATIONS["without_lse"],
}

NARROWED_BY: dict[str, dict[str, tuple[Any, ...]]] = {
    "without_lse": attention_cases.WITHOUT_LSE,
    "out_dtype=input": {"out_dtype": ("input",)},
    "square": {"offsets": ("default",)},
    "contiguous": {f"layout_{x}": ("contiguous",) for x in ("q", "k", "v", "starts_q", "starts_k")},
    "aligned16": {
        f"layout_{x}": ("contiguous", "transposed", "sliced", "packed") for x in ("q", "k", "v")
    },
}


def cases(limits: Limits) -> SearchStrategy[AttentionVarlenCase]:
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

    limits = possible(related(limits, NARROWED_BY, "attention_varlen"), "attention_varlen")
    rows, every, heads = builds(limits), free(limits), head_counts(limits)

    @st.composite
    def case(draw: Any) -> AttentionVarlenCase:
        d = Draw(draw, st, limits)
        fields = common(d, rows, every)
        fields |= masks(d)
        fields |= members(d, fields, heads)
        fields["spare"] = d.one("spare", (0, 0, 1, 3, 17))
        fields |= contents(d, fields)
        fields |= layouts(d, fields)
        for name in ("layout_starts_q", "layout_starts_k"):
            fields[name] = d.one(name, (*("contiguous",) * 5, *START_LAYOUTS))
        return AttentionVarlenCase(**fields, seed=d.number(0, 2**16 - 1))

    return case()
