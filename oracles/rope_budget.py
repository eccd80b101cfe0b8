"""The error budget of `rope`, term by term; derived in docs/error-budgets.md, section rope.

Everything is written for one feature j and its partner j': y = P + Q, P = x_j c, Q = +-x_j' s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tightrope.arithmetic import Arithmetic
from tightrope.budget import Budget, Replay
from tightrope.formats import FORMATS, Array, Format, widen
from tightrope.oracles.rope_cases import RopeCase

STAGES: dict[str, Any] = {
    "table": "given",
    "product": "float32",
    "sum": "float32",
    "contraction": "any",
}
"""What a stranger is granted. A stage is a format or "input" (the dtype of q); table also "given".
float64 inputs are worked in float64, which "float32" and "input" then mean. contraction: "none" if
products are rounded before the sum, "any" if either may be fused into it.
"""

FLOAT64 = FORMATS["float64"]
OUTWARD = 1 + 2.0**-50  # more than the few float64 roundings in a sum of terms


@dataclass(frozen=True)
class _Formats:
    """The formats of the stages; table None if cos and sin are used as given."""

    table: Format | None
    product: Format
    sum: Format
    output: Format
    fused: bool


Arrays = Mapping[str, Array]


def budget(case: RopeCase, inputs: Arrays, arithmetic: Arithmetic) -> dict[str, Budget]:
    """Budgets of the outputs q and k. Raises ValueError for a stage that is no format."""
    formats = _formats(case, inputs, arithmetic)
    return {name: _budget(_Terms.of(case, inputs, name), formats) for name in ("q", "k")}


def _formats(case: RopeCase, inputs: Arrays, arithmetic: Arithmetic) -> _Formats:
    dtype = inputs["q"].dtype.name
    output = dtype if case.out_dtype == "input" else case.out_dtype

    def stage(name: str) -> Format:
        value = dtype if arithmetic[name] == "input" else arithmetic[name]
        if dtype == "float64" and name != "table":
            value = "float64" if value == "float32" else value
        if value not in FORMATS or (dtype == "float64" and name != "table" and value != "float64"):
            raise ValueError(f"rope: {name}={arithmetic[name]!r} is no format for {dtype} inputs")
        return FORMATS[value]

    if arithmetic["contraction"] not in ("none", "any"):
        raise ValueError(f"rope: contraction is 'none' or 'any', not {arithmetic['contraction']!r}")
    table = None if arithmetic["table"] == "given" else stage("table")
    fused = arithmetic["contraction"] == "any"
    return _Formats(table, stage("product"), stage("sum"), FORMATS[output], fused)


@dataclass(frozen=True)
class _Terms:
    """x_j, c, x_j' with its sign, s: (tokens, heads, rotary_dim); tail: features that only pass."""

    own: Array
    cos: Array
    other: Array
    sin: Array
    tail: Array
    wide: bool

    @classmethod
    def of(cls, case: RopeCase, inputs: Mapping[str, Array], name: str) -> _Terms:
        x, rows = widen(inputs[name]), inputs["positions"]
        cos, sin = (widen(inputs[t][rows])[:, None] for t in ("cos", "sin"))
        width = cos.shape[-1]
        feature = np.arange(2 * width)
        pair = feature // 2 if case.interleaved else feature % width
        second = feature % 2 if case.interleaved else feature // width
        partner = feature ^ 1 if case.interleaved else (feature + width) % (2 * width)
        other = x[..., partner] * np.where(second, 1.0, -1.0)
        tail = x[..., 2 * width :]
        wide = inputs[name].dtype.name == "float64"
        return cls(x[..., feature], cos[..., pair], other, sin[..., pair], tail, wide)


