"""What kernels compute instead of attention: models that do nothing useful, and known mistakes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from tightrope.budget import Budget
from tightrope.diagnosis import Mistake
from tightrope.formats import Array, stored, widen
from tightrope.oracles.attention_budget import STAGES, Forward, forward
from tightrope.oracles.attention_fitted_alternatives import emptied, other_keys, scaled, slack
from tightrope.oracles.attention_inputs import stated
from tightrope.oracles.attention_problem import Problem, attend
from tightrope.oracles.attention_softmax_alternatives import LN2, of_softmax

if TYPE_CHECKING:
    from tightrope.oracles.attention_cases import AttentionCase

Outputs = dict[str, Array]
Spend = Callable[[Problem, Mapping[str, Any]], Forward]


def plainly(p: Problem, arithmetic: Mapping[str, Any]) -> Forward:
    """Budgets of a problem under attention's own stages."""
    return forward(p, {name: arithmetic[name] for name in STAGES if name in arithmetic})


def nulls(case: AttentionCase, inputs: Mapping[str, Array]) -> dict[str, Outputs]:
    """Models that no budget should accept, each with both outputs."""
    p = stated(case, inputs)
    found = null_models(p)
    return {name: shaped(case, p, *outputs) for name, outputs in found.items()}


def null_models(p: Problem) -> dict[str, tuple[Array, Array]]:
    """name -> (out, lse): zeros, the mean of v over visible keys, heads exchanged.

    None where no row sees a key: then 0 and -inf, or the sink, are all that is asked for.
    """
    if not p.visible.any():
        return {}
    out, lse = attend(p)
    count = p.visible.sum(axis=-1)
    mean = p.visible @ p.v / np.maximum(count, 1)[..., None]
    with np.errstate(divide="ignore"):
        models = {
            "zeros": (np.zeros_like(out), np.zeros_like(lse)),
            "mean of v": (mean, np.log(count.astype(np.float64))),
        }
    swapped = np.roll(out, 1, axis=0), np.roll(lse, 1, axis=0)
    if any((a != b).any() for a, b in zip(swapped, (out, lse), strict=True)):
        models["heads exchanged"] = swapped
    return models


def shaped(case: Any, p: Problem, out: Array, lse: Array) -> Outputs:
    """out and lse of all groups as a kernel would return them."""
    rows = (case.batch, case.num_heads, case.seqlen_q)
    return {
        "out": stored(out.reshape(*rows, case.head_dim_v), p.out_dtype),
        "lse": stored(lse.reshape(rows), "float32"),
    }


def alternatives(
    case: Any, inputs: Mapping[str, Array], spend: Spend = plainly
) -> Iterator[tuple[str, Outputs]]:
    """(what is computed instead, outputs), the likeliest first; those equal to a right result are
    left out. spend: the budgets of a problem, where its scores come from elsewhere.
    """
    p = stated(case, inputs)
    right = attend(p)
    for mistakes in (of_masks(case, inputs), of_options(case, p), of_heads(case, p)):
        for sentence, wrong in mistakes:
            if differ(right, outputs := attend(wrong)):
                yield sentence, mistaken(case, wrong, outputs, spend)
    for sentence, outputs in of_softmax(p):
        if differ(right, outputs):
            yield sentence, shaped(case, p, *outputs)


def fits(
    case: Any, inputs: Mapping[str, Array], outputs: Mapping[str, Array],
    budgets: Mapping[str, Budget], spend: Spend = plainly,
) -> Iterator[tuple[str, Outputs]]:  # fmt: skip
    """Another scale, or other keys, as the lse that was returned tells them."""
    if not {"out", "lse"} <= set(outputs):
        return
    p = stated(case, inputs)
    lse = widen(outputs["lse"]).reshape(p.visible.shape[:2])
    off = slack(budgets["lse"]).reshape(lse.shape)
    out = widen(outputs["out"]).reshape(*lse.shape, case.head_dim_v)
    whole = stated(replace(case, causal=False, window_left=None, window_right=None), inputs)
    read = [replace(whole, k=p.k, v=p.v)]
    if np.isfinite(whole.k).all() and np.isfinite(whole.v).all():
        read.append(whole)
    found = [scaled(p, lse), *(other_keys(p, every, out, lse, off) for every in read)]
    for sentence, wrong in chain.from_iterable(found):
        yield sentence, mistaken(case, wrong, attend(wrong), spend)
    for every in read:
        for sentence, pair in emptied(p, every, out, lse):
            yield sentence, shaped(case, p, *pair)


def differ(right: tuple[Array, Array], outputs: tuple[Array, Array]) -> bool:
    """Whether a mistake can be seen at all."""
    return any((a != b).any() for a, b in zip(right, outputs, strict=True))


def mistaken(
    case: Any, p: Problem, outputs: tuple[Array, Array], spend: Spend = plainly
) -> Mistake:
    """Another problem's outputs, with the budgets that a promise has of that problem."""
    rows = (case.batch, case.num_heads, case.seqlen_q)

    def budgets(arithmetic: Mapping[str, Any]) -> dict[str, Budget]:
        spent = spend(p, arithmetic)
        return {
            "out": spent.out.reshape((*rows, case.head_dim_v)),
            "lse": spent.lse.reshape(rows),
        }

    return Mistake(shaped(case, p, *outputs), budgets)


