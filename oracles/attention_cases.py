"""Cases of `attention`: what one is, what limits may narrow, and the strategy that draws them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from tightrope.limits import Limits, Usual
from tightrope.oracles.attention_builds import builds, free

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

LAYOUTS = ("contiguous", "transposed", "sliced", "packed", "offset", "strided", "expanded")
DTYPES = ("float16", "bfloat16", "float32")
DATA = (
    *("normal", "times_3", "times_30", "all_negative", "rising", "falling", "spiking", "outliers"),
    *("few_bits", "repeated_keys", "near_ties", "far_groups", "cancellation", "mixed_scales"),
    "subnormal",
)
DATA_V = ("normal", "constant", "one_hot", "alternating", "large", "few_bits")
BIASES = ("none", "full", "query", "key", "alibi", "mask")
HIDDEN = ("finite", "nan", "inf")


@dataclass(frozen=True, kw_only=True)
class AttentionCase:
    """One call of `attention`. All tensors follow from these scalars.

    q_offset: of row 0 (with offsets="tensor" of the first sequence; the others follow from the
    seed). window_left, window_right: keys on either side, None unbounded. bias: which axes it has;
    "mask" holds 0 and -inf. bias_dtype: "float32" or "input", of bias and sink. data: how the
    logits behave; data_v: what v holds. hidden: what stands in keys that no row of a sequence sees
    by its index. empty_rows: whether a row may be without a key. size: "small", "large" or "long".
    builds: whether dtypes and flags are a committed combination or a free one.
    """

    batch: int = 1
    num_heads: int = 1
    num_kv_heads: int = 1
    seqlen_q: int = 1
    seqlen_k: int = 1
    head_dim: int = 16
    head_dim_v: int = 16
    dtype: str = "float16"
    out_dtype: str = "input"
    softmax_scale: float | None = None
    causal: bool = False
    q_offset: int = 0
    offsets: str = "int"
    window_left: int | None = None
    window_right: int | None = None
    softcap: float | None = None
    bias: str = "none"
    sink: bool = False
    bias_dtype: str = "float32"
    data: str = "normal"
    data_v: str = "normal"
    hidden: str = "finite"
    empty_rows: bool = False
    layout_q: str = "contiguous"
    layout_k: str = "contiguous"
    layout_v: str = "contiguous"
    layout_bias: str = "contiguous"
    size: str = "small"
    builds: str = "committed"
    seed: int = 0


SOFTCAPS = Usual((None, 1.0, 5.0, 20.0, 50.0), 0.5, 1024.0)
SCALES = Usual((None, 0.0625, 0.25, 0.3, 1.0), 2.0**-10, 4.0)
WINDOWS = Usual((None, 0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 64, 127, 128, 200), 0, 1 << 20)

DOMAIN: dict[str, tuple[Any, ...] | range] = {
    "dtype": DTYPES,
    "out_dtype": ("input", "float32"),
    "bias_dtype": ("float32", "input"),
    "head_dim": range(1, 257),
    "head_dim_v": range(1, 257),
    "batch": range(0, 1 << 16),
    "num_heads": range(1, 257),
    "num_kv_heads": range(1, 257),
    "seqlen_q": range(0, 1 << 21),
    "seqlen_k": range(0, 1 << 21),
    "softmax_scale": SCALES,
    "causal": (False, True),
    "q_offset": range(-(1 << 20), (1 << 20) + 1),
    "offsets": ("int", "tensor"),
    "window_left": WINDOWS,
    "window_right": WINDOWS,
    "softcap": SOFTCAPS,
    "bias": BIASES,
    "sink": (False, True),
    "data": DATA,
    "data_v": DATA_V,
    "hidden": HIDDEN,
    "empty_rows": (False, True),
    "layout_q": LAYOUTS,
    "layout_k": LAYOUTS,
    "layout_v": (*LAYOUTS, "view of k"),
    "layout_bias": LAYOUTS,
    "size": ("small", "large"),
    "builds": ("committed", "free"),
}

AXES = (
    *("dtype", "out_dtype", "head_dim", "head_dim_v", "batch", "num_heads", "num_kv_heads"),
    *("seqlen_q", "seqlen_k", "causal", "window_left", "window_right"),
    *("softcap", "bias", "bias_dtype", "sink", "softmax_scale", "offsets", "data", "data_v"),
    *("hidden", "empty_rows", "layout_q", "layout_k", "layout_v", "layout_bias"),
    *("size", "builds"),
)

RELATIONS = {
    "out_dtype=input": "the output has the dtype of q, k and v",
    "same_head_dim": "head_dim_v == head_dim",
    "equal_heads": "num_kv_heads == num_heads",
    "square": "seqlen_q == seqlen_k and q_offset == 0",
    "bottom_right": "q_offset == seqlen_k - seqlen_q: the last query sees the last key",
    "no_offset": "q_offset == 0",
    "decode": "seqlen_q == 1 and q_offset == seqlen_k - 1",
    "same_kv_layout": "k and v have the same layout",
    "contiguous": "every tensor is contiguous",
    "aligned16": "every row of q, k and v starts at a multiple of 16 bytes, last stride 1",
    "without_lse": "data whose weights show in out alone; in force where no lse is returned",
}
# Equal weights, or equal values, give the mean of v.
WITHOUT_LSE = {
    "data": tuple(d for d in DATA if d not in ("repeated_keys", "near_ties")),
    "data_v": tuple(d for d in DATA_V if d != "constant"),
    "window_left": Usual([n for n in WINDOWS if n not in (0, 1)], 2, WINDOWS.most),
}

NARROWED_BY: dict[str, dict[str, tuple[Any, ...]]] = {
    "without_lse": WITHOUT_LSE,
    "out_dtype=input": {"out_dtype": ("input",)},
    "square": {"offsets": ("int",), "q_offset": (0,)},
    "bottom_right": {"offsets": ("int",)},
    "no_offset": {"offsets": ("int",), "q_offset": (0,)},
    "decode": {"offsets": ("int",), "seqlen_q": (1,)},
    "contiguous": {f"layout_{x}": ("contiguous",) for x in ("q", "k", "v", "bias")},
    "aligned16": {
        f"layout_{x}": ("contiguous", "transposed", "sliced", "packed") for x in ("q", "k", "v")
    },
}


def cases(limits: Limits) -> SearchStrategy[AttentionCase]:
    """A strategy of cases within limits; simplest first, nothing filtered.

    Raises ValueError if the limits leave no case.
    """
    from hypothesis import strategies as st

    from tightrope.oracles.attention_draw_lengths import differences
    from tightrope.oracles.attention_draws import Draw, drawn_case

    limits = related(limits, NARROWED_BY, "attention")
    rows, every = builds(limits), free(limits)
    heads, apart = head_counts(limits), differences(limits, "attention")

    @st.composite
    def case(draw: Any) -> AttentionCase:
        return AttentionCase(**drawn_case(Draw(draw, st, limits), rows, every, heads, apart))

    return case()


def related(limits: Limits, narrowed_by: dict[str, Any], contract: str) -> Limits:
    """Limits with those that relations under `where` imply. ValueError if none are left."""
    for relation in sorted(limits.where):
        narrowed = limits.narrowed(narrowed_by.get(relation, {}))
        if narrowed is None:
            raise ValueError(f"no case of {contract} satisfies {relation!r} within these limits")
        limits = narrowed
    return limits


# (num_heads, num_kv_heads): ratios 1, 2, 3, 4 and 6
HEADS = ((1, 1), (2, 1), (2, 2), (4, 2), (3, 1), (4, 1), (3, 3), (6, 2), (6, 1))


def head_counts(
    limits: Limits, wanted: tuple[tuple[int, int], ...] = HEADS
) -> tuple[tuple[int, int], ...]:
    """Pairs of head counts within limits; those wanted, else the smallest that divide."""
    equal = "equal_heads" in limits.where

    def fits(h: int, kv: int) -> bool:
        allowed = limits.allows("num_heads", h) and limits.allows("num_kv_heads", kv)
        return allowed and h % kv == 0 and (h == kv or not equal)

    found = tuple(pair for pair in wanted if fits(*pair))
    if not found:
        every = product(limits.values("num_heads"), limits.values("num_kv_heads"))
        found = tuple(sorted(pair for pair in every if fits(*pair)))[:4]
    if not found:
        raise ValueError("no num_heads within these limits is a multiple of a num_kv_heads")
    return found