def _budget(at: _Terms, formats: _Formats) -> Budget:
    p, q = at.own * at.cos, at.other * at.sin
    y, lost = _two_sum(p, q)
    exact_p, exact_q = _exact(at.own, at.cos, p, at.wide), _exact(at.other, at.sin, q, at.wide)

    moved_c, moved_s = _cast(formats.table, at.cos), _cast(formats.table, at.sin)
    table = np.abs(at.own) * moved_c + np.abs(at.other) * moved_s
    product = _product(formats.product, at.own, at.cos, moved_c, p, exact_p)
    product = product + _product(formats.product, at.other, at.sin, moved_s, q, exact_q)
    terms = {}
    if formats.table is not None:
        terms[f"cos and sin rounded to {formats.table.name}"] = table
    terms[f"products rounded to {formats.product.name}"] = product
    before = table + product
    if formats.sum != formats.output:
        same = (before == 0) & (lost == 0) & (formats.sum.round(y) == y)
        sum_error = _rounding(formats.sum, (np.abs(y) + before) * OUTWARD, same)
        terms[f"sum rounded to {formats.sum.name}"] = sum_error

    spent = sum(terms.values(), np.zeros(y.shape))
    own_error = np.abs(lost) + np.where(exact_p, 0.0, FLOAT64.half_ulp(p))
    own_error = own_error + np.where(exact_q, 0.0, FLOAT64.half_ulp(q))
    own_error = own_error + np.where(spent > 0, FLOAT64.half_ulp(np.abs(y) + spent), 0.0)
    return Budget(
        np.concatenate([y, at.tail], -1),
        {name: _padded(term, at.tail) for name, term in terms.items()},
        formats.output.name,
        _padded(own_error, at.tail),
        None if formats.fused else _replay(at, formats),
    )


def _replay(at: _Terms, formats: _Formats) -> Replay:
    """Every rounding as prescribed, up to the last one."""
    cos, sin = (c if formats.table is None else formats.table.round(c) for c in (at.cos, at.sin))
    p, q = formats.product.round(at.own * cos), formats.product.round(at.other * sin)
    total = p + q if formats.sum.precision >= 53 else _sum_to_odd(p, q)
    return Replay(np.concatenate([formats.sum.round(total), at.tail], -1))


def _cast(table: Format | None, c: Array) -> Array:
    """How far rounding to the table's format may move c."""
    return np.zeros(c.shape) if table is None else _rounding(table, c, table.round(c) == c)


def _product(fmt: Format, x: Array, c: Array, moved: Array, value: Array, exact: Array) -> Array:
    magnitude = np.abs(x) * (np.abs(c) + moved)
    same = (moved == 0) & exact & (fmt.round(value) == value)
    return _rounding(fmt, magnitude, same | (magnitude == 0) & exact)


def _rounding(fmt: Format, magnitude: Array, exact: Array) -> Array:
    """|RN(w) - w| for |w| <= magnitude; infinite where that may overflow (IEEE 754-2019, 7.4)."""
    bound = np.where(exact, 0.0, fmt.half_ulp(magnitude))
    limit = np.inf if fmt.precision >= 53 else fmt.largest + 0.5 * fmt.ulp(fmt.largest)
    return np.where(np.abs(magnitude) >= limit, np.inf, bound)


def _exact(x: Array, c: Array, product: Array, wide: bool) -> Array:
    """Where the float64 product is exact; sufficient, not necessary, for factors of 53 bits."""
    if not wide:
        return np.ones(product.shape, bool)
    (bits_x, last_x), (bits_c, last_c) = _significand(x), _significand(c)
    fits = (bits_x + bits_c <= 53) | (bits_x <= 1) | (bits_c <= 1)
    return (x == 0) | (c == 0) | (fits & (last_x + last_c >= -1074))


def _significand(x: Array) -> tuple[Array, Array]:
    """How many significant bits, and the exponent of the last one."""
    mantissa, exponent = np.frexp(x)
    whole = np.abs(mantissa * 2.0**53).astype(np.int64)
    trailing = np.frexp((whole & -whole).astype(np.float64))[1] - 1
    return 53 - trailing, exponent - 53 + trailing


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """fl(a + b) and what it lost, exactly (Knuth, TAOCP 2, 4.2.2, theorem B)."""
    total = a + b
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)


def _sum_to_odd(a: Array, b: Array) -> Array:
    """a + b rounded to odd in float64: rounding it again, to 51 bits or fewer, is innocuous.

    Boldo and Melquiond 2008, IEEE Transactions on Computers 57(4), theorem 1.
    """
    total, lost = _two_sum(a, b)
    even = total.view(np.int64) & 1 == 0
    return np.where(even & (lost != 0), np.nextafter(total, np.copysign(np.inf, lost)), total)


def _padded(term: Array, tail: Array) -> Array:
    return np.concatenate([term, np.zeros(tail.shape)], -1)
