"""What kernels compute instead of polar attention's gradients: useless models, known mistakes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tightrope.formats import Array, stored
from tightrope.oracles.attention_backward_alternatives import ALIKE
from tightrope.oracles.attention_backward_inputs import shapes
from tightrope.oracles.attention_backward_problem import slope, upstream, weights
from tightrope.oracles.pope_attention_alternatives import of_magnitudes, of_the_rest
from tightrope.oracles.pope_attention_angle_alternatives import of_angles, of_delta, of_positions
from tightrope.oracles.pope_attention_backward_problem import (
    Turned,
    gradients,
    moved,
    phases,
    sigmoid,
    turning,
)
from tightrope.oracles.pope_attention_points import Points
from tightrope.oracles.pope_attention_problem import softplus

if TYPE_CHECKING:
    from tightrope.oracles.pope_attention_backward_cases import PopeAttentionBackwardCase

Given = Mapping[str, Array]
Outputs = dict[str, Array]
Told = Iterator[tuple[str, Outputs]]
# of points, too small to tell from other roundings of gradients
SLIGHT = ("cos and sin rounded", "ln(1 + e^x) with the sum")


def nulls(case: PopeAttentionBackwardCase, inputs: Given) -> dict[str, Outputs]:
    """Models that no budget should accept: zeros; equal weights, where a row sees several keys that
    are not made to weigh the same; dout of another head; positions ignored. Each where it differs.
    """
    t = Turned.of(case, inputs)
    right = gradients(t)
    if not any(x.any() for x in right.values()):
        return {}
    count = t.b.forward.visible.sum(-1, keepdims=True)
    models = {"zeros": {name: np.zeros_like(x) for name, x in right.items()}}
    if count.max() > 1 and case.data not in ALIKE:
        equal = t.b.forward.visible / np.maximum(count, 1)
        models["equal weights"] = gradients(t, (equal, equal * upstream(t.b) * slope(t.b.forward)))
    models["the next head's dout"] = gradients(moved(t, dout=np.roll(t.b.dout, 1, axis=0)))
    still = Points.of(case, inputs).still("inv_freq")  # type: ignore[arg-type]
    with np.errstate(all="ignore"):  # under the lse of others P may be beyond every number
        models["positions ignored"] = gradients(Turned.of(case, inputs, still.q, still.k))
        found = {name: _shaped(case, model) for name, model in models.items()}
    once = _shaped(case, right)
    return {
        name: model for name, model in found.items()
        if any((model[n] != once[n]).any() for n in once)
    }  # fmt: skip


def _shaped(case: PopeAttentionBackwardCase, found: Mapping[str, Array]) -> Outputs:
    """As a kernel would return them; of more keys than there are, those that are."""
    dtype = case.dtype if case.out_dtype == "input" else case.out_dtype
    kept = {}
    for name, shape in shapes(case).items():  # type: ignore[arg-type]
        kept[name] = stored(found[name][:, :, : shape[2]], dtype)
    return {**kept, "ddelta": stored(found["ddelta"], "float32")}


def alternatives(case: PopeAttentionBackwardCase, inputs: Given) -> Told:
    """(what is computed instead, outputs), the likeliest first; those equal to a right result are
    left out.
    """
    t = Turned.of(case, inputs)
    right = _shaped(case, gradients(t))
    with np.errstate(all="ignore"):
        for mistakes in (
            _of_terms(t), _of_features(t), _of_phases(t), _of_masks(case, inputs), _of_heads(t),
            _of_points(case, inputs),
        ):  # fmt: skip
            for sentence, wrong in mistakes:
                outputs = _shaped(case, wrong)
                if any((outputs[name] != right[name]).any() for name in right):
                    yield sentence, outputs


def _of_terms(t: Turned) -> Told:
    right, scale = gradients(t), t.b.forward.softmax_scale
    p, a, g = weights(t.b), upstream(t.b), slope(t.b.forward)
    without = t.b.dout @ t.b.forward.v.swapaxes(-1, -2)
    yield "no rowsum(dout out)", gradients(t, (p, p * without * g))
    yield "dS without P", gradients(t, (p, np.where(t.b.forward.visible, a, 0.0) * g))

    def scaled(factor: float, *names: str) -> Outputs:
        return {n: x * factor if n in names else x for n, x in right.items()}

    every = "dq", "dk", "ddelta"
    yield "no softmax_scale", scaled(1 / scale, *every)
    yield "softmax_scale twice", scaled(scale, *every)
    for name in every:
        yield f"{name} without softmax_scale", scaled(1 / scale, name)
    if t.b.forward.softcap is not None:
        yield "no derivative of the softcap", gradients(t, (p, p * a))
    base = 1 / float(np.log(2.0))
    yield "the natural lse taken for one in base 2", gradients(moved(t, lse=t.b.lse / base))
    yield "lse turned to base 2 twice", gradients(moved(t, lse=t.b.lse * base))
    yield "zeros", scaled(0.0, *right)


def _of_features(t: Turned) -> Told:
    """From gradients of points to those of features."""
    yield "no sigmoid, the derivative of softplus", gradients(t, derivative=np.ones_like)
    yield "relu's derivative for sigmoid", gradients(t, derivative=lambda x: (x > 0) * 1.0)
    yield "softplus for its derivative", gradients(t, derivative=softplus)
    yield "sigmoid(-x) for sigmoid(x)", gradients(t, derivative=lambda x: sigmoid(-x))

    def again(part: str, sign: float) -> Outputs:
        """The right P and dS, and another table on the way back."""
        q, k = (replace(x, **{part: sign * getattr(x, part)}) for x in (t.q, t.k))
        return gradients(replace(t, q=q, k=k))

    yield "the imaginary parts' (sin) gradient left out", again("sin", 0.0)
    yield "the real parts' (cos) gradient left out", again("cos", 0.0)
    yield "the imaginary parts' (sin) gradient negated", again("sin", -1.0)


def _of_phases(t: Turned) -> Told:
    """Of ddelta alone."""
    if not t.shared:
        return
    right, e_k = gradients(t), t.points(*t.ds())[1]
    each = turning(t.k, e_k)
    group = each.shape[1] // t.shared
    last = (np.arange(each.shape[1]) % group == group - 1)[:, None, None]

    def instead(turned: Array) -> Outputs:
        return {**right, "ddelta": phases(turned, t.shared)}

    yield "ddelta negated", instead(-each)
    yield "ddelta without magnitudes", instead(each / np.where(t.k.mu == 0, 1.0, t.k.mu))
    yield "ddelta of the first sequence alone", instead(each[:1])
    yield "ddelta of the last sequence alone", instead(each[-1:])
    yield "ddelta averaged over sequences", instead(each / max(len(each), 1))
    yield "ddelta of the last query head alone", instead(each * last)
    yield "ddelta averaged over query heads", instead(each / group)
    yield "ddelta of the last key alone", instead(each[:, :, -1:])


def _of_masks(case: PopeAttentionBackwardCase, inputs: Given) -> Told:
    """Another mask than the forward pass had: the given lse and out stay."""
    fields: dict[str, dict[str, Any]] = {"no causal mask": {"causal": False}}
    fields |= {f"{side} ignored": {side: None} for side in ("window_left", "window_right")}
    reach = {side: getattr(case, side) for side in ("window_left", "window_right")}
    for step, word in ((1, "more"), (-1, "less")):
        fields |= {f"{n} one {word}": {n: x + step} for n, x in reach.items() if x is not None}
        fields[f"q_offset one {word}"] = {"q_offset": case.q_offset + step}
    for sentence, changed in fields.items():
        step = changed.get("q_offset", case.q_offset) - case.q_offset
        given = {n: x + step if n == "q_offset" else x for n, x in inputs.items()}
        yield sentence, gradients(Turned.of(replace(case, **changed), given))


def _of_heads(t: Turned) -> Told:
    """dk and dv that are not the sum over the query heads of a kv head."""
    if t.group == 1:
        return
    right, (p, ds) = gradients(t), t.ds()
    head = np.arange(len(p)) % t.group
    for kept, sentence in ((t.group - 1, "last"), (0, "first")):
        only = (head == kept)[:, None, None]
        one = gradients(t, (p * only, ds * only))
        found = {**right, "dk": one["dk"], "dv": one["dv"]}
        yield f"dk and dv of the {sentence} query head alone", found
    mean = {name: right[name] / t.group for name in ("dk", "dv")}
    yield "dk and dv averaged over query heads", {**right, **mean}


def _of_points(case: PopeAttentionBackwardCase, inputs: Given) -> Told:
    """Mistakes of the forward pass in the points, whose lse and out stay."""
    points, shared = Points.of(case, inputs), len(inputs.get("delta", ()))  # type: ignore[arg-type]
    for mistakes in (of_the_rest, of_positions, of_delta, of_angles, of_magnitudes):
        for sentence, wrong in mistakes(points):
            if sentence.startswith(SLIGHT):
                continue
            t = Turned.of(wrong.case, wrong.given, wrong.q, wrong.k)  # type: ignore[arg-type]
            if wrong.mask is not None:
                heads = (case.batch, case.num_heads, *wrong.mask.shape[2:])
                seen = np.broadcast_to(wrong.mask, heads).reshape(t.b.forward.visible.shape)
                t = moved(t, forward=replace(t.b.forward, visible=seen))
            yield sentence, gradients(replace(t, shared=shared))
