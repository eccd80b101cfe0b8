"""Known mistakes of every attention with sequences of its own, packed or paged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from types import SimpleNamespace
from typing import Any

import numpy as np

from tightrope.budget import Budget
from tightrope.diagnosis import Mistake
from tightrope.formats import Array, stored, widen
from tightrope.oracles.attention_alternatives import of_heads, of_options
from tightrope.oracles.attention_budget import forward
from tightrope.oracles.attention_fitted_alternatives import other_keys, scaled, slack
from tightrope.oracles.attention_problem import Problem, attend
from tightrope.oracles.attention_softmax_alternatives import of_softmax
from tightrope.oracles.attention_varlen_problems import Part, Span, joined, parts
from tightrope.oracles.attention_varlen_problems import budgets as together

Outputs = dict[str, Array]
Spans = list[Span]


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


def told(
    case: Any, inputs: Mapping[str, Array], spans: Spans,
    mistakes: Iterator[tuple[str, Spans]],
) -> Iterator[tuple[str, Outputs]]:  # fmt: skip
    """Mistakes of a contract, then those that every contract with sequences shares."""
    q, sink = inputs["q"], inputs.get("sink")
    found = parts(case, q, spans, sink)
    right = shaped(case, inputs, found, [attend(part.problem) for part in found])
    with np.errstate(all="ignore"):
        for other, sentence, others in chain(
            ((case, sentence, others) for sentence, others in mistakes), _of_masks(case, spans)
        ):
            again = parts(other, q, others, sink)
            if differs(outputs := mistaken(case, inputs, again), right):
                yield sentence, outputs
            unread = _unread(again, found)
            if unread and differs(outputs := mistaken(case, inputs, unread), right):
                yield f"{sentence}, keys that no row may see counting as 0", outputs
        for sentence, wrong in _of_problems(case, inputs, found):
            if differs(wrong, right):
                yield sentence, wrong


def differs(outputs: Outputs, right: Outputs) -> bool:
    """Whether a mistake can be seen at all."""
    return any((outputs[name] != right[name]).any() for name in right)


def mistaken(case: Any, inputs: Mapping[str, Array], found: Sequence[Part]) -> Mistake:
    """Other problems' outputs, with the budgets that a promise has of them."""
    dtype = case.dtype if case.out_dtype == "input" else case.out_dtype

    def spent(arithmetic: Mapping[str, Any]) -> dict[str, Budget]:
        each = [forward(part.problem, arithmetic) for part in found]
        return together(extent(case, inputs), found, each, dtype)

    return Mistake(
        shaped(case, inputs, found, [attend(part.problem) for part in found]), spent
    )  # fmt: skip


def _unread(again: Sequence[Part], found: Sequence[Part]) -> list[Part]:
    """Other masks of the same keys, with 0 in those that no row may see; [] for other keys."""
    pairs = [(a.problem, b.problem) for a, b in zip(again, found, strict=False)]
    same = len(again) == len(found) and all(a.k.shape == b.k.shape for a, b in pairs)
    if not same or all((a.k == b.k).all() and (a.v == b.v).all() for a, b in pairs):
        return []
    return [
        Part(b.spans, replace(b.problem, visible=a.problem.visible))
        for a, b in zip(again, found, strict=True)
    ]


def fitted(
    case: Any, inputs: Mapping[str, Array], spans: Spans, outputs: Mapping[str, Array],
    budgets: Mapping[str, Budget],
) -> Iterator[tuple[str, Outputs]]:  # fmt: skip
    """Another scale, or other keys, as the lse that was returned tells them."""
    if not {"out", "lse"} <= set(outputs):
        return
    found = parts(case, inputs["q"], spans, inputs.get("sink"))
    lses = [_of_part(widen(outputs["lse"]).T, part) for part in found]
    offs = [np.abs(_of_part(slack(budgets["lse"]).T, part)) for part in found]
    outs = [_of_part(widen(outputs["out"]), part) for part in found]
    each = [
        [*scaled(part.problem, lse), *other_keys(part.problem, _whole(part), out, lse, off)]
        for part, lse, out, off in zip(found, lses, outs, offs, strict=True)
    ]
    if len(each) == 1:
        for sentence, wrong in each[0]:
            yield sentence, mistaken(case, inputs, [Part(found[0].spans, wrong)])


def _whole(part: Part) -> Problem:
    """The same problem with no key of a sequence hidden by its index."""
    whole = np.zeros_like(part.problem.visible)
    for (_, groups, count), span in zip(part.rows(), part.spans, strict=True):
        whole[groups, :count, : len(span.k)] = True
    return replace(part.problem, visible=whole)


def _of_part(x: Array, part: Part) -> Array:
    """(groups, rows, ..) of x (tokens, num_heads, ..); nothing, -inf, in rows of no sequence."""
    groups, rows = part.problem.visible.shape[:2]
    found = np.full((groups, rows, *x.shape[2:]), -np.inf)
    for span, mine, count in part.rows():
        found[mine, :count] = x[span].swapaxes(0, 1)
    return found


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
    each = [
        {**dict(of_options(case, p)), **dict(of_heads(_sized(case, part), p))}
        for part in found for p in [part.problem]
    ]  # fmt: skip
    for sentence in each[0] if each else ():
        wrong = [Part(a.spans, b[sentence]) for a, b in zip(found, each, strict=True)]
        yield sentence, mistaken(case, inputs, wrong)
    every = [dict(of_softmax(part.problem)) for part in found]
    for sentence in every[0] if every else ():
        if all(sentence in models for models in every):
            yield sentence, shaped(case, inputs, found, [models[sentence] for models in every])
    right = shaped(case, inputs, found, [attend(part.problem) for part in found])
    turned = np.ascontiguousarray(right["lse"].T).reshape(right["lse"].shape)
    yield "lse stored by token and head, not by head and token", {**right, "lse": turned}


def _sized(case: Any, part: Part) -> Any:
    """What `of_heads` asks of a case."""
    heads = part.problem.q.shape[0] // len(part.spans)
    group = case.num_heads // case.num_kv_heads
    return SimpleNamespace(batch=len(part.spans), num_heads=heads, num_kv_heads=heads // group)
