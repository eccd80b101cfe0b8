"""Drawing the fields of an attention case: sizes, masks, data and layouts that find bugs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from tightrope.limits import Limits, meet, picked
from tightrope.oracles.attention_builds import FIELDS, Build
from tightrope.oracles.attention_draw_lengths import FAR, Whole, apart_under, lengths
from tightrope.oracles.attention_inputs import OFFSET_SPREAD, offset_range

DATA_WEIGHTS = ("normal",) * 10 + ("times_3", "spiking", "rising", "few_bits") * 2
DATA_V_WEIGHTS = ("normal",) * 18 + ("alternating", "large", "few_bits") * 3


@dataclass(frozen=True)
class Draw:
    """Drawing from what is wanted and allowed."""

    draw: Any
    st: Any
    limits: Limits

    def one(self, name: str, wanted: Sequence[Any], most: int | None = None) -> Any:
        return self.draw(self.st.sampled_from(self.limits.pick(name, tuple(wanted), most)))

    def of(self, values: Sequence[Any]) -> Any:
        return self.draw(self.st.sampled_from(tuple(values)))

    def number(self, low: int, high: int) -> int:
        return int(self.draw(self.st.integers(low, high)))


def drawn_case(
    d: Draw, rows: Sequence[Build], every: Sequence[Build], heads: Sequence[tuple[int, int]],
    apart: Whole,
) -> dict[str, Any]:  # fmt: skip
    """The fields of one AttentionCase."""
    size = d.one("size", ("small", "large"))
    pool = d.one("builds", ("committed", "free"))
    build = d.of(rows if pool == "committed" or not every else every)
    fields = dict(zip(FIELDS, build, strict=True))
    fields["softcap"] = d.one("softcap", SOFT) if fields["softcap"] else None
    fields["bias"] = d.one("bias", BIAS) if fields["bias"] else "none"
    fields["sink"] = d.one("sink", (False, False, True))
    fields["softmax_scale"] = d.one("softmax_scale", (None, None, None, 0.0625, 0.3, 1.0))
    fields |= lengths(d, size, fields, heads, apart)
    fields |= masks(d, fields)
    fields |= contents(d, fields)
    fields |= layouts(d, fields)
    return fields | {"size": size, "builds": pool, "seed": d.number(0, 2**16 - 1)}


SOFT = (5.0, 50.0, 1.0, 20.0)
BIAS = ("full", "mask", "alibi", "key", "query")


def masks(d: Draw, fields: dict[str, Any]) -> dict[str, Any]:
    """Causal, windows and offset; without empty rows if those are not allowed, or not drawn."""
    n, m = fields["seqlen_q"], fields["seqlen_k"]
    empty = d.one("empty_rows", (False, False, True)) if m or not n else True
    causal = d.one("causal", (False, True, True))
    left = d.one("window_left", (None,) * 16 + (15, 16, 17, 31, 64) * 2 + (3, 7, 2, 1, 0))
    right = d.one("window_right", (None,) * 16 + (16, 7, 2, 1, 0))
    empty, causal, left, right = _fitting(d.limits, m - n, (empty, causal, left, right))
    offset = _offset(d, n, m, (empty, causal, left, right))
    offsets = d.one("offsets", ("int", "int", "tensor"))
    near = range(offset - OFFSET_SPREAD, offset + OFFSET_SPREAD + 1)
    if d.limits.allows("offsets", "int") and not all(d.limits.allows("q_offset", o) for o in near):
        offsets = "int"  # the other sequences' offsets are near this one
    return {
        "causal": causal, "window_left": left, "window_right": right, "empty_rows": empty,
        "q_offset": offset, "offsets": offsets,
    }  # fmt: skip


def _fitting(limits: Limits, difference: int, drawn: tuple[Any, ...]) -> tuple[Any, ...]:
    """The mask drawn, or, if it leaves no offset, one that differs from its last fields on."""
    names = ("empty_rows", "causal", "window_left", "window_right")
    options = [(x, *limits.values(name)) for x, name in zip(drawn, names, strict=True)]
    # a window on the left is what fails most often, one on the right hardly ever
    for empty, causal, right, left in product(*options[:2], options[3], options[2]):
        if difference in apart_under(limits, (empty, causal, left, right)):
            return empty, causal, left, right
    return drawn  # without a query: no row is empty, whatever the mask


def _offset(d: Draw, n: int, m: int, mask: tuple[Any, ...]) -> int:
    """Mostly the two usual alignments, where they are allowed; less so for empty rows."""
    empty, causal, left, right = mask
    if "square" in d.limits.where:
        return 0
    if {"bottom_right", "decode"} & d.limits.where:
        return m - n
    low, high = (-FAR, FAR) if empty else offset_range(n, m, causal, left, right)
    every = meet(d.limits.allowed("q_offset"), range(low, high + 1))
    allowed = meet(every, range(-n - 2, m + 3))
    if not allowed:
        return int(d.of(picked(every, (-n - 2, 0, m + 2)) or d.limits.pick("q_offset", (0,))))
    # a few rows at offset 0 see a few keys only, whose weights can hardly be told from equal ones
    top_left = 0 if n <= 2 and causal and "without_lse" in d.limits.where else 4
    usual = [m - n] * 4 + [0] * (min(top_left, 1) if m > n else top_left)
    usual = [offset for offset in usual if offset in allowed]
    kind = d.of((*usual[:2], "any", "any") if empty else (*usual, "any"))
    if kind != "any":
        return int(kind)
    if isinstance(allowed, range) and allowed.step == 1:
        return d.number(allowed[0], allowed[-1])
    return int(allowed[d.number(0, len(allowed) - 1)])


def contents(d: Draw, fields: dict[str, Any]) -> dict[str, Any]:
    domain = d.limits.domain
    data = d.one("data", (*DATA_WEIGHTS, *domain["data"]))
    data_v = d.one("data_v", (*DATA_V_WEIGHTS, *domain["data_v"]))
    return {"data": data, "data_v": data_v, "hidden": d.one("hidden", ("finite", "nan", "inf"))}


def layouts(d: Draw, fields: dict[str, Any]) -> dict[str, Any]:
    known = tuple(d.limits.domain["layout_k"])
    found = {f"layout_{x}": d.one(f"layout_{x}", ("contiguous",) * 3 + known) for x in "qk"}
    found["layout_v"] = d.one("layout_v", ("contiguous",) * 3 + known)
    if "same_kv_layout" in d.limits.where:
        found["layout_v"] = found["layout_k"]
    elif fields["head_dim_v"] <= fields["head_dim"] and d.limits.allows("layout_v", "view of k"):
        view = d.of((False,) * 15 + (True,)) or d.limits.values("layout_v") == ("view of k",)
        found["layout_v"] = "view of k" if view else found["layout_v"]
    biased = fields["bias"] != "none"
    wanted = ("contiguous", *known) if biased else ("contiguous",)
    found["layout_bias"] = d.one("layout_bias", wanted)
    return found
