"""What kernels compute instead of packed attention's gradients: useless models, known mistakes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tightrope.formats import Array, stored
from tightrope.oracles import attention_backward_alternatives
from tightrope.oracles.attention_backward_inputs import shapes, stated
from tightrope.oracles.attention_backward_problem import gradients
from tightrope.oracles.attention_varlen_backward_inputs import One, sequences, together

if TYPE_CHECKING:
    from tightrope.oracles.attention_varlen_backward_cases import AttentionVarlenBackwardCase

Given = Mapping[str, Array]
Outputs = dict[str, Array]


def nulls(case: AttentionVarlenBackwardCase, inputs: Given) -> dict[str, Outputs]:
    """Models of `attention_backward` in every sequence that has them, right in the others."""
    ones = list(sequences(case, inputs))
    each = [attention_backward_alternatives.nulls(one.case, one.inputs) for one in ones]
    return _merged(case, inputs, ones, each)


def alternatives(case: AttentionVarlenBackwardCase, inputs: Given) -> Iterator[tuple[str, Outputs]]:
    """(what is computed instead, outputs), the likeliest first; those equal to a right result are
    left out.
    """
    ones = list(sequences(case, inputs))
    right = _stored(case, inputs, ones, [_right(one) for one in ones])
    with np.errstate(all="ignore"):
        for sentence, changed, reach in _of_packing(inputs):
            others = list(sequences(case, changed, reach))
            wrong = _stored(case, inputs, others, [_right(one) for one in others])
            if any((wrong[name] != right[name]).any() for name in right):
                yield sentence, wrong
        each = [dict(attention_backward_alternatives.alternatives(one.case, one.inputs))
                for one in ones]  # fmt: skip
        yield from _merged(case, inputs, ones, each).items()


def _of_packing(inputs: Given) -> Iterator[tuple[str, Given, int]]:
    """(mistake, inputs, keys read past a sequence's end)."""
    for reach, keys in ((1, "one key of its successor"), (len(inputs["k"]), "all keys after it")):
        yield f"each sequence sees {keys}", inputs, reach
    lse = inputs["lse"]
    yield "lse read as (tokens, heads)", {**inputs, "lse": lse.T.reshape(lse.shape)}, 0
    back = {name: np.roll(inputs[name], -1, axis=0) for name in ("dout", "out")}
    yield "dout and out of the next token", {**inputs, **back}, 0
    queries = inputs["cu_seqlens_q"]
    if queries[-1] <= len(inputs["k"]) and (queries != inputs["cu_seqlens_k"]).any():
        yield "cu_seqlens_q used for the keys as well", {**inputs, "cu_seqlens_k": queries}, 0
    if "q_offset" in inputs and len(inputs["q_offset"]):
        same = np.full_like(inputs["q_offset"], inputs["q_offset"][0])
        yield "the first sequence's q_offset for all", {**inputs, "q_offset": same}, 0


def _right(one: One) -> Outputs:
    found = gradients(stated(one.case, one.inputs))
    named = zip(shapes(one.case).items(), found, strict=True)
    return {name: x.reshape(shape) for (name, shape), x in named}


def _stored(
    case: AttentionVarlenBackwardCase, inputs: Given, ones: list[One], each: list[Any]
) -> Outputs:
    """The outputs of all sequences as a kernel would return them."""
    dtype = case.dtype if case.out_dtype == "input" else case.out_dtype
    names = ("dq", "dk", "dv")
    return {name: stored(together(inputs, ones, each, name), dtype) for name in names}


def _merged(
    case: AttentionVarlenBackwardCase, inputs: Given, ones: list[One],
    each: list[dict[str, Outputs]],
) -> dict[str, Outputs]:  # fmt: skip
    """What is known of some sequences, named alike, beside right gradients of the others."""
    if not any(each):
        return {}
    right = [_right(one) for one in ones]
    found = {}
    for sentence in dict.fromkeys(name for models in each for name in models):
        chosen = [models.get(sentence, known) for models, known in zip(each, right, strict=True)]
        found[sentence] = _stored(case, inputs, ones, chosen)
    return found
