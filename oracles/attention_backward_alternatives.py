"""What kernels compute instead of attention's gradients: useless models, and known mistakes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tightrope.formats import Array, stored
from tightrope.oracles.attention_backward_inputs import shapes, stated
from tightrope.oracles.attention_backward_problem import (
    Backward,
    from_ds,
    gradients,
    slope,
    upstream,
    weights,
)

if TYPE_CHECKING:
    from tightrope.oracles.attention_backward_cases import AttentionBackwardCase

Given = Mapping[str, Array]
Outputs = dict[str, Array]
Triple = tuple[Array, Array, Array]
LOG2E = 1 / float(np.log(2.0))
BLOCKS = (16, 32, 64, 128)
ALIKE = ("repeated_keys", "near_ties")  # data whose keys weigh the same


def nulls(case: AttentionBackwardCase, inputs: Given) -> dict[str, Outputs]:
    """Models that no budget should accept: zeros; equal weights, where a row sees several keys that
    are not made to weigh the same; dout of another head, where they are not alike. None where no
    row sees a key, or nothing comes from upstream.
    """
    b = stated(case, inputs)
    right = gradients(b)
    if not any(x.any() for x in right):
        return {}
    count = b.forward.visible.sum(-1, keepdims=True)
    models: dict[str, Any] = {"zeros": [np.zeros_like(x) for x in right]}
    if count.max() > 1 and case.data not in ALIKE:
        equal = b.forward.visible / np.maximum(count, 1)
        models["equal weights"] = from_ds(b, equal, equal * upstream(b) * slope(b.forward))
    models["the next head's dout"] = gradients(replace(b, dout=np.roll(b.dout, 1, axis=0)))
    found = {name: _shaped(case, b, model) for name, model in models.items()}
    once = _shaped(case, b, right)
    return {
        name: model for name, model in found.items()
        if any((model[n] != once[n]).any() for n in once)
    }  # fmt: skip


def _shaped(case: AttentionBackwardCase, b: Backward, found: Any) -> Outputs:
    """dq, dk and dv as a kernel would return them."""
    named = zip(shapes(case).items(), found, strict=True)
    return {name: stored(x.reshape(shape), b.forward.out_dtype) for (name, shape), x in named}


def alternatives(case: AttentionBackwardCase, inputs: Given) -> Iterator[tuple[str, Outputs]]:
    """(what is computed instead, outputs), the likeliest first; those equal to a right result are
    left out.
    """
    b = stated(case, inputs)
    right = gradients(b)
    with np.errstate(all="ignore"):
        for mistakes in (_of_terms(b), _of_masks(case, inputs), _of_heads(b), _of_blocks(b)):
            for sentence, wrong in mistakes:
                if any((x != y).any() for x, y in zip(wrong, right, strict=True)):
                    yield sentence, _shaped(case, b, wrong)


def _of_terms(b: Backward) -> Iterator[tuple[str, Triple]]:
    p, a, g, scale = weights(b), upstream(b), slope(b.forward), b.forward.softmax_scale
    dq, dk, dv = gradients(b)
    without = b.dout @ b.forward.v.swapaxes(-1, -2)
    yield "no rowsum(dout out)", from_ds(b, p, p * without * g)
    yield "dS without P", from_ds(b, p, np.where(b.forward.visible, a, 0.0) * g)
    yield "no softmax_scale", (dq / scale, dk / scale, dv)
    yield "softmax_scale twice", (dq * scale, dk * scale, dv)
    yield "dk without softmax_scale", (dq, dk / scale, dv)
    yield "dq without softmax_scale", (dq / scale, dk, dv)
    if b.forward.softcap is not None:
        yield "no derivative of the softcap", from_ds(b, p, p * a)
        yield "no softcap", gradients(replace(b, forward=replace(b.forward, softcap=None)))
    yield "the natural lse taken for one in base 2", gradients(replace(b, lse=b.lse / LOG2E))
    yield "lse turned to base 2 twice", gradients(replace(b, lse=b.lse * LOG2E))
    yield "dq and dk exchanged in sign", (-dq, -dk, dv)
    yield "zeros", (np.zeros_like(dq), np.zeros_like(dk), np.zeros_like(dv))


def _of_masks(case: AttentionBackwardCase, inputs: Given) -> Iterator[tuple[str, Triple]]:
    """Another mask than the forward pass had: the given lse and out stay."""
    plain = {name: x for name, x in inputs.items() if name != "q_offset"}

    def under(given: Given, **fields: Any) -> Triple:
        return gradients(stated(replace(case, **fields), given))

    if case.causal:
        yield "no causal mask", under(inputs, causal=False)
    for side in ("window_left", "window_right"):
        reach = getattr(case, side)
        if reach is not None:
            yield f"{side} ignored", under(inputs, **{side: None})
            for step, word in ((1, "more"), (-1, "less")):
                yield f"{side} one {word}", under(inputs, **{side: reach + step})
    for offset, name in ((0, "top-left"), (case.seqlen_k - case.seqlen_q, "bottom-right")):
        yield (
            f"the mask aligned {name} (q_offset {offset})",
            under(plain, offsets="int", q_offset=offset),
        )
    for step, word in ((1, "more"), (-1, "less")):
        moved = {n: x + step if n == "q_offset" else x for n, x in inputs.items()}
        yield f"q_offset one {word}", under(moved, q_offset=case.q_offset + step)


def _of_heads(b: Backward) -> Iterator[tuple[str, Triple]]:
    """dk and dv that are not the sum over the query heads of a kv head."""
    if b.group == 1:
        return
    dq = gradients(b)[0]
    head = np.arange(len(b.dout)) % b.group
    for kept, sentence in ((b.group - 1, "last"), (0, "first")):
        only = (head == kept)[:, None, None]
        p = weights(b) * only
        one = from_ds(b, p, p * upstream(b) * slope(b.forward))
        yield f"dk and dv of the {sentence} query head alone", (dq, *one[1:])
    mean = gradients(b)
    yield "dk and dv averaged over query heads", (dq, mean[1] / b.group, mean[2] / b.group)


def _of_blocks(b: Backward) -> Iterator[tuple[str, Triple]]:
    rows, keys = b.forward.visible.shape[1:]
    p, ds = weights(b), weights(b) * upstream(b) * slope(b.forward)
    dq, dk, dv = gradients(b)
    for block in BLOCKS:
        if rows > block and rows % block:
            kept = (np.arange(rows) < rows // block * block)[:, None]
            found = from_ds(b, p * kept, ds * kept)
            yield f"the last partial block of {block} rows dropped", (dq, *found[1:])
        if keys > block and keys % block:
            kept = np.arange(keys) < keys // block * block
            found = from_ds(b, p * kept, ds * kept)
            yield f"the last partial block of {block} keys dropped from dq", (found[0], dk, dv)
            last = kept[:, None]
            yield (
                f"dk and dv of the last partial block of {block} keys 0",
                (dq, dk * last, dv * last),
            )
