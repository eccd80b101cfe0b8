"""Cases at the edges of rotations and attention, asked of a kernel whatever its limits say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

LARGE = "65,537 tokens"  # not for the interpreter

_ATTENTION: dict[str, dict[str, Any]] = {
    "rows without a key (bottom right)": {
        "seqlen_q": 33, "seqlen_k": 17, "causal": True, "q_offset": -16, "empty_rows": True,
    },
    "no key": {"seqlen_k": 0, "empty_rows": True},
    "no query": {"seqlen_q": 0},
    "no sequence": {"batch": 0},
    "one key": {"seqlen_k": 1},
    "causal, aligned top left": {"causal": True},
    "causal, aligned bottom right": {"causal": True, "q_offset": 16},
    "NaN in keys behind the causal edge": {"causal": True, "hidden": "nan"},
    "NaN in keys outside of every window": {
        "causal": True, "q_offset": 16, "window_left": 3, "hidden": "nan",
    },
    "a mask of -inf": {"bias": "mask", "bias_dtype": "input"},
    "softcap": {"softcap": 20.0},
    "sinks": {"sink": True},
    "logits of thousands": {"data": "times_30"},
    "eight heads to one": {"num_heads": 8, "num_kv_heads": 1},
    "head_dim 40": {"head_dim": 40, "head_dim_v": 40},
    "head_dim 72, of v 56": {"head_dim": 72, "head_dim_v": 56},
    "head_dim 256": {"head_dim": 256, "head_dim_v": 256},
    "q of every second feature": {"layout_q": "strided"},
    "k not aligned to 16 bytes": {"layout_k": "offset"},
    "v stored once for all": {"layout_v": "expanded"},
    "4,099 keys": {"seqlen_k": 4099, "seqlen_q": 1},
}  # fmt: skip
_ROPE: dict[str, dict[str, Any]] = {
    "no token": {"tokens": 0},
    LARGE: {"tokens": 65_537, "num_heads": 1, "num_kv_heads": 1, "positions": "random"},
    "four heads to one": {"num_kv_heads": 1},
    "head_dim 80": {"head_dim": 80, "rotary_dim": 80},
    "32 of 64 features": {"rotary_dim": 32},
    "6 of 64 features": {"rotary_dim": 6},
    "row 131,071": {"table_rows": 131_072, "positions": "last"},
    "int32 positions": {"position_dtype": "int32"},
    "positions in no order": {"positions": "random"},
    "q of every second feature": {"layout_q": "strided"},
    "k stored once for all heads": {"layout_k": "expanded"},
    "a table with gaps": {"layout_table": "sliced"},
    "a table of q's dtype": {"table_dtype": "bfloat16"},
    "in place, q of every second feature": {"inplace": True, "layout_q": "strided"},
    "the other layout of pairs": {"interleaved": None},
    "float32": {"dtype": "float32"},
    "float64": {"dtype": "float64", "table_dtype": "float64"},
    "subnormal numbers": {"data": "subnormal"},
}
_KEYS = {k: _ATTENTION[k] for k in _ATTENTION if "mask" not in k}
EDGES: dict[str, dict[str, dict[str, Any]]] = {
    "rope": _ROPE,
    "attention": _ATTENTION,
    "pope_attention": {
        **{name: fields for name, fields in _KEYS.items() if "thousands" not in name},
        "positions beyond 2^24": {"positions": "long"},
        "int32 positions": {"position_dtype": "int32"},
        "a phase a key head": {"delta": "kv_heads"},
        "a phase outside of [-2 pi, 0]": {"delta": "heads", "delta_data": "wide"},
    },
    "rope_table": {
        "rotary_dim 2": {"rotary_dim": 2},
        "no position": {"tokens": 0},
        "negative positions": {"positions": "negative"},
        "powers of two to 2^24": {"positions": "powers"},
        "long positions": {"positions": "long"},
        "positions beyond 2^24": {"positions": "huge"},
        "base 500,000": {"rope_theta": 500_000.0},
    },
}
BASE: dict[str, dict[str, Any]] = {
    "rope": {"tokens": 5, "num_heads": 4, "num_kv_heads": 4, "head_dim": 64, "rotary_dim": 64},
    "attention": {"batch": 2, "num_heads": 4, "num_kv_heads": 2, "seqlen_q": 17, "seqlen_k": 33},
    "rope_table": {"tokens": 17, "rotary_dim": 64},
}
BASE["attention"] |= {"head_dim": 64, "head_dim_v": 64}
BASE["pope_attention"] = {**BASE["attention"], "rotary_dim": 64}
DTYPES = ("bfloat16", "float16", "float32")


def cases(impl: Any) -> Iterator[tuple[str, Any]]:
    """(edge, case) of an implementation, beside it "nothing special"; a case of None: not asked."""
    from tightrope.device import current

    spec, allowed = impl.contract, impl.allowed()
    dtypes = allowed.values("dtype")
    base = spec.case(
        **BASE[spec.name], seed=1, dtype=next(d for d in DTYPES if d in dtypes),
        **{f: allowed.values(f)[0] for f in ("interleaved", "exponent_sign") if f in spec.domain},
    )  # fmt: skip
    if "bottom_right" in impl.where:
        base = replace(base, q_offset=base.seqlen_k - base.seqlen_q)
    if "same_dtype_table" in impl.where:
        base = replace(base, table_dtype=base.dtype)
    yield "nothing special", base
    for name, fields in EDGES[spec.name].items():
        if name == LARGE and current().interpreted:
            continue
        if "interleaved" in fields:
            other = {"interleaved": not base.interleaved}
            asked = allowed.allows("interleaved", not base.interleaved)
            yield name, replace(base, **other) if asked else None
            continue
        case = replace(base, **fields)
        if fields.get("rotary_dim", 0) == 0 and hasattr(case, "rotary_dim"):
            case = replace(case, rotary_dim=min(case.rotary_dim, getattr(case, "head_dim", 512)))
        yield name, _aligned(impl, case, fields)


def _aligned(impl: Any, case: Any, fields: Mapping[str, Any]) -> Any:
    """The case with the one alignment that an implementation has; None if it names another."""
    if "bottom_right" not in impl.where:
        return case
    own = case.seqlen_k - case.seqlen_q
    asked = fields.get("q_offset", 0) if fields.get("causal") else own
    return replace(case, q_offset=own) if asked == own else None
