"""Cases of `attention_backward`: calls of `attention` without bias and sinks, and a gradient."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from tightrope.limits import Limits
from tightrope.oracles import attention_cases
from tightrope.oracles.attention_cases import AttentionCase
from tightrope.oracles.attention_varlen_cases import MATTERS

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

LAYOUTS_OUT = ("contiguous", "transposed", "sliced", "offset", "strided")
DATA_DOUT = ("normal", "few_bits", "times_30", "mixed_scales", "constant", "one_row")
STATES = ("exact", "low_precision")


@dataclass(frozen=True, kw_only=True)
class AttentionBackwardCase:
    """One call of `attention_backward`. All tensors follow from these scalars.

    data_dout: what dout holds; "one_row" is 0 in all rows but one of each head. state: what out and
    lse are, "exact": the forward pass rounded once, "low_precision": as a forward pass in float32
    with P in `dtype` returns them. The rest is as in AttentionCase.
    """

    state: str = "exact"
    batch: int = 1
    num_kv_heads: int = 1
    num_heads: int = 1
    head_dim_v: int = 16
    head_dim: int = 16
    out_dtype: str = "input"
    dtype: str = "float16"
    causal: bool = False
    window_left: int | None = None
    window_right: int | None = None
    q_offset: int = 0
    offsets: str = "int"
    seqlen_k: int = 1
    seqlen_q: int = 1
    softcap: float | None = None
    softmax_scale: float | None = None
    data_dout: str = "normal"
    data_v: str = "normal"
    data: str = "normal"
    empty_rows: bool = False
    hidden: str = "finite"
    layout_q: str = "contiguous"
    layout_k: str = "contiguous"
    layout_v: str = "contiguous"
    layout_dout: str = "contiguous"
    layout_out: str = "contiguous"
    layout_lse: str = "contiguous"
    builds: str = "committed"
    size: str = "small"
    seed: int = 0


OF_BOTH = tuple(
    f.name for f in fields(AttentionCase) if f.name in AttentionBackwardCase.__dataclass_fields__
)
OF_UPSTREAM: dict[str, tuple[Any, ...]] = {
    "data_dout": DATA_DOUT,
    "state": STATES,
    "layout_dout": attention_cases.LAYOUTS,
    "layout_out": LAYOUTS_OUT,
    "layout_lse": LAYOUTS_OUT,
}
DOMAIN: dict[str, tuple[Any, ...] | range] = {
    **{name: v for name, v in attention_cases.DOMAIN.items() if name in OF_BOTH},
    "data": MATTERS,
    **OF_UPSTREAM,
}
AXES = (*(name for name in attention_cases.AXES if name in DOMAIN), *OF_UPSTREAM)

NOT_HERE = ("without_lse",)
RELATIONS = {name: x for name, x in attention_cases.RELATIONS.items() if name not in NOT_HERE}
MORE = ("dout", "out", "lse")
NARROWED_BY: dict[str, dict[str, tuple[Any, ...]]] = {
    "contiguous": {f"layout_{x}": ("contiguous",) for x in MORE},
    "aligned16": {
        **{f"layout_{x}": ("contiguous", "transposed", "sliced") for x in ("dout", "out")},
        "layout_lse": ("contiguous", "transposed"),
    },
}


def forward(case: AttentionBackwardCase) -> AttentionCase:
    """The call of `attention` whose gradient it is."""
    return AttentionCase(**{name: getattr(case, name) for name in OF_BOTH})


def cases(limits: Limits) -> SearchStrategy[AttentionBackwardCase]:
    """A strategy of cases within limits; simplest first, nothing filtered.

    Raises ValueError if the limits leave no case.
    """
    return differentiated(limits, "attention_backward", attention_cases, AttentionBackwardCase)


def differentiated(limits: Limits, contract: str, of: Any, make: Any) -> SearchStrategy[Any]:
    """Cases `make` of a contract: calls of its forward pass, and what comes from upstream.

    of: the module with the forward pass's DOMAIN, RELATIONS and cases. Fields that `make` lacks may
    be drawn, and are dropped. Raises ValueError if the limits leave no case.
    """
    from hypothesis import strategies as st

    from tightrope.oracles.attention_draws import Draw

    limits = attention_cases.related(limits, NARROWED_BY, contract)
    names = {f.name for f in fields(make)} - set(OF_UPSTREAM)
    calls = of.cases(_of_forward(limits, of, names))

    @st.composite
    def case(draw: Any) -> Any:
        call = draw(calls)
        d = Draw(draw, st, limits)
        return make(**{name: getattr(call, name) for name in names}, **_gradient(d))

    return case()


def _of_forward(limits: Limits, of: Any, names: Collection[str]) -> Limits:
    """The same limits of the forward pass."""
    given = {"data": limits.values("data"), **limits.given}
    kept = {name: values for name, values in given.items() if name in names}
    return Limits(of.DOMAIN, kept, frozenset(limits.where) & frozenset(of.RELATIONS))


def _gradient(d: Any) -> dict[str, Any]:
    found = {
        "data_dout": d.one("data_dout", ("normal",) * 6 + DATA_DOUT),
        "state": d.one("state", STATES),
    }
    known = {"dout": attention_cases.LAYOUTS, "out": LAYOUTS_OUT, "lse": LAYOUTS_OUT}
    for name, layouts in known.items():
        found[f"layout_{name}"] = d.one(f"layout_{name}", ("contiguous",) * 3 + layouts)
    return found
