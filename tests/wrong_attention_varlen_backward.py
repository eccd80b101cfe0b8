"""Gradients of packed attention with one mistake each, and their right twins.

`tightrope run --impl=tests/wrong_attention_varlen_backward.py` must reject all but the right ones;
tests/test_wrong_varlen_backward.py demands it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from right_attention_backward import Steps, attention_backward, declared
from tiled_attention import BLOCK, DTYPES

from tightrope import implements


@dataclass(frozen=True)
class Span:
    """Tokens of one sequence as a kernel finds them; offset: where its mask begins."""

    rows: slice
    keys: slice
    offset: int


def spans(ends_q, ends_k, q_offset):
    """Every sequence, as it is."""
    both = zip(*(pairwise(ends.tolist()) for ends in (ends_q, ends_k)), strict=True)
    for i, ((a, b), (c, d)) in enumerate(both):
        offset = (d - c) - (b - a) if q_offset is None else int(q_offset[i])
        yield Span(slice(a, b), slice(c, d), offset)


def whole(span, grads):
    """What a sequence writes of its gradients; rows and keys that it only read are dropped."""
    dq, dk, dv = grads
    rows, keys = (s.stop - s.start for s in (span.rows, span.keys))
    return dq[:rows], dk[:keys], dv[:keys]


def packed(
    dout, q, k, v, out, lse, ends_q, ends_k, *, q_offset=None, out_dtype=None, steps=None,
    read=lambda span: span, find=spans, write=whole, empty=torch.zeros_like, **options,
):  # fmt: skip
    """Gradients sequence by sequence, with mistakes in what one reads, where it lies, or writes."""
    found = [empty(x, dtype=out_dtype or q.dtype) for x in (q, k, v)]
    for span in find(ends_q, ends_k, q_offset):
        at = read(span)
        heads = [x[at.rows].transpose(0, 1)[None] for x in (dout, q)]
        heads += [x[at.keys].transpose(0, 1)[None] for x in (k, v)]
        heads += [out[at.rows].transpose(0, 1)[None], lse[None, :, at.rows]]
        grads = attention_backward(
            *heads, q_offset=at.offset, out_dtype=out_dtype, steps=steps, **options
        )
        mine = write(span, [grad[0].transpose(0, 1) for grad in grads])
        for grad, part, to in zip(found, mine, (span.rows, span.keys, span.keys), strict=True):
            grad[to] = part
    return found


def register(name, arithmetic=None, function=packed, limits=None, **changes: Any):
    """Put a function of the call's arguments under test. changes: keywords of it."""
    allowed = {"dtype": DTYPES, **(limits or {})}
    add = implements("attention_varlen_backward", name=name, arithmetic=arithmetic, **allowed)
    add(lambda *args, **options: function(*args, **options, **changes))


register("right", None, limits={"dtype": (*DTYPES, "float32")})
register("right_declared", declared, limits={"dtype": (*DTYPES, "float32")})


