"""What kernels compute instead of attention's gradients: useless models, and known mistakes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tightrope.budget import Budget
from tightrope.diagnosis import Mistake
from tightrope.formats import Array, stored
from tightrope.oracles.attention_backward_budget import backward
from tightrope.oracles.attention_backward_call_alternatives import of_calls
from tightrope.oracles.attention_backward_inputs import shapes, stated
from tightrope.oracles.attention_backward_problem import (
    Backward,
    from_ds,
    gradients,
    slope,
    upstream,
    weights,
)
from tightrope.oracles.attention_backward_tile_alternatives import of_tiles

if TYPE_CHECKING:
    from tightrope.oracles.attention_backward_cases import AttentionBackwardCase

Given = Mapping[str, Array]
Outputs = dict[str, Array]
Triple = tuple[Array, Array, Array]
LOG2E = 1 / float(np.log(2.0))
BLOCKS = (16, 32, 64, 128)
NAMES = ("dq", "dk", "dv")
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
    right = dict(zip(NAMES, gradients(b), strict=True))
    with np.errstate(all="ignore"):
        for sentence, of_dq, of_keys in of_calls(case, inputs, b):
            other = {"dq": of_dq, "dk": of_keys, "dv": of_keys}
            found = {id(x): gradients(x) for x in (b, of_dq, of_keys)}
            wrong = [found[id(other[name])][at] for at, name in enumerate(NAMES)]
            if any((x != y).any() for x, y in zip(wrong, right.values(), strict=True)):
                yield sentence, _mistaken(case, b, other, wrong)
        for mistakes in (_of_terms(b), _of_heads(case, b), _of_blocks(b), of_tiles(b)):
            for sentence, triple in mistakes:
                if any((x != y).any() for x, y in zip(triple, right.values(), strict=True)):
                    yield sentence, _shaped(case, b, triple)


def _mistaken(
    case: AttentionBackwardCase, b: Backward, other: Mapping[str, Backward], outputs: Any
) -> Mistake:
    """Gradients that are those of other calls, by name."""

    def budgets(arithmetic: Mapping[str, Any]) -> dict[str, Budget]:
        each = {id(x): backward(x, arithmetic) for x in other.values()}
        found = {name: each[id(x)][name] for name, x in other.items()}
        return {name: found[name].reshape(shape) for name, shape in shapes(case).items()}

    return Mistake(_shaped(case, b, outputs), budgets)


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


def _of_heads(case: AttentionBackwardCase, b: Backward) -> Iterator[tuple[str, Triple]]:
    """dk and dv that are not the sum over the query heads of a kv head."""
    yield "query heads from h % group on, not those of the kv head", _other_group(case, b)
    if b.group == 1:
        return
    dq = gradients(b)[0]
    head = np.arange(len(b.dout)) % b.group
    for kept, sentence in ((b.group - 1, "last"), (0, "first")):
        only = (head == kept)[:, None, None]
        p = weights(b) * only
        one = from_ds(b, p, p * upstream(b) * slope(b.forward))
        yield f"dk and dv of the {sentence} query head alone", (dq, *one[1:])
        rest = from_ds(b, weights(b) - p, (weights(b) - p) * upstream(b) * slope(b.forward))
        yield f"dk and dv without the {sentence} query head", (dq, *rest[1:])
    mean = gradients(b)
    yield "dk and dv averaged over query heads", (dq, mean[1] / b.group, mean[2] / b.group)


def _other_group(case: AttentionBackwardCase, b: Backward) -> Triple:
    """dq of kv head 0 alone, dk and dv of the query heads h % group and following."""
    sequence, head = np.divmod(np.arange(len(b.dout)), max(case.num_heads, 1))
    begin, f = sequence * case.num_heads, b.forward
    walked = begin + np.minimum(head // b.group % b.group + head % b.group, case.num_heads - 1)
    dq = gradients(replace(b, forward=replace(f, k=f.k[begin], v=f.v[begin])))[0]
    of = replace(f, q=f.q[walked], visible=f.visible[walked])
    given = {n: getattr(b, n)[walked] for n in ("dout", "out", "lse")}
    return (dq, *gradients(replace(b, forward=of, **given))[1:])


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
