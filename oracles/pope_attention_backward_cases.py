"""Cases of `pope_attention_backward`: calls of `pope_attention` without sinks, and a gradient."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from tightrope.oracles import pope_attention_cases
from tightrope.oracles.attention_backward_cases import (
    NOT_HERE,
    OF_UPSTREAM,
    differentiated,
)
from tightrope.oracles.pope_attention_cases import PopeAttentionCase

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from tightrope.limits import Limits


@dataclass(frozen=True, kw_only=True)
class PopeAttentionBackwardCase:
    """One call of `pope_attention_backward`. All tensors follow from these scalars.

    Fields are as in PopeAttentionCase; data_dout, state and layouts as in AttentionBackwardCase.
    """

    layout_lse: str = "contiguous"
    layout_out: str = "contiguous"
    layout_dout: str = "contiguous"
    data_dout: str = "normal"
    state: str = "exact"
    batch: int = 1
    num_kv_heads: int = 1
    num_heads: int = 1
    seqlen_k: int = 1
    seqlen_q: int = 1
    rotary_dim: int = 16
    head_dim_v: int = 16
    head_dim: int = 16
    out_dtype: str = "input"
    dtype: str = "float16"
    position_dtype: str = "int64"
    inv_freq_dtype: str = "float32"
    exponent_sign: int = -1
    rope_theta: float = 10000.0
    start: int = 0
    positions: str = "range"
    delta_data: str = "clamped"
    delta: str = "none"
    offsets: str = "int"
    q_offset: int = 0
    causal: bool = False
    window_right: int | None = None
    window_left: int | None = None
    softcap: float | None = None
    softmax_scale: float | None = None
    data_v: str = "normal"
    data: str = "normal"
    empty_rows: bool = False
    hidden: str = "finite"
    layout_delta: str = "contiguous"
    layout_v: str = "contiguous"
    layout_k: str = "contiguous"
    layout_q: str = "contiguous"
    builds: str = "committed"
    size: str = "small"
    seed: int = 0


NAMES = {f.name for f in fields(PopeAttentionBackwardCase)}
OF_BOTH = tuple(f.name for f in fields(PopeAttentionCase) if f.name in NAMES)
DOMAIN: dict[str, tuple[Any, ...] | range] = {
    **{name: v for name, v in pope_attention_cases.DOMAIN.items() if name in OF_BOTH},
    **OF_UPSTREAM,
}
AXES = (*(name for name in pope_attention_cases.AXES if name in DOMAIN), *OF_UPSTREAM)
RELATIONS = {name: x for name, x in pope_attention_cases.RELATIONS.items() if name not in NOT_HERE}


def forward(case: PopeAttentionBackwardCase) -> PopeAttentionCase:
    """The call of `pope_attention` whose gradient it is."""
    return PopeAttentionCase(**{name: getattr(case, name) for name in OF_BOTH})


def cases(limits: Limits) -> SearchStrategy[PopeAttentionBackwardCase]:
    """A strategy of cases within limits, as `pope_attention`'s. ValueError if there is none."""
    return differentiated(
        limits, "pope_attention_backward", pope_attention_cases, PopeAttentionBackwardCase
    )
