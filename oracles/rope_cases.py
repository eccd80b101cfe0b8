"""Cases of `rope`: what one is, what limits may narrow, and the strategy that draws them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any

from tightrope.data import KINDS
from tightrope.limits import Limits
from tightrope.oracles.rope_builds import FIELDS, builds, free, shapes

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

LAYOUTS = ("contiguous", "transposed", "sliced", "packed", "offset", "strided", "expanded")
# An expanded table has equal rows: no position could be told from another.
TABLE_LAYOUTS = LAYOUTS[:-1]
DATA = ("normal", "cancellation", *(kind for kind in KINDS if kind not in ("normal", "constant")))
POSITIONS = ("range", "random", "last", "batch", "descending", "repeated")
# "identity" comes only by limits: a kernel that does nothing is right on it
TABLES = ("unstructured", "trigonometric", "few_bits", "identity")


@dataclass(frozen=True, kw_only=True)
class RopeCase:
    """One call of `rope`. All tensors follow from these scalars.

    tokens, num_heads, num_kv_heads, head_dim, rotary_dim: shapes; num_kv_heads divides num_heads.
    out_dtype: "input" or "float32". positions: how rows of the table are chosen, from `start` on
    where the kind has a start. table: what cos and sin hold. data: what q and k hold. size: "large"
    has at least 10,240 token-heads and is meant for GPUs. builds: whether
    dtypes and flags are a committed combination (a GPU compiles each) or a free one.
    """

    tokens: int = 1
    num_heads: int = 1
    num_kv_heads: int = 1
    head_dim: int = 16
    rotary_dim: int = 16
    interleaved: bool = False
    inplace: bool = False
    dtype: str = "float32"
    table_dtype: str = "float32"
    position_dtype: str = "int64"
    out_dtype: str = "input"
    table_rows: int = 64
    positions: str = "range"
    start: int = 0
    table: str = "unstructured"
    data: str = "normal"
    layout_q: str = "contiguous"
    layout_k: str = "contiguous"
    layout_table: str = "contiguous"
    size: str = "small"
    builds: str = "committed"
    seed: int = 0


DOMAIN: dict[str, tuple[Any, ...] | range] = {
    "dtype": ("float32", "float16", "bfloat16", "float64"),
    "table_dtype": ("float32", "float16", "bfloat16", "float64"),
    "position_dtype": ("int64", "int32"),
    "interleaved": (False, True),
    "inplace": (False, True),
    "out_dtype": ("input", "float32"),
    "head_dim": range(2, 513),
    "rotary_dim": range(2, 513, 2),
    "tokens": range(0, 1 << 17),
    "num_heads": range(1, 129),
    "num_kv_heads": range(1, 129),
    "table_rows": range(1, 1 << 20),
    "positions": POSITIONS,
    "table": TABLES,
    "data": DATA,
    "layout_q": LAYOUTS,
    "layout_k": LAYOUTS,
    "layout_table": TABLE_LAYOUTS,
    "size": ("small", "large"),
    "builds": ("committed", "free"),
}

RELATIONS = {
    "out_dtype=input": "the output has the dtype of q and k",
    "full_rotary": "rotary_dim == head_dim: no feature is left unrotated",
    "equal_heads": "num_kv_heads == num_heads",
    "same_dtype_table": "cos and sin have the dtype of q and k",
    "contiguous": "every tensor is contiguous",
    "aligned16": "every row of q, k, cos and sin starts at a multiple of 16 bytes, last stride 1",
}

_NARROWED_BY: dict[str, dict[str, tuple[str, ...]]] = {
    "out_dtype=input": {"out_dtype": ("input",)},
    "contiguous": {f"layout_{x}": ("contiguous",) for x in ("q", "k", "table")},
    "aligned16": {
        "layout_q": ("contiguous", "transposed", "sliced", "packed"),
        "layout_k": ("contiguous", "transposed", "sliced", "packed"),
        "layout_table": ("contiguous", "sliced", "packed"),
    },
}

Heads = tuple[tuple[int, int], ...]

# (num_heads, num_kv_heads): ratios 1, 2, 3, 4, 6 and 7
HEADS = ((1, 1), (2, 1), (2, 2), (4, 2), (3, 3), (6, 3), (3, 1), (6, 2), (4, 1), (6, 1), (7, 1))
FAR = 2**15 + 64  # rows whose numbers 16 bits do not hold, of narrow tables
TOKENS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 33)
ROWS = (64, 4160, 8192, 1024, 8192, FAR, FAR, FAR)
ELEMENTS = 6144  # of q and k together; keeps the float64 oracle near a millisecond
EXACT_ELEMENTS = 768  # float64: ball arithmetic settles most of them
TABLE_ELEMENTS = 300_000  # 4,160 rows of 64: enough for positions beyond 4,096
TRIGONOMETRIC_ELEMENTS = 65_536  # these are computed, not copied
LARGE = 10_240  # token-heads at which known kernels choose another path


def cases(limits: Limits) -> SearchStrategy[RopeCase]:
    """A strategy of cases within limits; simplest first, nothing filtered.

    Raises ValueError if the limits leave no case.
    """
    from hypothesis import strategies as st

    for relation in sorted(limits.where):
        narrowed = limits.narrowed(_NARROWED_BY.get(relation, {}))
        if narrowed is None:
            raise ValueError(f"no case of rope satisfies {relation!r} within these limits")
        limits = narrowed
    limits = _apart(limits)
    rows, heads = builds(limits), _heads(limits)
    combinations = cache(lambda shape: free(shape, limits))
    known = tuple(s for s in shapes(limits, rows) if combinations(s))
    narrow = _narrow(rows) if limits.bounds("tokens")[1] >= LARGE else ()

    @st.composite
    def case(draw: Any) -> RopeCase:
        chosen = _Draw(draw, st, limits)
        size = chosen.one("size", ("small",) * 31 + ("large",) * bool(narrow))
        build = draw(st.sampled_from(narrow if size == "large" else rows))
        pool = chosen.one("builds", ("committed", "free")) if size == "small" else "committed"
        if pool == "free" and known:
            build = draw(st.sampled_from(combinations(draw(st.sampled_from(known)))))
        fields: dict[str, Any] = dict(zip(FIELDS, build, strict=True))
        fields |= _shape(chosen, fields, size, heads)
        fields |= _table(chosen, fields)
        fields["data"] = chosen.one("data", ("normal",) * 3 + DATA)
        layouts = LAYOUTS[:-1] if fields["inplace"] else LAYOUTS
        fields["layout_q"] = chosen.one("layout_q", ("contiguous",) * 2 + layouts)
        fields["layout_k"] = chosen.one("layout_k", ("contiguous",) * 2 + layouts)
        fields["layout_table"] = chosen.one("layout_table", ("contiguous",) * 2 + TABLE_LAYOUTS)
        return RopeCase(**fields, builds=pool, seed=draw(st.integers(0, 2**16 - 1)))

    return case()


@dataclass(frozen=True)
class _Draw:
    """Drawing from what is wanted and allowed."""

    draw: Any
    st: Any
    limits: Limits

    def one(self, name: str, wanted: Sequence[Any]) -> Any:
        return self.draw(self.st.sampled_from(self.limits.pick(name, tuple(wanted))))


def _apart(limits: Limits) -> Limits:
    """Limits under which no tensor that is stored once for all heads is rotated in place."""
    for name in ("layout_q", "layout_k"):
        if limits.values(name) == ("expanded",):
            narrowed = limits.narrowed({"inplace": (False,)})
            if narrowed is None:
                raise ValueError(
                    f"{name} is always 'expanded' and inplace always True within these limits: "
                    "heads that share their storage cannot be rotated in place"
                )
            limits = narrowed
    return limits


def _narrow(rows: tuple[Any, ...]) -> tuple[Any, ...]:
    """Builds for large cases: narrow heads, and no float64, which is settled element by element."""
    dtype, head_dim = FIELDS.index("dtype"), FIELDS.index("head_dim")
    kept = [r for r in rows if r[dtype] != "float64"]
    least = min((r[head_dim] for r in kept), default=0)
    return tuple(r for r in kept if r[head_dim] <= max(16, least))


def _shape(chosen: _Draw, fields: dict[str, Any], size: str, every: Heads) -> dict[str, Any]:
    limits, head_dim = chosen.limits, fields["head_dim"]
    room = (EXACT_ELEMENTS if fields["dtype"] == "float64" else ELEMENTS) // head_dim
    heads = tuple(h for h in every if 2 * sum(h) <= room) or every[:1]
    num_heads, num_kv_heads = chosen.draw(chosen.st.sampled_from(heads))
    at_most = room // (num_heads + num_kv_heads)
    if size == "large":
        least = -(-LARGE // num_heads)
        tokens = chosen.one("tokens", (least, least + 1, least + 3))
    else:
        wanted = [n for n in TOKENS if n <= at_most and limits.allows("tokens", n)]
        if not wanted:
            wanted = [min(max(limits.bounds("tokens")[0], 1), limits.bounds("tokens")[1])]
        empty = [0] if len(wanted) > 1 and limits.allows("tokens", 0) else []
        tokens = chosen.draw(chosen.st.sampled_from((*wanted, *wanted, *empty)))
    return {"tokens": tokens, "num_heads": num_heads, "num_kv_heads": num_kv_heads, "size": size}


def _heads(limits: Limits) -> Heads:
    """Pairs of head counts within limits; those wanted, else the smallest that divide."""
    equal = "equal_heads" in limits.where
    every = product(limits.values("num_heads"), limits.values("num_kv_heads"))
    fit = [(h, kv) for h, kv in every if h % kv == 0 and (h == kv or not equal)]
    if not fit:
        raise ValueError("no num_heads within these limits is a multiple of a num_kv_heads")
    return tuple(pair for pair in HEADS if pair in fit) or tuple(sorted(fit)[:4])


def _table(chosen: _Draw, fields: dict[str, Any]) -> dict[str, Any]:
    tokens = fields["tokens"]
    table = chosen.one("table", ("unstructured",) * 3 + ("trigonometric", "few_bits"))
    room = TRIGONOMETRIC_ELEMENTS if table == "trigonometric" else TABLE_ELEMENTS
    fit = tuple(r for r in ROWS if r * fields["rotary_dim"] <= 2 * room or r == ROWS[0])
    rows = chosen.one("table_rows", fit)
    kind = chosen.one("positions", POSITIONS)
    start = 0
    if kind != "last" and kind != "random":
        # row 0 of a trigonometric table turns nothing
        last = max(rows - max(tokens, 1), 0)
        first = min(1, last) if table == "trigonometric" else 0
        integers = chosen.st.integers(first, last)
        start = chosen.draw(integers | chosen.st.integers(max(first, last - 32), last))
    return {"table_rows": rows, "table": table, "positions": kind, "start": start}
