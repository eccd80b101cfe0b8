"""Cases of `attention_varlen_backward`: calls of `attention_varlen`, no sinks, and a gradient."""

from __future__ import annotations

from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tightrope.oracles import attention_varlen_cases
from tightrope.oracles.attention_backward_cases import (
    NOT_HERE,
    OF_UPSTREAM,
    AttentionBackwardCase,
    differentiated,
)
from tightrope.oracles.attention_varlen_cases import AttentionVarlenCase

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from tightrope.limits import Limits

Lengths = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class AttentionVarlenBackwardCase:
    """One call of `attention_varlen_backward`. All tensors follow from these scalars.

    Fields are as in AttentionVarlenCase; data_dout, state and layouts as in AttentionBackwardCase,
    "one_row" in every sequence. Rows of no sequence hold in dout, out and lse what `hidden` says.
    """

    seed: int = 0
    seqlens_k: Lengths = (1,)
    seqlens_q: Lengths = (1,)
    spare: int = 0
    num_heads: int = 1
    head_dim: int = 16
    dtype: str = "float16"
    head_dim_v: int = 16
    out_dtype: str = "input"
    num_kv_heads: int = 1
    causal: bool = False
    softcap: float | None = None
    offsets: str = "default"
    window_left: int | None = None
    window_right: int | None = None
    empty_rows: bool = False
    softmax_scale: float | None = None
    data: str = "normal"
    size: str = "small"
    data_v: str = "normal"
    builds: str = "committed"
    data_dout: str = "normal"
    state: str = "exact"
    hidden: str = "finite"
    layout_q: str = "contiguous"
    layout_k: str = "contiguous"
    layout_v: str = "contiguous"
    layout_lse: str = "contiguous"
    layout_out: str = "contiguous"
    layout_dout: str = "contiguous"
    layout_starts_k: str = "contiguous"
    layout_starts_q: str = "contiguous"

    def __post_init__(self) -> None:
        # JSON has lists
        object.__setattr__(self, "seqlens_q", tuple(self.seqlens_q))
        object.__setattr__(self, "seqlens_k", tuple(self.seqlens_k))


NAMES = {f.name for f in fields(AttentionVarlenBackwardCase)}
OF_BOTH = tuple(f.name for f in fields(AttentionVarlenCase) if f.name in NAMES)
OF_ONE = tuple(f.name for f in fields(AttentionBackwardCase) if f.name in NAMES - {"offsets"})
COUNTS = ("sequences", "seqlen_q", "seqlen_k")  # limits of lengths, which are no fields
DOMAIN: dict[str, tuple[Any, ...] | range] = {
    **{n: v for n, v in attention_varlen_cases.DOMAIN.items() if n in (*OF_BOTH, *COUNTS)},
    **OF_UPSTREAM,
}
AXES = (*(name for name in attention_varlen_cases.AXES if name in DOMAIN), *OF_UPSTREAM)
RELATIONS = {n: x for n, x in attention_varlen_cases.RELATIONS.items() if n not in NOT_HERE}


def forward(case: AttentionVarlenBackwardCase) -> AttentionVarlenCase:
    """The call of `attention_varlen` whose gradient it is."""
    return AttentionVarlenCase(**{name: getattr(case, name) for name in OF_BOTH})


def alone(
    case: AttentionVarlenBackwardCase, seqlen_q: int, seqlen_k: int, q_offset: int, seed: int = 0
) -> AttentionBackwardCase:
    """The call of `attention_backward` that one sequence is."""
    fields = {name: getattr(case, name) for name in OF_ONE}
    lengths = {"seqlen_q": seqlen_q, "seqlen_k": seqlen_k, "q_offset": q_offset, "seed": seed}
    return AttentionBackwardCase(**{**fields, **lengths})


def cases(limits: Limits) -> SearchStrategy[AttentionVarlenBackwardCase]:
    """A strategy of cases within limits, as `attention_varlen`'s. ValueError if there is none."""
    more = {name: limits.given[name] for name in COUNTS if name in limits.given}
    more["sink"] = (False,)

    def of(given: Limits) -> Any:
        narrowed = given.narrowed(more)
        if narrowed is None:  # unreachable: fields of `more` are none of `given`'s
            raise ValueError("no case of attention_varlen_backward is within these limits")
        return attention_varlen_cases.cases(narrowed)

    domain, relations = attention_varlen_cases.DOMAIN, attention_varlen_cases.RELATIONS
    packed = SimpleNamespace(DOMAIN=domain, RELATIONS=relations, cases=of)
    return differentiated(
        limits, "attention_varlen_backward", packed, AttentionVarlenBackwardCase
    )  # fmt: skip
