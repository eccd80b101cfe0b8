"""What kernels compute instead of `rope`: models that do nothing useful, and known mistakes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from tightrope.budget import Budget
from tightrope.diagnosis import Mistake
from tightrope.formats import FORMATS, Array, Format, stored, widen
from tightrope.oracles.rope_budget import budget
from tightrope.oracles.rope_cases import RopeCase

Outputs = dict[str, Array]
Rounding = Callable[[Array], Array]
ROW_LIMIT = 4096  # rows that old tables have, and kernels have assumed


def nulls(case: RopeCase, inputs: Mapping[str, Array]) -> dict[str, Outputs]:
    """Models that no budget should accept, each with both outputs."""
    right = _Model.of(case, inputs)
    models = {
        "input unrotated": _unrotated(right),
        "zeros": {x: np.zeros_like(out) for x, out in _unrotated(right).items()},
    }
    if case.rotary_dim > 2:
        models["layout swapped"] = replace(right, interleaved=not case.interleaved).outputs()
    if any(_heads_differ(inputs[x]) for x in ("q", "k")):
        models["heads permuted"] = {x: np.roll(y, 1, axis=1) for x, y in right.outputs().items()}
    return models


def _heads_differ(x: Array) -> bool:
    return bool((x != np.roll(x, 1, axis=1)).any())


def alternatives(case: RopeCase, inputs: Mapping[str, Array]) -> Iterator[tuple[str, Outputs]]:
    """(what is computed instead, outputs), the likeliest first; those equal to a right result are
    left out.
    """
    right = _Model.of(case, inputs)
    expected = right.outputs()
    for mistakes in (_of_angle, _of_position, _of_pairing, _of_heads, _of_rounding):
        for sentence, outputs in mistakes(right):
            if any((widen(outputs[x]) != widen(expected[x])).any() for x in outputs):
                yield sentence, outputs


@dataclass(frozen=True)
class _Model:
    """A rotation whose parts can be replaced one by one. `round` is applied to the two products;
    signs: of the sine in the first and the second feature of a pair. read: where the second is
    read, if not where it is written.
    """

    q: Array
    k: Array
    cos: Array
    sin: Array
    rows_q: Array
    rows_k: Array
    interleaved: bool
    half: int
    distance: int
    first: int
    dtype: str
    out: str
    round: Rounding
    signs: tuple[float, float] = (-1.0, 1.0)
    read: int | None = None

    @classmethod
    def of(cls, case: RopeCase, inputs: Mapping[str, Array]) -> _Model:
        dtype = inputs["q"].dtype.name
        rows = inputs["positions"].astype(np.int64)
        half = inputs["cos"].shape[1]
        out = dtype if case.out_dtype == "input" else case.out_dtype
        q, k, cos, sin = (widen(inputs[n]) for n in ("q", "k", "cos", "sin"))
        layout = case.interleaved, half, half, 0
        return cls(q, k, cos, sin, rows, rows, *layout, dtype, out, _exactly)

    def unrounded(self) -> Outputs:
        return {"q": self._turned(self.q, self.rows_q), "k": self._turned(self.k, self.rows_k)}

    def outputs(self) -> Outputs:
        found = {x: stored(y, self.out) for x, y in self.unrounded().items()}
        plain = self.round is _exactly and self.signs == (-1.0, 1.0)
        asked = plain and self.distance == self.half and not self.first and self.read is None
        return Mistake(found, self.budgets) if asked else found

    def budgets(self, arithmetic: Any) -> dict[str, Budget]:
        """Those of `rope` where it is asked for this rotation."""
        case: Any = SimpleNamespace(interleaved=self.interleaved, out_dtype=self.out)
        given = {"q": stored(self.q, self.dtype), "k": stored(self.k, self.dtype)}
        given |= {"cos": self.cos, "sin": self.sin}
        rows = {"q": self.rows_q, "k": self.rows_k}
        return {
            x: budget(case, {**given, "positions": at}, arithmetic)[x] for x, at in rows.items()
        }

    def _turned(self, x: Array, rows: Array) -> Array:
        c, s = self.cos[rows][:, None], self.sin[rows][:, None]
        pair = np.arange(self.half)
        one = self.first + (2 * pair if self.interleaved else pair)
        two = one + (1 if self.interleaved else self.distance)
        at = two if self.read is None else one + self.read
        beyond = max(int(at.max(initial=0)) + 1 - x.shape[-1], 0)  # past the features lies 0
        second = np.pad(x, ((0, 0), (0, 0), (0, beyond)))[..., at]
        y, r = x.copy(), self.round
        y[..., one] = r(x[..., one] * c) + self.signs[0] * r(second * s)
        y[..., two] = r(second * c) + self.signs[1] * r(x[..., one] * s)
        return y


def _exactly(product: Array) -> Array:
    return product


def _unrotated(right: _Model) -> Outputs:
    return {"q": stored(right.q, right.out), "k": stored(right.k, right.out)}


def _of_angle(m: _Model) -> Iterator[tuple[str, Outputs]]:
    yield "the input, not rotated at all", _unrotated(m)
    yield "a rotation by the opposite angle (sign of sin)", replace(m, sin=-m.sin).outputs()
    for signs, which in (((1.0, 1.0), "first"), ((-1.0, -1.0), "second")):
        turned = replace(m, signs=signs).outputs()
        yield f"the sign of sin turned in the {which} feature of each pair", turned
    yield "cos and sin exchanged", replace(m, cos=m.sin, sin=m.cos).outputs()
    opposite = replace(m, cos=-m.sin, sin=-m.cos)
    yield "cos and sin exchanged, and the opposite angle", opposite.outputs()
    for name in ("cos", "sin"):
        first: Any = {name: np.broadcast_to(getattr(m, name)[:1], m.cos.shape)}
        yield f"{name} of the table's first row for every token", replace(m, **first).outputs()
    once = m.unrounded()
    yield "the rotation applied twice", replace(m, q=once["q"], k=once["k"]).outputs()
    yield "q rotated, k not", {**_unrotated(m), "q": m.outputs()["q"]}
    yield "k rotated, q not", {**_unrotated(m), "k": m.outputs()["k"]}
    yield "zeros", {x: np.zeros_like(y) for x, y in _unrotated(m).items()}


def _of_position(m: _Model) -> Iterator[tuple[str, Outputs]]:
    rows, last = m.rows_q, len(m.cos) - 1

    def at(q: Array, k: Array) -> Outputs:
        return replace(m, rows_q=np.clip(q, 0, last), rows_k=np.clip(k, 0, last)).outputs()

    yield "the token's index taken for its position", at(*(np.arange(len(rows)),) * 2)
    if len(rows):
        counted = rows[0] + np.arange(len(rows))
        yield "every position counted from the first one on", at(counted, counted)
        yield "the first token's position for all tokens", at(*(np.full(len(rows), rows[0]),) * 2)
    for step, word in ((1, "late"), (-1, "early")):
        yield f"all positions one {word}", at(rows + step, rows + step)
        yield f"k rotated one position {word}", at(rows, rows + step)
        yield f"q rotated one position {word}", at(rows + step, rows)
    low = (rows + 2**15) % 2**16 - 2**15
    if (low != rows).any():
        outside = ((low < 0) | (low > last))[:, None, None]
        turned, plain = at(low, low), _unrotated(m)
        kept = {x: np.where(outside, plain[x], turned[x]) for x in turned}
        yield "positions cut to 16 bits, tokens beyond the table not rotated", kept
    for limit in (ROW_LIMIT - 1, ROW_LIMIT):
        yield f"positions clamped at {limit:,}", at(*(np.minimum(rows, limit),) * 2)
        yield f"positions modulo {limit:,}", at(*(rows % limit,) * 2)
    yield "the table read with twice its row stride (clamped)", at(2 * rows, 2 * rows)
    yield "the table read with twice its row stride (wrapped)", at(*(2 * rows % (last + 1),) * 2)
    yield "the table's first row for every token", at(*(np.zeros_like(rows),) * 2)
    yield "the table's last row for every token", at(*(np.full(len(rows), last),) * 2)


def _of_pairing(m: _Model) -> Iterator[tuple[str, Outputs]]:
    used, asked = ("half-split", "interleaved")[:: 1 if m.interleaved else -1]
    other = replace(m, interleaved=not m.interleaved)
    yield f"the {used} layout where {asked} is asked for", other.outputs()
    power = 1 << (m.half - 1).bit_length()
    for padded in sorted({power, 2 * power, 4 * power} - {m.half}) if not m.interleaved else ():
        apart = replace(m, read=padded)
        yield f"features paired at the padded width of {padded}, not rotary_dim/2", apart.outputs()
    head_dim, rotary_dim = m.q.shape[-1], 2 * m.half
    tail = head_dim - rotary_dim
    if not tail:
        return
    if not m.interleaved and head_dim // 2 + m.half <= head_dim:
        apart = replace(m, distance=head_dim // 2)
        yield "features paired at head_dim/2 instead of rotary_dim/2", apart.outputs()
    last = replace(m, first=tail)
    yield "the last rotary_dim features rotated instead of the first", last.outputs()
    zeroed = m.outputs()
    for y in zeroed.values():
        y[..., rotary_dim:] = 0
    yield "the features beyond rotary_dim set to zero", zeroed


def _of_heads(m: _Model) -> Iterator[tuple[str, Outputs]]:
    right, plain = m.outputs(), _unrotated(m)
    kv, tokens = m.k.shape[1], len(m.k)
    if kv > 1:
        half = right["k"].copy()
        half[:, kv // 2 :] = plain["k"][:, kv // 2 :]
        yield "only the first half of the kv heads rotated", {**right, "k": half}
        first = right["k"].copy()
        first[:, 1:] = plain["k"][:, 1:]
        yield "only the first kv head rotated", {**right, "k": first}
    if tokens:
        skipped = {x: np.concatenate([right[x][:-1], plain[x][-1:]]) for x in right}
        yield "the last token not rotated", skipped
    rolled = {x: np.roll(y, 1, axis=1) for x, y in right.items()}
    yield "heads exchanged", rolled


def _of_rounding(m: _Model) -> Iterator[tuple[str, Outputs]]:
    dtype = FORMATS[m.out]
    for fmt in (FORMATS["bfloat16"], FORMATS["float16"]):
        low = replace(m, cos=fmt.round(m.cos), sin=fmt.round(m.sin))
        yield f"cos and sin rounded to {fmt.name}", low.outputs()
        yield f"cos rounded to {fmt.name}", replace(m, cos=low.cos).outputs()
        yield f"sin rounded to {fmt.name}", replace(m, sin=low.sin).outputs()
        yield f"products rounded to {fmt.name}", replace(m, round=fmt.round).outputs()
        everything = _through(replace(low, round=fmt.round), fmt)
        yield f"cos, sin, products and sum rounded to {fmt.name}", everything
        yield f"the result rounded to {fmt.name} on the way", _through(m, fmt)
    truncated = {x: dtype.truncate(y).astype(dtype.dtype) for x, y in m.unrounded().items()}
    yield "the output truncated instead of rounded", truncated


def _through(m: _Model, fmt: Format) -> Outputs:
    return {x: stored(fmt.round(y), m.out) for x, y in m.unrounded().items()}
