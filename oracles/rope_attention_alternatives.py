"""What kernels compute instead of rotated attention: useless models, and known mistakes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tightrope.budget import Budget
from tightrope.formats import FORMATS, Array, stored, widen
from tightrope.oracles import attention_alternatives
from tightrope.oracles.attention_alternatives import null_models
from tightrope.oracles.attention_dots import Scores
from tightrope.oracles.attention_feature_alternatives import Spend, spending
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
    p, spend = right(case, inputs), _spend(case, inputs)
    truth = attend(p)
    with np.errstate(all="ignore"):
        for mistakes in (_of_angles, _of_positions):
            for sentence, wrong in mistakes(case, inputs):
                if attention_alternatives.differ(truth, pair := attend(wrong)):
                    yield sentence, attention_alternatives.mistaken(case, wrong, pair, spend)
        given = _as_attention(case, inputs)
        yield from attention_alternatives.alternatives(case, given, spend)


def fits(
    case: RopeAttentionCase, inputs: Given, outputs: Outputs, budgets: Mapping[str, Budget]
) -> Iterator[tuple[str, Outputs]]:
    """What is found from the lse that was returned: another scale, or other keys."""
    given, spend = _as_attention(case, inputs), _spend(case, inputs)
    yield from attention_alternatives.fits(case, given, outputs, budgets, spend)


def _as_attention(case: RopeAttentionCase, inputs: Given) -> dict[str, Array]:
    """Inputs of a call of `attention` that is the same."""
    rest = {name: inputs[name] for name in ("v", "sink", "q_offset") if name in inputs}
    each = {"q": inputs["q"], "k": finite_keys(case, inputs)}
    return {n: rotated(x, inputs, n, case.interleaved) for n, x in each.items()} | rest


def _spend(case: RopeAttentionCase, inputs: Given) -> Spend:
    """Budgets of mistakes in rotated attention."""

    def found(arithmetic: Mapping[str, Any]) -> Scores:
        from tightrope.oracles.rope_attention_budget import STAGES, rotated_scores  # it imports us

        return rotated_scores(case, inputs, right(case, inputs), {**STAGES, **arithmetic})

    return spending(found)


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
    p, swapped = _with(case, inputs), _with(other, inputs)
    yield "k in the pairs of the other layout", replace(p, k=swapped.k)
    yield "q in the pairs of the other layout", replace(p, q=swapped.q)
    yield "k rotated twice", replace(p, k=_twice(case, inputs, "k"))
    yield "q rotated twice", replace(p, q=_twice(case, inputs, "q"))
    for name in ("bfloat16", "float16"):
        fmt = FORMATS[name]
        low = {n: fmt.round(widen(inputs[n])) for n in ("cos", "sin")}
        yield f"cos and sin rounded to {name}", _with(case, inputs, low)
        for n, x in low.items():
            yield f"{n} rounded to {name}", _with(case, inputs, {n: x})
    yield "softmax_scale of rotary_dim", replace(p, softmax_scale=case.rotary_dim**-0.5)
    if case.head_dim_v >= case.rotary_dim:
        v = np.where(np.isfinite(inputs["v"].astype(np.float64)), inputs["v"], 0)
        turned = rotated(v, inputs, "k", case.interleaved)
        group = case.num_heads // case.num_kv_heads
        yield "v rotated as k is", replace(p, v=np.repeat(turned, group, 1).reshape(p.v.shape))


def _repeated(case: RopeAttentionCase, inputs: Given, name: str, x: Array) -> Array:
    """q or k as the problem has it, kv heads repeated for their query heads."""
    found: Array = getattr(_with(case, inputs), name)
    return np.repeat(x, case.num_heads // x.shape[1], 1).reshape(found.shape)


def _twice(case: RopeAttentionCase, inputs: Given, name: str) -> Array:
    """q or k turned by twice its angles, as the problem has it."""
    x = inputs["q"] if name == "q" else finite_keys(case, inputs)
    once = rotated(x, inputs, name, case.interleaved)
    twice = rotated(once, inputs, name, case.interleaved)
    return _repeated(case, inputs, name, twice)


def _of_positions(case: RopeAttentionCase, inputs: Given) -> Iterator[tuple[str, Problem]]:
    at = {n: inputs[n].astype(np.int64) for n in ("q_positions", "k_positions")}
    last = case.table_rows - 1
    for step, word in ((1, "late"), (-1, "early")):
        for name in at:
            moved = {name: np.clip(at[name] + step, 0, last)}
            yield f"{name} one {word}", _with(case, inputs, moved)
        both = {name: np.clip(x + step, 0, last) for name, x in at.items()}
        yield f"all positions one {word}", _with(case, inputs, both)
    if at["q_positions"].shape == at["k_positions"].shape:
        yield (
            "k turned by the positions of q",
            _with(case, inputs, {"k_positions": at["q_positions"]}),
        )
        yield (
            "q turned by the positions of k",
            _with(case, inputs, {"q_positions": at["k_positions"]}),
        )
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
        for name, x in first.items():
            yield f"the first sequence's {name} for all", _with(case, inputs, {name: x})
    if case.causal:
        q, k = (np.broadcast_to(x, (case.batch, x.shape[-1])) for x in at.values())
        mask = (k[:, None, :] <= q[:, :, None])[:, None]
        yield "positions taken for indices by the mask", _with(case, inputs, mask=mask)
    if case.seqlen_q:
        offsets = offsets_of(case, inputs)
        begin = np.broadcast_to(at["q_positions"][..., 0], (case.batch,))
        for told, from_there in (("for", begin), ("and", offsets + begin)):
            mask = seen(case, from_there)
            yield f"the first position {told} q_offset in the mask", _with(case, inputs, mask=mask)
