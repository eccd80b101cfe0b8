"""What kernels compute instead of attention: models that do nothing useful, and known mistakes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tightrope.formats import Array, stored
from tightrope.oracles.attention_inputs import stated
from tightrope.oracles.attention_problem import Problem, attend, logits

if TYPE_CHECKING:
    from tightrope.oracles.attention_cases import AttentionCase

Outputs = dict[str, Array]
LN2 = float(np.log(2.0))
BLOCKS = (16, 32, 64, 128)


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


def shaped(case: AttentionCase, p: Problem, out: Array, lse: Array) -> Outputs:
    """out and lse of all groups as a kernel would return them."""
    rows = (case.batch, case.num_heads, case.seqlen_q)
    return {
        "out": stored(out.reshape(*rows, case.head_dim_v), p.out_dtype),
        "lse": stored(lse.reshape(rows), "float32"),
    }


def alternatives(case: AttentionCase, inputs: Mapping[str, Array]) -> Iterator[tuple[str, Outputs]]:
    """(what is computed instead, outputs), the likeliest first; those equal to a right result are
    left out.
    """
    p = stated(case, inputs)
    right = attend(p)
    for mistakes in (_of_masks(case, inputs), _of_options(case, inputs)):
        for sentence, wrong in mistakes:
            yield from _told(case, p, right, sentence, attend(wrong))
    for sentence, outputs in of_softmax(p):
        yield from _told(case, p, right, sentence, outputs)


def _told(
    case: AttentionCase, p: Problem, right: tuple[Array, Array], sentence: str,
    outputs: tuple[Array, Array],
) -> Iterator[tuple[str, Outputs]]:  # fmt: skip
    if any((a != b).any() for a, b in zip(right, outputs, strict=True)):
        yield sentence, shaped(case, p, *outputs)


def _of_masks(case: AttentionCase, inputs: Mapping[str, Array]) -> Iterator[tuple[str, Problem]]:
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


def _of_options(case: AttentionCase, inputs: Mapping[str, Array]) -> Iterator[tuple[str, Problem]]:
    p = stated(case, inputs)
    padded = 1 << (case.head_dim - 1).bit_length()
    yield "no softmax_scale", replace(p, softmax_scale=1.0)
    yield "softmax_scale ignored for head_dim**-0.5", replace(p, softmax_scale=case.head_dim**-0.5)
    yield "the scale of the padded head_dim", replace(p, softmax_scale=padded**-0.5)
    yield "head_dim**-1 as scale", replace(p, softmax_scale=1.0 / case.head_dim)
    if p.softcap is not None:
        yield "no softcap", replace(p, softcap=None)
    if p.bias is not None:
        yield "no bias", replace(p, bias=None)
        yield "bias multiplied by the scale", replace(p, bias=p.bias * p.softmax_scale)
        yield "bias in base 2, not natural", replace(p, bias=p.bias * LN2)
    if p.sink is not None:
        yield "no sink", replace(p, sink=None)
        yield "sink multiplied by the scale", replace(p, sink=p.sink * p.softmax_scale)
        yield "sink in base 2, not natural", replace(p, sink=p.sink * LN2)
    group = case.num_heads // case.num_kv_heads
    if group > 1 and case.num_kv_heads > 1:
        order = np.arange(case.num_heads) % case.num_kv_heads * group
        each = np.arange(case.batch)[:, None] * case.num_heads + order
        yield (
            "kv heads interleaved (h % num_kv_heads), not in blocks",
            replace(p, k=p.k[each.ravel()], v=p.v[each.ravel()]),
        )


def of_softmax(p: Problem) -> Iterator[tuple[str, tuple[Array, Array]]]:
    """Mistakes of the recurrence and of what is returned."""
    out, lse = attend(p)
    yield "lse in base 2", (out, lse / LN2)
    yield "lse without the logarithm of the sum", (out, logits(p).max(axis=-1, initial=-np.inf))
    yield "zeros", (np.zeros_like(out), np.zeros_like(lse))
    keys = p.k.shape[-2]
    for block in BLOCKS:
        if keys <= block:
            break
        if keys % block:
            kept = np.arange(keys) < keys // block * block
            yield f"the last partial block of {block} keys dropped", attend(_only(p, kept))
        blocks = [np.arange(keys) // block == i for i in range(-(-keys // block))]
        parts = [attend(_only(p, kept)) for kept in blocks]
        live = np.stack([np.isfinite(part[1]) for part in parts])
        total = np.sum([part[0] for part in parts], axis=0)
        mean = total / np.maximum(live.sum(axis=0), 1)[..., None]
        yield f"outputs of blocks of {block} keys averaged", (mean, lse)


def _only(p: Problem, keys: Array) -> Problem:
    return replace(p, visible=p.visible & keys)
