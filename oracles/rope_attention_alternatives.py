"""What kernels compute instead of rotated attention: useless models, and known mistakes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tightrope.formats import Array, stored, widen
from tightrope.oracles.attention_alternatives import null_models, of_softmax
from tightrope.oracles.attention_inputs import seen
from tightrope.oracles.attention_problem import Problem, attend
from tightrope.oracles.rope_attention_inputs import finite_keys, offsets_of, rotated, stated

if TYPE_CHECKING:
    from tightrope.oracles.rope_attention_cases import RopeAttentionCase

Outputs = dict[str, Array]
Given = Mapping[str, Array]


def right(case: RopeAttentionCase, inputs: Given) -> Problem:
    """The call as one problem, q and k rotated in float64."""
    return _with(case, inputs)


def nulls(case: RopeAttentionCase, inputs: Given) -> dict[str, Outputs]:
    """Models that no budget should accept, each with both outputs."""
    p = right(case, inputs)
    models = null_models(p)
    same = _with(case, inputs, turn_q=False, turn_k=False)
    turned = any((a != b).any() for a, b in ((same.q, p.q), (same.k, p.k)))
    if turned and p.visible.any():
        models["nothing rotated"] = attend(same)
    return {name: _shaped(case, p, *pair) for name, pair in models.items()}


def alternatives(case: RopeAttentionCase, inputs: Given) -> Iterator[tuple[str, Outputs]]:
    """(what is computed instead, outputs), the likeliest first; those equal to a right result are
    left out.
    """
    p = right(case, inputs)
    truth = _shaped(case, p, *attend(p))

    def told(sentence: str, pair: tuple[Array, Array]) -> Iterator[tuple[str, Outputs]]:
        outputs = _shaped(case, p, *pair)
        if any((outputs[name] != truth[name]).any() for name in truth):
            yield sentence, outputs

    with np.errstate(all="ignore"):
        for mistakes in (_of_angles, _of_positions, _of_masks):
            for sentence, wrong in mistakes(case, inputs):
                yield from told(sentence, attend(wrong))
        for sentence, pair in of_softmax(p):
            yield from told(sentence, pair)


def _shaped(case: RopeAttentionCase, p: Problem, out: Array, lse: Array) -> Outputs:
    rows = (case.batch, case.num_heads, case.seqlen_q)
    return {
        "out": stored(out.reshape(*rows, case.head_dim_v), p.out_dtype),
        "lse": stored(lse.reshape(rows), "float32"),
    }


def _with(
    case: RopeAttentionCase, inputs: Given, changes: Given | None = None, *,
    turn_q: bool = True, turn_k: bool = True, mask: Array | None = None,
) -> Problem:  # fmt: skip
    """The problem with parts replaced: changes are inputs, or sin_q, sin_k for one tensor."""
    given = {**inputs, **(changes or {})}
    q, k = given["q"], finite_keys(case, given)
    by = {n: {**given, "sin": given.get(f"sin_{n}", given["sin"])} for n in ("q", "k")}
    q = rotated(q, by["q"], "q", case.interleaved) if turn_q else widen(q)
    k = rotated(k, by["k"], "k", case.interleaved) if turn_k else widen(k)
    return stated(case, given, q, k, mask)


def _of_angles(case: RopeAttentionCase, inputs: Given) -> Iterator[tuple[str, Problem]]:
    cos, sin = inputs["cos"], inputs["sin"]
    yield "q rotated, k not", _with(case, inputs, turn_k=False)
    yield "k rotated, q not", _with(case, inputs, turn_q=False)
    yield "nothing rotated", _with(case, inputs, turn_q=False, turn_k=False)
    yield "rotations by the opposite angle (sign of sin)", _with(case, inputs, {"sin": -sin})
    yield "q rotated by the opposite angle", _with(case, inputs, {"sin_q": -sin})
    yield "k rotated by the opposite angle", _with(case, inputs, {"sin_k": -sin})
    yield "cos and sin exchanged", _with(case, inputs, {"cos": sin, "sin": cos})
    other = replace(case, interleaved=not case.interleaved)
    yield "the pairs of the other layout (interleaved)", _with(other, inputs)
    if case.head_dim_v >= case.rotary_dim:
        p = _with(case, inputs)
        v = np.where(np.isfinite(inputs["v"].astype(np.float64)), inputs["v"], 0)
        turned = rotated(v, inputs, "k", case.interleaved)
        group = case.num_heads // case.num_kv_heads
        yield "v rotated as k is", replace(p, v=np.repeat(turned, group, 1).reshape(p.v.shape))


def _of_positions(case: RopeAttentionCase, inputs: Given) -> Iterator[tuple[str, Problem]]:
    at = {n: inputs[n].astype(np.int64) for n in ("q_positions", "k_positions")}
    last = case.table_rows - 1
    for step, word in ((1, "late"), (-1, "early")):
        for name in at:
            moved = {name: np.clip(at[name] + step, 0, last)}
            yield f"{name} one {word}", _with(case, inputs, moved)
    indices = {
        "q_positions": np.clip(np.arange(case.seqlen_q) + case.q_offset, 0, last),
        "k_positions": np.minimum(np.arange(case.seqlen_k), last),
    }
    yield "indices taken for positions", _with(case, inputs, indices)
    counted = {**indices, "q_positions": np.minimum(np.arange(case.seqlen_q), last)}
    yield "q's positions counted from 0", _with(case, inputs, counted)
    if at["q_positions"].ndim == 2 and case.batch > 1:
        first = {name: x[:1] for name, x in at.items()}
        yield "the first sequence's positions for all", _with(case, inputs, first)
    if case.causal:
        q, k = (np.broadcast_to(x, (case.batch, x.shape[-1])) for x in at.values())
        mask = (k[:, None, :] <= q[:, :, None])[:, None]
        yield "positions taken for indices by the mask", _with(case, inputs, mask=mask)


def _of_masks(case: RopeAttentionCase, inputs: Given) -> Iterator[tuple[str, Problem]]:
    offsets = offsets_of(case, inputs)

    def instead(other: RopeAttentionCase, moved: Array) -> Problem:
        return _with(case, inputs, mask=seen(other, moved))

    if case.causal:
        yield "no causal mask", instead(replace(case, causal=False), offsets)
    for offset, name in ((0, "top-left"), (case.seqlen_k - case.seqlen_q, "bottom-right")):
        yield f"the mask aligned {name}", instead(case, np.full(case.batch, offset))
    for step, word in ((1, "more"), (-1, "less")):
        yield f"q_offset one {word}", instead(case, offsets + step)
        for side in ("window_left", "window_right"):
            reach = getattr(case, side)
            if reach is not None:
                other = replace(case, **{side: reach + step})
                yield f"{side} one {word}", instead(other, offsets)
    p = _with(case, inputs)
    yield "no softmax_scale", replace(p, softmax_scale=1.0)
    yield "softmax_scale of rotary_dim", replace(p, softmax_scale=case.rotary_dim**-0.5)
    if p.softcap is not None:
        yield "no softcap", replace(p, softcap=None)
    if p.sink is not None:
        yield "no sink", replace(p, sink=None)
