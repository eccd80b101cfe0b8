"""Attention with one rounding too many, too few or of the wrong kind.

Most declare the schedule of tests/tiled_attention.py, so that its roundings are replayed: without
that, a stranger may round P, and what is smaller than that rounding does not show.
"""

from __future__ import annotations

import torch
from tiled_attention import DTYPES, Steps, attention, declared

from tightrope import implements


def wrong(name, steps, arithmetic=declared):
    register = implements("attention", name=name, dtype=DTYPES, arithmetic=arithmetic)
    register(lambda q, k, v, **options: attention(q, k, v, **options, steps=steps))


def through(dtype):
    """Round a float32 tensor to `dtype` and back."""
    return lambda x, *_: x.to(dtype).float()


def truncated(p, dtype):
    """Round toward zero to float16 or bfloat16; subnormals of float16 lose a few bits more."""
    drop = 16 if dtype == torch.bfloat16 else 13
    return (
        ((p.contiguous().view(torch.int32) >> drop) << drop).view(torch.float32).to(dtype).float()
    )


def rounded(p, dtype):
    return p.to(dtype).float()


for short, dtype in (("bfloat16", torch.bfloat16), ("float16", torch.float16)):
    wrong(f"accumulator_in_{short}", Steps(keep=through(dtype)))
    wrong(f"scores_in_{short}", Steps(scores=through(dtype)))
    wrong(f"rescale_in_{short}", Steps(alpha_of_acc=through(dtype), alpha_of_l=through(dtype)))
wrong("p_in_float8", Steps(weights=through(torch.float8_e4m3fn)), arithmetic=None)
wrong("p_truncated", Steps(weights=truncated))
wrong("p_not_rounded", Steps(weights=lambda p, dtype: p))
wrong("denominator_from_rounded_p", Steps(summed=rounded))
