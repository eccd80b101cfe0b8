"""Small calls of `attention_varlen_backward`, and the same sequences one by one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from attention_calls import normal
from sequence_calls import LENGTHS, NAN, Lengths, Tensors, packed

from tightrope.impls.attention_backward import attention_backward
from tightrope.impls.attention_varlen import attention_varlen

Options = dict[str, Any]
OF_KEYS = ("k", "v", "dk", "dv")


def given(options: Options | None = None, lengths: Lengths = LENGTHS, **sizes: Any) -> Tensors:
    """dout, q, k and v with what `attention_varlen` makes of them; NaN in rows of no sequence.

    Two query heads read one kv head, if not said otherwise.
    """
    x = packed(lengths, **{"num_heads": 2, "num_kv_heads": 1, **sizes})
    out, lse = attention_varlen(**x, **(options or {}))
    dout = normal(*out.shape, dtype=str(out.dtype).removeprefix("torch."), seed=3)
    last = int(x["cu_seqlens_q"][-1])
    dout[last:], out[last:], lse[:, last:], x["q"][last:] = NAN, NAN, NAN, NAN
    return {**x, "dout": dout, "out": out, "lse": lse}


def one_by_one(x: Tensors, options: Options) -> Iterator[tuple[dict[str, slice], list[Any]]]:
    """(where they lie, dq, dk and dv) of each sequence, as `attention_backward` has them."""
    ends = [list(pairwise(x[name].tolist())) for name in ("cu_seqlens_q", "cu_seqlens_k")]
    given = options.get("q_offset")
    for i, (rows, keys) in enumerate(zip(*ends, strict=True)):
        at = {n: slice(*(keys if n in OF_KEYS else rows)) for n in ("dout", "q", "k", "v", "out")}
        heads = {n: x[n][span].transpose(0, 1)[None] for n, span in at.items()}
        bottom_right = (keys[1] - keys[0]) - (rows[1] - rows[0])
        offset = bottom_right if given is None else int(given[i])
        lse = x["lse"][None, :, slice(*rows)]
        grads = attention_backward(**heads, lse=lse, **{**options, "q_offset": offset})
        yield at, [grad[0].transpose(0, 1) for grad in grads]
