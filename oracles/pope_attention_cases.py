"""Cases of `pope_attention`: what one is, what limits may narrow, and the strategy that draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tightrope.limits import Limits
from tightrope.oracles import attention_cases
from tightrope.oracles.attention_cases import related
from tightrope.oracles.pope_attention_builds import FIELDS, builds, free
from tightrope.oracles.rope_attention_cases import (
    TABLE_LAYOUTS,
    UNBIASED,
    axes,
    dense_cases,
)
from tightrope.polar import EXPONENT_SIGNS

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from tightrope.oracles.attention_draws import Draw

POSITIONS = ("range", "offset", "random", "per_batch", "long")
DELTAS = ("none", "kv_heads", "heads")
DELTA_DATA = ("clamped", "wide", "zero")
DATA = (
    *("normal", "times_3", "rising", "falling", "spiking", "outliers", "repeated_keys"),
    *("near_ties", "far_groups", "delicate", "thresholds"),
)


@dataclass(frozen=True, kw_only=True)
class PopeAttentionCase:
    """One call of `pope_attention`. All tensors follow from these scalars.

    rotary_dim: polar features, the first of head_dim; the rest is plain. inv_freq holds
    rope_theta ** (exponent_sign * c / rotary_dim), exponent_sign one of tightrope.polar's.
    positions: "range": the indices (q from q_offset on), "offset": all of them later by `start`,
    "random": anywhere within 2**20 of 0, unordered and repeated, "per_batch": (batch, seqlen), each
    sequence from a start of its own within |start| of 0, "long": ordered, from `start` on, near a
    power of two up to 2**40. delta: none, one for each kv head, or for each query head.
    delta_data: zeros, "clamped" to [-2 pi, 0] as training does, or "wide", many turns beyond.
    data: how magnitudes and polar logits behave (tightrope.oracles.pope_attention_data). The rest
    is as in AttentionCase.
    """

    batch: int = 1
    num_heads: int = 1
    num_kv_heads: int = 1
    seqlen_q: int = 1
    seqlen_k: int = 1
    head_dim: int = 16
    head_dim_v: int = 16
    rotary_dim: int = 16
    dtype: str = "float16"
    inv_freq_dtype: str = "float32"
    position_dtype: str = "int64"
    out_dtype: str = "input"
    rope_theta: float = 10000.0
    exponent_sign: int = -1
    positions: str = "range"
    start: int = 0
    delta: str = "none"
    delta_data: str = "clamped"
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
    layout_delta: str = "contiguous"
    layout_inv_freq: str = "contiguous"
    size: str = "small"
    builds: str = "committed"
    seed: int = 0


DOMAIN: dict[str, tuple[Any, ...] | range] = {
    **UNBIASED,
    "data": DATA,
    "rotary_dim": range(1, 257),
    "inv_freq_dtype": ("float32", "float64"),
    "position_dtype": ("int64", "int32"),
    "rope_theta": (10000.0, 100.0, 500000.0),
    "exponent_sign": EXPONENT_SIGNS,
    "positions": POSITIONS,
    "delta": DELTAS,
    "delta_data": DELTA_DATA,
    "layout_delta": TABLE_LAYOUTS,
    "layout_inv_freq": ("contiguous", "strided", "packed", "offset"),
}

AXES = axes(
    DOMAIN, "rotary_dim", "inv_freq_dtype", "position_dtype", "rope_theta", "exponent_sign",
    "positions", "delta", "delta_data", "layout_delta", "layout_inv_freq",
)  # fmt: skip

RELATIONS = {
    **attention_cases.RELATIONS,
    "full_rotary": "rotary_dim == head_dim: no feature is plain",
    "wide256": "head_dim + rotary_dim <= 256: expanded features fit a head of 256",
}

NARROWED_BY: dict[str, dict[str, tuple[Any, ...]]] = {
    **attention_cases.NARROWED_BY,
    "contiguous": {f"layout_{x}": ("contiguous",) for x in ("q", "k", "v", "delta", "inv_freq")},
    "aligned16": {
        **attention_cases.NARROWED_BY["aligned16"],
        "layout_delta": ("contiguous",),
        "layout_inv_freq": ("contiguous",),
        "rotary_dim": tuple(range(8, 257, 8)),
    },
}


def cases(limits: Limits) -> SearchStrategy[PopeAttentionCase]:
    """A strategy of cases within limits; simplest first, nothing filtered.

    Where limits name `positions`, "long" ones are drawn too, and with growing frequencies far ones
    as often as near ones: float32 angles say nothing there, and right so, so that only those are
    asked that claim them. Raises ValueError if the limits leave no case.
    """
    from tightrope.oracles import attention_varlen_draws, pope_attention_draws

    limits = related(limits, NARROWED_BY, "pope_attention")

    def rest(d: Draw, fields: dict[str, Any]) -> dict[str, Any]:
        return {
            **pope_attention_draws.logits(d, fields),
            **pope_attention_draws.angles(d, fields),
            **pope_attention_draws.deltas(d, fields),
            **pope_attention_draws.contents(d),
            **attention_varlen_draws.layouts(d, fields),
        }

    return dense_cases(
        limits, "pope_attention", (builds(limits), free(limits), FIELDS), rest, PopeAttentionCase
    )
