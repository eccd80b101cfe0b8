"""What kernels compute instead of packed attention: useless models, and known mistakes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tightrope.formats import Array, stored
from tightrope.oracles.attention_alternatives import null_models, of_softmax
from tightrope.oracles.attention_problem import Problem, attend
from tightrope.oracles.attention_varlen_problems import Part, Span, joined, parts

if TYPE_CHECKING:
    from tightrope.oracles.attention_varlen_cases import AttentionVarlenCase

Outputs = dict[str, Array]
Spans = list[Span]
Again = Callable[..., Spans]


def nulls(case: AttentionVarlenCase, inputs: Mapping[str, Array]) -> dict[str, Outputs]:
    """Models that no budget should accept, each with both outputs."""
    return null_outputs(case, inputs, stated(case, inputs))


def null_outputs(
    case: Any, inputs: Mapping[str, Array], spans: Spans
) -> dict[str, Outputs]:  # fmt: skip
    """The useless models of every problem, put together."""
    found = parts(case, inputs["q"], spans, inputs.get("sink"))
    models = [null_models(part.problem) for part in found]
    common = [name for name in models[0] if all(name in m for m in models)] if models else []
    return {name: shaped(case, inputs, found, [m[name] for m in models]) for name in common}


def shaped(
    case: Any, inputs: Mapping[str, Array], found: Sequence[Part],
    pairs: Sequence[tuple[Array, Array]],
) -> Outputs:  # fmt: skip
    """out and lse as a kernel would return them."""
    dtype = case.dtype if case.out_dtype == "input" else case.out_dtype
    whole = joined(extent(case, inputs), found, pairs)
    return {"out": stored(whole["out"], dtype), "lse": stored(whole["lse"], "float32")}


def extent(case: Any, inputs: Mapping[str, Array]) -> tuple[int, int, int]:
    return (*inputs["q"].shape[:2], case.head_dim_v)


def stated(case: AttentionVarlenCase, inputs: Mapping[str, Array], **changes: Any) -> Spans:
    """The sequences of a call. changes: other cu_seqlens_q, cu_seqlens_k, k, v or q_offset."""
    given = {**inputs, **changes}
    ends_q, ends_k = given["cu_seqlens_q"].tolist(), given["cu_seqlens_k"].tolist()
    last = len(given["k"])
    found = []
    for s in range(len(ends_q) - 1):
        keys = slice(max(ends_k[s], 0), min(ends_k[s + 1], last))
        default = ends_k[s + 1] - ends_k[s] - ends_q[s + 1] + ends_q[s]
        offset = int(given["q_offset"][s]) if "q_offset" in given else default
        rows = slice(ends_q[s], ends_q[s + 1])
        found.append(Span(rows, given["k"][keys], given["v"][keys], offset))
    return found


def alternatives(
    case: AttentionVarlenCase, inputs: Mapping[str, Array]
) -> Iterator[tuple[str, Outputs]]:
    """(what is computed instead, outputs), the likeliest first; those equal to a right result are
    left out.
    """
    spans = stated(case, inputs)
    yield from told(case, inputs, spans, _of_packing(case, inputs, spans))


def _of_packing(
    case: AttentionVarlenCase, inputs: Mapping[str, Array], spans: Spans
) -> Iterator[tuple[str, Spans]]:
    ends = inputs["cu_seqlens_k"].tolist()
    k, v = inputs["k"], inputs["v"]

    def reaching(before: int, after: int) -> Spans:
        found = []
        for i, span in enumerate(spans):
            keys = slice(max(ends[i] - before, 0), ends[i + 1] + after)
            found.append(replace(span, k=k[keys], v=v[keys]))
        return found

    yield "each sequence sees one key of its successor", reaching(0, 1)
    yield "each sequence sees one key of its predecessor", reaching(1, 0)
    yield "each sequence sees all keys after it", reaching(0, len(k))
    yield "each sequence sees the keys of all", reaching(len(k), len(k))
    yield "each sequence lacks its last key", reaching(0, -1)
    queries = inputs["cu_seqlens_q"].tolist()
    if queries != ends:
        yield (
            "cu_seqlens_q used for the keys as well",
            stated(case, inputs, cu_seqlens_k=inputs["cu_seqlens_q"]),
        )
    if len(spans) > 1:
        others = spans[1:] + spans[:1]
        moved = [replace(a, k=b.k, v=b.v) for a, b in zip(spans, others, strict=True)]
        yield "each sequence sees its successor's keys", moved


def told(
    case: Any, inputs: Mapping[str, Array], spans: Spans,
    mistakes: Iterator[tuple[str, Spans]],
) -> Iterator[tuple[str, Outputs]]:  # fmt: skip
    """Mistakes of a contract, then those that every contract with sequences shares."""
    q, sink = inputs["q"], inputs.get("sink")
    found = parts(case, q, spans, sink)
    right = shaped(case, inputs, found, [attend(part.problem) for part in found])

    def differs(outputs: Outputs) -> bool:
        return any((outputs[name] != right[name]).any() for name in right)

    with np.errstate(all="ignore"):
        for sentence, others in mistakes:
            again = parts(case, q, others, sink)
            outputs = shaped(case, inputs, again, [attend(part.problem) for part in again])
            if differs(outputs):
                yield sentence, outputs
        for other, sentence, others in _of_masks(case, spans):
            again = parts(other, q, others, sink)
            outputs = shaped(case, inputs, again, [attend(part.problem) for part in again])
            if differs(outputs):
                yield sentence, outputs
        yield from (
            pair for pair in _of_problems(case, inputs, found) if differs(pair[1])
        )  # fmt: skip


def _of_masks(case: Any, spans: Spans) -> Iterator[tuple[Any, str, Spans]]:
    def at(offset: Callable[[Span], int]) -> Spans:
        return [replace(span, q_offset=offset(span)) for span in spans]

    if case.causal:
        yield replace(case, causal=False), "no causal mask", spans
    yield case, "the mask aligned top-left (q_offset 0)", at(lambda s: 0)
    bottom = at(lambda s: len(s.k) - s.seqlen_q)
    yield case, "the mask aligned bottom-right (q_offset ignored)", bottom
    if spans:
        yield case, "the first sequence's q_offset for all", at(lambda s: spans[0].q_offset)
    for step, word in ((1, "more"), (-1, "less")):
        moved = [replace(span, q_offset=span.q_offset + step) for span in spans]
        yield case, f"q_offset one {word}", moved
        for side in ("window_left", "window_right"):
            reach = getattr(case, side)
            if reach is not None:
                yield replace(case, **{side: reach + step}), f"{side} one {word}", spans
    for side in ("window_left", "window_right"):
        if getattr(case, side) is not None:
            yield replace(case, **{side: None}), f"{side} ignored", spans


def _of_problems(
    case: Any, inputs: Mapping[str, Array], found: Sequence[Part]
) -> Iterator[tuple[str, Outputs]]:
    """Mistakes inside each problem."""

    def outputs(change: Callable[[Problem], Problem]) -> Outputs:
        pairs = [attend(change(part.problem)) for part in found]
        return shaped(case, inputs, found, pairs)

    yield "no softmax_scale", outputs(lambda p: replace(p, softmax_scale=1.0))
    usual = case.head_dim**-0.5
    yield "softmax_scale ignored", outputs(lambda p: replace(p, softmax_scale=usual))
    if case.softcap is not None:
        yield "no softcap", outputs(lambda p: replace(p, softcap=None))
    if case.sink:
        yield "no sink", outputs(lambda p: replace(p, sink=None))
    every = [dict(of_softmax(part.problem)) for part in found]
    for sentence in every[0] if every else ():
        if all(sentence in models for models in every):
            yield sentence, shaped(case, inputs, found, [models[sentence] for models in every])
