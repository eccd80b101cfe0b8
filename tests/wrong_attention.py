"""Attention with one mistake each, and its right twins.

A mistake is another argument, or another step of tests/tiled_attention.py. `tightrope run
--impl=tests/wrong_attention.py` must reject all but the right ones; tests/test_wrong_kernels.py
demands it. Mistakes of roundings: tests/wrong_attention_arithmetic.py.
"""

from __future__ import annotations

import torch
from tiled_attention import (
    BLOCK,
    DTYPES,
    LOWEST,
    Steps,
    attention,
    capped,
    declared,
    finish,
    same,
    single,
    with_strides,
)

from tightrope import implements

LEFT, RIGHT = (0, 1, 2, 3, 7, 15, 16, 17), (0, 1, 2, 7, 16)  # windows that hide keys of small cases


@implements("attention", name="right", dtype=(*DTYPES, "float32"))
def _(q, k, v, **options):
    return attention(q, k, v, **options)


@implements("attention", name="right_declared", dtype=(*DTYPES, "float32"), arithmetic=declared)
def _(q, k, v, **options):
    return attention(q, k, v, **options)


def wrong(name, steps=None, **limits):
    """Register a mistake: `Steps`, or a decorated function of the call's arguments.

    limits: the family of cases that shows it, where plain cases do so only now and then.
    """
    register = implements("attention", name=name, **{"dtype": DTYPES, **limits})
    if steps is None:
        return register
    return register(lambda q, k, v, **options: attention(q, k, v, **options, steps=steps))


wrong("accumulator_not_rescaled", Steps(alpha_of_acc=torch.ones_like))
wrong("denominator_not_rescaled", Steps(alpha_of_l=torch.ones_like))
wrong(
    "normalised_output_mixed_in",
    Steps(keep=lambda acc, l: acc / torch.where(l > 0, l, 1)[..., None]),
)
FAR = {"data": ("far_groups",), "causal": (True,), "softcap": (None,), "sink": (False,)}
wrong("running_maximum_starts_at_0", Steps(first=0.0), **FAR)
INTERLEAVED = Steps(heads=lambda x, group: x.repeat(1, group, 1, 1))
wrong("kv_heads_interleaved", INTERLEAVED, num_heads=(4, 6))
EMPTY = {"bias": ("mask",), "empty_rows": (True,)}
wrong("finite_number_for_minus_infinity", Steps(hidden=-1e4), **EMPTY)
wrong(
    "empty_rows_nan",
    Steps(finish=lambda acc, l, m, late: (acc / l[..., None], finish(acc, l, m, m)[1])),
    **EMPTY,
)
wrong("nan_until_a_key_is_seen", Steps(shift=same), window_left=LEFT)
wrong("unseen_values_multiplied_by_0", Steps(unseen_are_zero=False))
wrong(
    "lse_in_base_2",
    Steps(finish=lambda acc, l, m, late: (finish(acc, l, m, m)[0], m + torch.log2(l))),
)


def late_lse(acc, l, m, late):
    """lse with the maximum before the last tile, if there was one."""
    out, _ = finish(acc, l, m, late)
    return out, finish(acc, l, torch.where(late > LOWEST, late, m), late)[1]


wrong("lse_one_tile_late", Steps(finish=late_lse))


def softcap_last(s, scale, softcap, bias):
    z = s * single(scale) + (0 if bias is None else bias)
    return z if softcap is None else capped(z / softcap, softcap)


wrong("softcap_after_the_bias", Steps(logits=softcap_last), softcap=(1.0, 5.0, 20.0))


@wrong("tile_outputs_averaged")
def _(q, k, v, *, q_offset=0, bias=None, **options):
    whole, lse = attention(q, k, v, q_offset=q_offset, bias=bias, **options)
    outs = []
    for first in range(0, k.shape[2], BLOCK):
        tile = slice(first, first + BLOCK)
        part = bias if bias is None or bias.shape[-1] == 1 else bias[..., tile]
        outs.append(
            attention(
                q, k[:, :, tile], v[:, :, tile], q_offset=q_offset - first, bias=part, **options
            )
        )
    outs = torch.stack([out.float() for out, _ in outs]) if outs else whole[None]
    return outs.mean(0).to(whole.dtype), lse


@wrong("top_left_for_bottom_right")
def _(q, k, v, *, q_offset=0, **options):
    return attention(q, k, v, **options)


@wrong("first_q_offset_for_all", offsets=("tensor",), batch=(2, 3))
def _(q, k, v, *, q_offset=0, **options):
    first = q_offset[:1] if isinstance(q_offset, torch.Tensor) and len(q_offset) else q_offset
    return attention(q, k, v, q_offset=first, **options)


@wrong("query_scaled_in_place")
def _(q, k, v, *, softmax_scale=None, **options):
    q.mul_(softmax_scale or q.shape[-1] ** -0.5)
    return attention(q, k, v, softmax_scale=1.0, **options)


@wrong("last_features_of_out_unwritten")
def _(q, k, v, **options):
    out, lse = attention(q, k, v, **options)
    stored, whole = torch.empty_like(out), out.shape[-1] // 64 * 64
    stored[..., :whole] = out[..., :whole]
    return stored, lse


def window_off(left, right):
    """A kernel whose window reaches so many keys further on either side."""

    def fn(q, k, v, *, window_size=(None, None), **options):
        moved = [
            None if n is None else n + by for n, by in zip(window_size, (left, right), strict=True)
        ]
        return attention(q, k, v, window_size=tuple(moved), **options)

    return fn


wrong("window_one_too_far_left", window_left=LEFT)(window_off(1, 0))
wrong("window_one_too_short_left", window_left=LEFT)(window_off(-1, 0))
wrong("window_one_too_far_right", window_right=RIGHT, causal=(False,))(window_off(0, 1))
wrong("window_one_too_short_right", window_right=RIGHT, causal=(False,))(window_off(0, -1))


@wrong("causal_one_key_too_many", causal=(True,))
def _(q, k, v, *, causal=False, q_offset=0, window_size=(None, None), **options):
    right = (
        window_size[1] if not causal else 1 if window_size[1] is None else min(window_size[1], 1)
    )
    return attention(q, k, v, q_offset=q_offset, window_size=(window_size[0], right), **options)


@wrong("scale_ignored")
def _(q, k, v, *, softmax_scale=None, **options):
    return attention(q, k, v, **options)


@wrong("scale_of_the_padded_head_dim")
def _(q, k, v, *, softmax_scale=None, **options):
    padded = 1 << (q.shape[-1] - 1).bit_length()
    return attention(q, k, v, softmax_scale=softmax_scale or padded**-0.5, **options)


@wrong("last_partial_tile_dropped")
def _(q, k, v, *, bias=None, **options):
    whole = k.shape[2] // BLOCK * BLOCK
    bias = bias if bias is None or bias.shape[-1] == 1 else bias[..., :whole]
    return attention(q, k[:, :, :whole], v[:, :, :whole], bias=bias, **options)


@wrong("bias_ignored")
def _(q, k, v, *, bias=None, **options):
    return attention(q, k, v, **options)


@wrong("sink_ignored", sink=(True,))
def _(q, k, v, *, sink=None, **options):
    return attention(q, k, v, **options)


@wrong("v_read_with_the_strides_of_k")
def _(q, k, v, **options):
    return attention(q, k, with_strides(v, k.stride()), **options)
