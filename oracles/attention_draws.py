"""Drawing the fields of an attention case: sizes, masks, data and layouts that find bugs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tightrope.limits import Limits
from tightrope.oracles.attention_builds import FIELDS, Build
from tightrope.oracles.attention_inputs import offset_range

# Around blocks of 16 (the interpreter's), and around those of 64 and 128 (a GPU's); mostly such
# that a row's maximum can change between blocks.
LENGTHS = {
    "small": (3, 5, 7, 15, 16) * 2 + (17, 31, 32, 33, 47, 49, 64, 65, 80) * 4 + (2, 1),
    "large": (130, 65, 127, 128, 129, 200, 255, 256, 257, 320, 511, 513, 640, 1023, 1100),
}
QUERIES = {
    "small": (3, 1, 2, 4, 5, 7, 15, 16, 17, 18, 33),
    "large": (5, 1, 16, 17, 64, 65, 127, 128, 129, 200, 257, 300),
}
PROGRAMS = {"small": 6, "large": 32}  # (batch, head, 16 rows) of a launch
WORK = {"small": 120_000, "large": 2_000_000}  # groups x rows x keys x head_dim_v of the budget

DATA_WEIGHTS = ("normal",) * 10 + ("times_3", "spiking", "rising", "few_bits") * 2
DATA_V_WEIGHTS = ("normal",) * 18 + ("alternating", "large", "few_bits") * 3


@dataclass(frozen=True)
class Draw:
    """Drawing from what is wanted and allowed."""

    draw: Any
    st: Any
    limits: Limits

    def one(self, name: str, wanted: Sequence[Any]) -> Any:
        return self.draw(self.st.sampled_from(self.limits.pick(name, tuple(wanted))))

    def of(self, values: Sequence[Any]) -> Any:
        return self.draw(self.st.sampled_from(tuple(values)))

    def number(self, low: int, high: int) -> int:
        return int(self.draw(self.st.integers(low, high)))


def drawn_case(
    d: Draw, rows: Sequence[Build], every: Sequence[Build], heads: Sequence[tuple[int, int]]
) -> dict[str, Any]:
    """The fields of one AttentionCase."""
    size = d.one("size", ("small", "large"))
    pool = d.one("builds", ("committed", "free"))
    build = d.of(rows if pool == "committed" or not every else every)
    fields = dict(zip(FIELDS, build, strict=True))
    fields["softcap"] = d.one("softcap", SOFT) if fields["softcap"] else None
    fields["bias"] = d.one("bias", BIAS) if fields["bias"] else "none"
    fields["sink"] = d.one("sink", (False, False, True))
    fields["softmax_scale"] = d.one("softmax_scale", (None, None, None, 0.0625, 0.3, 1.0))
    fields |= lengths(d, size, fields, heads)
    fields |= masks(d, fields)
    fields |= contents(d, fields)
    fields |= layouts(d, fields)
    return fields | {"size": size, "builds": pool, "seed": d.number(0, 2**16 - 1)}


SOFT = (5.0, 50.0, 1.0, 20.0)
BIAS = ("full", "mask", "alibi", "key", "query")


def lengths(
    d: Draw, size: str, fields: dict[str, Any], heads: Sequence[tuple[int, int]]
) -> dict[str, int]:
    """batch, heads and lengths whose launch and whose budget stay small."""
    num_heads, num_kv_heads = d.of(heads)
    seqlen_k = d.one("seqlen_k", LENGTHS[size])
    room = WORK[size] // (num_heads * max(seqlen_k, 1) * fields["head_dim_v"])
    room = min(room, PROGRAMS[size] // num_heads * 16)
    seqlen_q = d.one("seqlen_q", [n for n in QUERIES[size] if n <= room] or [1])
    room = min(room // max(seqlen_q, 1), PROGRAMS[size] // (num_heads * -(-seqlen_q // 16)))
    batch = d.one("batch", [n for n in (1, 2, 3) if n <= max(room, 1)])
    if "decode" in d.limits.where:
        seqlen_q = 1
    if "square" in d.limits.where:
        seqlen_q = seqlen_k = _both(d, size)
    found = {"batch": batch, "num_heads": num_heads, "num_kv_heads": num_kv_heads}
    return {**found, "seqlen_q": seqlen_q, "seqlen_k": seqlen_k} | _nothing(d)


def _both(d: Draw, size: str) -> int:
    """A length that seqlen_q and seqlen_k both may have."""
    wanted = [n for n in QUERIES[size] if n > 2 and d.limits.allows("seqlen_k", n)]
    low, high = d.limits.bounds("seqlen_k")
    return int(d.one("seqlen_q", wanted or [max(low, min(high, QUERIES[size][0]))]))


def _nothing(d: Draw) -> dict[str, int]:
    """Now and then a length, or the batch, is 0."""
    which = d.of((None,) * 77 + ("seqlen_k", "seqlen_q", "batch"))
    fixed = {"decode", "square"} & d.limits.where
    if which is None or fixed or not d.limits.allows(which, 0):
        return {}
    if which == "seqlen_k" and not d.limits.allows("empty_rows", True):
        return {}
    return {which: 0}


def masks(d: Draw, fields: dict[str, Any]) -> dict[str, Any]:
    """Causal, windows and offset; without empty rows if those are not allowed, or not drawn."""
    n, m = fields["seqlen_q"], fields["seqlen_k"]
    empty = d.one("empty_rows", (False, False, True)) if m else True
    causal = d.one("causal", (False, True, True))
    left = d.one("window_left", (None,) * 16 + (15, 16, 17, 31, 64) * 2 + (3, 7, 2, 1, 0))
    right = d.one("window_right", (None,) * 16 + (16, 7, 2, 1, 0))
    low, high = offset_range(n, m, causal, left, right)
    if not empty and low > high:  # more rows than the window reaches: no window on the left
        left = None
        low, high = offset_range(n, m, causal, left, right)
    if empty:
        low, high = -n - 2, m + 2
    offset = _offset(d, max(low, -n - 2), max(low, min(high, m + 2)), m - n, empty)
    offsets = d.one("offsets", ("int", "int", "tensor"))
    return {
        "causal": causal, "window_left": left, "window_right": right, "empty_rows": empty,
        "q_offset": offset, "offsets": offsets,
    }  # fmt: skip


def _offset(d: Draw, low: int, high: int, bottom_right: int, empty: bool) -> int:
    """Mostly the two usual alignments, where they are in [low, high]; less so for empty rows."""
    related = {"square": 0, "no_offset": 0, "bottom_right": bottom_right, "decode": bottom_right}
    for relation, offset in related.items():
        if relation in d.limits.where:
            return offset
    least, most = d.limits.bounds("q_offset")
    low, high = max(low, least), min(high, most)
    if low > high:
        return min(max(0, least), most)
    # a few rows at offset 0 see a few keys only, whose weights can hardly be told from equal ones
    usual = [bottom_right] * 4 + [0] * (1 if bottom_right > 0 else 4)
    usual = [offset for offset in usual if low <= offset <= high]
    kind = d.of((*usual[:2], "any", "any") if empty else (*usual, "any"))
    return d.number(low, high) if kind == "any" else int(kind)


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
