"""What kernels compute instead of packed attention: useless models, and known mistakes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tightrope.budget import Budget
from tightrope.formats import Array
from tightrope.oracles.attention_alternatives import null_models
from tightrope.oracles.attention_sequence_alternatives import Outputs, fitted, shaped, told
from tightrope.oracles.attention_varlen_problems import Span, parts

if TYPE_CHECKING:
    from tightrope.oracles.attention_varlen_cases import AttentionVarlenCase

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


def fits(
    case: AttentionVarlenCase, inputs: Mapping[str, Array], outputs: Outputs,
    budgets: Mapping[str, Budget],
) -> Iterator[tuple[str, Outputs]]:  # fmt: skip
    """What is found from the lse that was returned: another scale, or other keys."""
    yield from fitted(case, inputs, stated(case, inputs), outputs, budgets)


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

    if inputs["cu_seqlens_q"].tolist() != ends:
        yield (
            "cu_seqlens_q used for the keys as well",
            stated(case, inputs, cu_seqlens_k=inputs["cu_seqlens_q"]),
        )
    yield "each sequence sees one key of its successor", reaching(0, 1)
    yield "each sequence sees one key of its predecessor", reaching(1, 0)
    yield "each sequence sees all keys after it", reaching(0, len(k))
    yield "each sequence sees the keys of all", reaching(len(k), len(k))
    before = reaching(len(k), 0)
    yield "each sequence sees all keys before it", before
    yield (
        "each sequence begins at the first one's keys",
        [
            replace(b, q_offset=b.q_offset + len(b.k) - len(a.k))
            for a, b in zip(spans, before, strict=True)
        ],
    )
    yield "each sequence lacks its last key", reaching(0, -1)
    if len(spans) > 1:
        others = spans[1:] + spans[:1]
        moved = [replace(a, k=b.k, v=b.v) for a, b in zip(spans, others, strict=True)]
        yield "each sequence sees its successor's keys", moved
