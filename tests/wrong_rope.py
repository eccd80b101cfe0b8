"""Rotary embeddings with one mistake each, and their right twin: plain torch, float32 arithmetic.

Every adapter is what a user would write; `tightrope run --impl=tests/wrong_rope.py` must reject all
but `right`. tests/test_wrong_kernels.py demands it.
"""

from __future__ import annotations

import torch

from tightrope import implements

WRONG: list[str] = []
DTYPES = ("float16", "bfloat16")
OUT_OF_PLACE = {"inplace": (False,), "where": ("out_dtype=input",)}


def wrong(name, **limits):
    WRONG.append(name)
    return implements("rope", name=name, dtype=DTYPES, **(limits or OUT_OF_PLACE))


def pairs(x, half, interleaved, distance=None):
    rotated = x[..., : 2 * half]
    if interleaved:
        return rotated[..., 0::2], rotated[..., 1::2]
    distance = distance or half
    return x[..., :half], x[..., distance : distance + half]


def turn(x, c, s, interleaved, distance=None, product=torch.float32):
    """A rotated copy of one tensor; c and s are (tokens, 1, half)."""
    y, half = x.clone(), c.shape[-1]
    a, b = (p.to(product) for p in pairs(x, half, interleaved, distance))
    c, s = c.to(product), s.to(product)
    first, second = pairs(y, half, interleaved, distance)
    first.copy_((a * c).float() - (b * s).float())
    second.copy_((b * c).float() + (a * s).float())
    return y


def rows(cos, sin, positions):
    return cos[positions][:, None].float(), sin[positions][:, None].float()


@implements("rope", name="right", dtype=DTYPES, where=("out_dtype=input",))
def right(q, k, cos, sin, positions, *, interleaved, inplace=False):
    c, s = rows(cos, sin, positions)
    out = turn(q, c, s, interleaved), turn(k, c, s, interleaved)
    return (q.copy_(out[0]), k.copy_(out[1])) if inplace else out


@wrong("sin_sign")
def _(q, k, cos, sin, positions, *, interleaved):
    c, s = rows(cos, sin, positions)
    return turn(q, c, -s, interleaved), turn(k, c, -s, interleaved)


@wrong("layout_swapped")
def _(q, k, cos, sin, positions, *, interleaved):
    c, s = rows(cos, sin, positions)
    return turn(q, c, s, not interleaved), turn(k, c, s, not interleaved)


@wrong("token_index_for_position")
def _(q, k, cos, sin, positions, *, interleaved):
    c, s = rows(cos, sin, torch.arange(len(q)) % len(cos))
    return turn(q, c, s, interleaved), turn(k, c, s, interleaved)


@wrong("k_one_position_late")
def _(q, k, cos, sin, positions, *, interleaved):
    c, s = rows(cos, sin, positions)
    late = rows(cos, sin, (positions.long() + 1) % len(cos))
    return turn(q, c, s, interleaved), turn(k, *late, interleaved)


@wrong("table_in_bfloat16", table_dtype=("float32",), **OUT_OF_PLACE)
def _(q, k, cos, sin, positions, *, interleaved):
    c, s = rows(cos.bfloat16(), sin.bfloat16(), positions)
    return turn(q, c, s, interleaved), turn(k, c, s, interleaved)


@wrong("table_in_float16", table_dtype=("float32",), **OUT_OF_PLACE)
def _(q, k, cos, sin, positions, *, interleaved):
    c, s = rows(cos.half(), sin.half(), positions)
    return turn(q, c, s, interleaved), turn(k, c, s, interleaved)


@wrong("table_row_stride_doubled")
def _(q, k, cos, sin, positions, *, interleaved):
    c, s = rows(cos, sin, (2 * positions.long()) % len(cos))
    return turn(q, c, s, interleaved), turn(k, c, s, interleaved)


@wrong("tail_zeroed")
def _(q, k, cos, sin, positions, *, interleaved):
    c, s = rows(cos, sin, positions)
    out = turn(q, c, s, interleaved), turn(k, c, s, interleaved)
    for y in out:
        y[..., 2 * cos.shape[1] :] = 0
    return out


@wrong("last_features_rotated")
def _(q, k, cos, sin, positions, *, interleaved):
    c, s = rows(cos, sin, positions)
    out = q.clone(), k.clone()
    for y in out:
        last = y[..., y.shape[-1] - 2 * cos.shape[1] :]
        last.copy_(turn(last, c, s, interleaved))
    return out


@wrong("pairs_at_half_of_head_dim", interleaved=(False,), **OUT_OF_PLACE)
def _(q, k, cos, sin, positions, *, interleaved):
    c, s = rows(cos, sin, positions)
    return tuple(turn(x, c, s, False, distance=x.shape[-1] // 2) for x in (q, k))


@wrong("half_of_the_kv_heads")
def _(q, k, cos, sin, positions, *, interleaved):
    c, s = rows(cos, sin, positions)
    out, heads = k.clone(), -(-k.shape[1] // 2)
    out[:, :heads] = turn(k[:, :heads], c, s, interleaved)
    return turn(q, c, s, interleaved), out


@wrong("last_token_skipped")
def _(q, k, cos, sin, positions, *, interleaved):
    c, s = rows(cos, sin, positions)
    out, tokens = [torch.empty_like(q), torch.empty_like(k)], len(q) - (len(q) % 4 != 0)
    for y, x in zip(out, (q, k), strict=True):
        y[:tokens] = turn(x, c, s, interleaved)[:tokens]
    return out


@wrong("products_in_the_input_dtype")
def _(q, k, cos, sin, positions, *, interleaved):
    c, s = rows(cos, sin, positions)
    return turn(q, c, s, interleaved, product=q.dtype), turn(k, c, s, interleaved, product=q.dtype)


@wrong("output_truncated")
def _(q, k, cos, sin, positions, *, interleaved):
    c, s = rows(cos, sin, positions)
    drop = 16 if q.dtype == torch.bfloat16 else 13
    out = [turn(x.float(), c, s, interleaved) for x in (q, k)]
    return [(y.view(torch.int32) >> drop << drop).view(torch.float32).to(q.dtype) for y in out]


@wrong("in_place_on_k_forgotten", where=("out_dtype=input",))
def _(q, k, cos, sin, positions, *, interleaved, inplace=False):
    c, s = rows(cos, sin, positions)
    out = turn(q, c, s, interleaved), turn(k, c, s, interleaved)
    return (q.copy_(out[0]), out[1]) if inplace else out


@wrong("input_clobbered")
def _(q, k, cos, sin, positions, *, interleaved):
    c, s = rows(cos, sin, positions)
    out = turn(q, c, s, interleaved), turn(k, c, s, interleaved)
    k.copy_(out[1])
    return out


@wrong("position_clamped_at_4096")
def _(q, k, cos, sin, positions, *, interleaved):
    c, s = rows(cos, sin, positions.clamp(max=4095))
    return turn(q, c, s, interleaved), turn(k, c, s, interleaved)


@wrong("a_third_tensor_rotated")
def _(q, k, cos, sin, positions, *, interleaved):
    c, s = rows(cos, sin, positions)
    end = (
        k.storage_offset() + sum((n - 1) * t for n, t in zip(k.shape, k.stride(), strict=True)) + 1
    )
    v = torch.as_strided(k, (1, 1, 16), (16, 16, 1), end)  # what lies behind k
    if k.numel():
        v.copy_(torch.roll(v, 1, -1) + 1)
    return turn(q, c, s, interleaved), turn(k, c, s, interleaved)