def of_masks(case: Any, inputs: Mapping[str, Array]) -> Iterator[tuple[str, Problem]]:
    """Other masks, over the keys that lie there; and over zeros where no row may see them."""
    p = stated(case, inputs)
    for sentence, wrong in _of_masks(case, inputs):
        yield sentence, wrong
        if (wrong.k != p.k).any() or (wrong.v != p.v).any():
            unread = replace(p, visible=wrong.visible, bias=wrong.bias)
            yield f"{sentence}, keys that no row may see counting as 0", unread


def _of_masks(case: Any, inputs: Mapping[str, Array]) -> Iterator[tuple[str, Problem]]:
    def instead(sentence: str, **fields: Any) -> tuple[str, Problem]:
        return sentence, stated(replace(case, **fields), inputs)

    plain = {name: array for name, array in inputs.items() if name != "q_offset"}
    if case.causal:
        yield instead("no causal mask", causal=False)
    if case.offsets == "tensor" and case.batch > 1:
        first = replace(case, offsets="int", q_offset=int(inputs["q_offset"][0]))
        yield "the first sequence's q_offset for all", stated(first, plain)
    for offset, name in ((0, "top-left"), (case.seqlen_k - case.seqlen_q, "bottom-right")):
        aligned = stated(replace(case, q_offset=offset), plain)
        yield f"the mask aligned {name} (q_offset {offset})", aligned
    for step, word in ((1, "more"), (-1, "less")):
        shifted = dict(inputs)
        if "q_offset" in shifted:
            shifted["q_offset"] = shifted["q_offset"] + step
        moved = replace(case, q_offset=case.q_offset + step)
        yield f"q_offset one {word}", stated(moved, shifted)
        for side in ("window_left", "window_right"):
            reach = getattr(case, side)
            if reach is not None:
                yield instead(f"{side} one {word}", **{side: reach + step})
    for side in ("window_left", "window_right"):
        if getattr(case, side) is not None:
            yield instead(f"{side} ignored", **{side: None})


def of_options(case: Any, p: Problem) -> Iterator[tuple[str, Problem]]:
    """Other scales, caps, biases and sinks."""
    padded, s = 1 << (case.head_dim - 1).bit_length(), p.softmax_scale
    yield "no softmax_scale", replace(p, softmax_scale=1.0)
    yield "softmax_scale ignored for head_dim**-0.5", replace(p, softmax_scale=case.head_dim**-0.5)
    yield "the scale of the padded head_dim", replace(p, softmax_scale=padded**-0.5)
    yield "the scale of head_dim_v", replace(p, softmax_scale=case.head_dim_v**-0.5)
    yield "head_dim**-1 as scale", replace(p, softmax_scale=1.0 / case.head_dim)
    yield "softmax_scale in base 2, not natural", replace(p, softmax_scale=s * LN2)
    yield "softmax_scale twice", replace(p, softmax_scale=s * s)
    if p.softcap is not None:
        cap = p.softcap
        yield "no softcap", replace(p, softcap=None)
        yield "the hyperbolic tangent, not multiplied by softcap", _tanh(p, s / cap)
        yield "logits not divided by softcap", _tanh(p, s, cap)
        yield "half the logit in the softcap", _tanh(p, s / (2 * cap), cap)
    if p.bias is not None:
        yield "no bias", replace(p, bias=None)
        yield "bias multiplied by the scale", replace(p, bias=p.bias * s)
        yield "bias in base 2, not natural", replace(p, bias=p.bias * LN2)
    if p.sink is not None:
        yield "no sink", replace(p, sink=None)
        yield "sink multiplied by the scale", replace(p, sink=p.sink * s)
        yield "sink in base 2, not natural", replace(p, sink=p.sink * LN2)


def _tanh(p: Problem, factor: float, cap: float = 1.0) -> Problem:
    """Logits cap * tanh(factor q.k): the cap of a problem whose v and bias stay, in base cap."""
    return replace(p, softmax_scale=factor * cap, softcap=cap)


def of_heads(case: Any, p: Problem) -> Iterator[tuple[str, Problem]]:
    """Keys, biases and sinks of another head than a query head's own."""
    head = np.arange(case.num_heads)
    group = case.num_heads // case.num_kv_heads

    def at(order: Array, of: tuple[str, ...]) -> Problem:
        each = (np.arange(case.batch)[:, None] * case.num_heads + order).ravel()
        return replace(p, **{name: getattr(p, name)[each] for name in of})

    if group > 1 and case.num_kv_heads > 1:
        order = head % case.num_kv_heads * group
        yield "kv heads interleaved (h % num_kv_heads), not in blocks", at(order, ("k", "v"))
    if case.num_kv_heads > 1:
        yield "the first kv head for all", at(0 * head, ("k", "v"))
        yield "v of the first kv head for all", at(0 * head, ("v",))
        yield "v taken from the next kv head", at((head + group) % case.num_heads, ("v",))
    for name in ("bias", "sink"):
        if getattr(p, name) is not None and case.num_heads > 1:
            yield f"the {name} of the kv head, not the query head", at(head // group, (name,))
            yield f"the {name} of the first head for all", at(0 * head, (name,))
            first = head // group * group
            yield f"the {name} of a group's first head for the group", at(first, (name,))