def reaching(span, rows=False):
    """The last tile of keys, or of rows, is read to its end."""
    own = span.rows if rows else span.keys
    tiles = slice(own.start, own.start + -(-(own.stop - own.start) // BLOCK) * BLOCK)
    return Span(tiles, span.keys, span.offset) if rows else Span(span.rows, tiles, span.offset)


OPEN = {"causal": (False,), "window_left": (None,), "window_right": (None,)}
SEVERAL = {"sequences": (2, 3, 4)}
register("last_keys_of_the_next_sequence", limits={**OPEN, **SEVERAL}, read=reaching)
register("last_rows_of_the_next_sequence", limits={**OPEN, **SEVERAL},
         read=partial(reaching, rows=True))  # fmt: skip


def shifted(span):
    """Keys that begin where the queries do."""
    length = span.keys.stop - span.keys.start
    return Span(span.rows, slice(span.rows.start, span.rows.start + length), span.offset)


def held(span, grads):
    """Nothing is written of keys that were not there to be read."""
    dq, dk, dv = whole(span, grads)
    wanted = span.keys.stop - span.keys.start
    return dq, *(torch.cat([x, x.new_zeros(wanted - len(x), *x.shape[1:])]) for x in (dk, dv))


register("keys_begin_where_rows_do", limits=SEVERAL, read=shifted, write=held)
CAUSAL = {"causal": (True,)}
register("top_left", limits=CAUSAL, read=lambda span: Span(span.rows, span.keys, 0))


def first_offset(ends_q, ends_k, q_offset):
    """The first sequence's offset for all."""
    found = list(spans(ends_q, ends_k, q_offset))
    return [Span(s.rows, s.keys, found[0].offset) for s in found]


def next_offset(ends_q, ends_k, q_offset):
    """Each sequence's offset is its successor's."""
    found = list(spans(ends_q, ends_k, q_offset))
    return [Span(s.rows, s.keys, t.offset) for s, t in zip(found, found[1:] + found, strict=False)]


TENSOR = {"offsets": ("tensor",), **CAUSAL, **SEVERAL}
register("first_q_offset_for_all", limits=TENSOR, find=first_offset)
register("q_offset_of_the_next_sequence", limits=TENSOR, find=next_offset)


def until_empty(ends_q, ends_k, q_offset):
    """Nothing is done from the first sequence without queries on."""
    for span in spans(ends_q, ends_k, q_offset):
        if span.rows.stop == span.rows.start:
            return
        yield span


register("ends_at_an_empty_sequence", limits={**SEVERAL, "seqlen_q": range(0, 40)},
         find=until_empty)  # fmt: skip


def by_the_first_length(ends_q, ends_k, q_offset):
    """As many rows of each sequence as the first has."""
    most = int(ends_q[1]) if len(ends_q) > 1 else 0
    for s in spans(ends_q, ends_k, q_offset):
        yield Span(slice(s.rows.start, min(s.rows.stop, s.rows.start + most)), s.keys, s.offset)


register("grid_of_the_first_length", limits=SEVERAL, find=by_the_first_length)


def with_spare(*arguments, **options):
    """Tokens past the last sequence count as the last one's."""
    *tensors, ends_q, ends_k = arguments
    longer = [ends.clone() for ends in (ends_q, ends_k)]
    for ends, x in zip(longer, (tensors[1], tensors[2]), strict=True):
        ends[-1] = len(x)
    return packed(*tensors, *longer, **options)


register("spare_tokens_join_the_last_sequence", function=with_spare, limits={"spare": (1, 3, 17)})
register("spare_tokens_unwritten", limits={"spare": (1, 3, 17)}, empty=torch.empty_like)


def partial_dropped(span, grads):
    """dk and dv of the last partial tile of keys stay 0."""
    dq, dk, dv = whole(span, grads)
    kept = len(dk) // BLOCK * BLOCK
    for x in (dk, dv):
        x[kept:] = 0
    return dq, dk, dv


register("last_partial_keys_dropped", write=partial_dropped)


def not_emptied(*arguments, **options):
    """dq of a sequence's first row begins with what the last row before it had."""
    dq, dk, dv = packed(*arguments, **options)
    ends = arguments[6].tolist()
    for first in ends[1:-1]:
        if 0 < first < ends[-1]:
            dq[first] += dq[first - 1]
    return dq, dk, dv


register("accumulator_not_emptied_between_sequences", function=not_emptied, limits=SEVERAL)


def tokens_first(dout, q, k, v, out, lse, *rest, **options):
    """lse read as (tokens, heads)."""
    wrong = lse.T.reshape(lse.shape).contiguous()
    return packed(dout, q, k, v, out, wrong, *rest, **options)


GROUPED = {"num_heads": (2, 3, 4, 6)}  # kv heads: any, the law repeats them
register("lse_read_tokens_first", function=tokens_first, limits={"num_heads": (2, 3, 4)})
register("last_head_of_the_group", limits=GROUPED,
         steps=Steps(reduce=lambda x, n: x[:, n - 1 :: n]))  # fmt: skip
register("mean_over_the_group", limits=GROUPED,
         steps=Steps(reduce=lambda x, n: x.unflatten(1, (-1, n)).mean(2)))  # fmt: skip
register("scale_twice", steps=Steps(scales=lambda scale: (scale * scale, scale * scale)))
register("no_rowsum", steps=Steps(d=lambda dout, out: torch.zeros_like(dout[..., 0])))
register("ds_not_rounded", declared, steps=Steps(ds=lambda ds, dtype: ds))
