"""Points of q and k, rounding by rounding as the PoPE kernels declare them, made without them."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import torch
import triton
import triton.language as tl
from attention_calls import HOME
from pope_calls import Tensors

from tightrope.softplus import softplus


@triton.jit
def softplus_kernel(x, y, length, FORM: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    found = softplus(tl.load(x + at, mask=at < length, other=0.0), FORM)
    tl.store(y + at, found.to(tl.float32), mask=at < length)


def magnitudes(x: torch.Tensor, form: str) -> torch.Tensor:
    """softplus of the kernels, in float32."""
    x = x.contiguous()
    found = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    if x.numel():
        block = 2**14 if HOME == "cpu" else 1024
        softplus_kernel[(triton.cdiv(x.numel(), block),)](x, found, x.numel(), form, block)
    return found


def exact_turn(at: torch.Tensor, frequency: torch.Tensor, delta: Any = 0.0) -> tuple[Any, Any]:
    """cos and sin of at * frequency + delta, rounded to float64 from 200 bits; they broadcast."""
    with mpmath.workprec(200):
        numbers = np.broadcast_arrays(
            *(np.asarray(x, dtype=object) for x in (at, frequency, delta))
        )
        angle = [mpmath.mpf(m) * mpmath.mpf(f) + mpmath.mpf(d)
                 for m, f, d in zip(*(x.ravel() for x in numbers), strict=True)]  # fmt: skip
        pair = [[float(turn(a)) for a in angle] for turn in (mpmath.cos, mpmath.sin)]
    found = (torch.tensor(x, dtype=torch.float64).reshape(numbers[0].shape) for x in pair)
    cos, sin = (x.to(HOME) for x in found)
    return cos, sin


def rows(tensors: Tensors, name: str, delta: Any = None) -> tuple[Any, Any]:
    """cos and sin, (batch or 1, heads or 1, seqlen, rotary_dim) float64, of tokens' angles."""
    at, frequency = tensors[f"{name}_positions"], tensors["inv_freq"].tolist()
    place = np.array(at.tolist(), dtype=object).reshape(*at.shape[:-1] or (1,), 1, at.shape[-1], 1)
    shift = 0.0 if delta is None else np.array(delta.tolist(), dtype=object)[None, :, None, :]
    return exact_turn(place, np.array(frequency, dtype=object), shift)


def shifted(delta: torch.Tensor, heads: int) -> torch.Tensor:
    return delta.repeat_interleave(heads // delta.shape[0], 0)[None, :, None]


def light(tensors: Tensors, form: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Points of q and k by the roundings that the light kernel declares."""
    found = []
    for name in ("q", "k"):
        c, s = (x.half().float() for x in rows(tensors, name))
        if name == "q" and tensors["delta"] is not None:
            pair = exact_turn(1, np.array(tensors["delta"].tolist(), dtype=object))
            cd, sd = (shifted(x.float(), tensors["q"].shape[1]) for x in pair)
            c, s = c * cd + s * sd, s * cd - c * sd
        found.append(assembled(tensors, name, c, s, form, aligned=True))
    return found[0], found[1]


def expanded(tensors: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    """The same of the expanding kernel."""
    delta, kv_heads = tensors["delta"], tensors["k"].shape[1]
    of_keys = delta if delta is not None and len(delta) == kv_heads else None
    of_queries = -delta if delta is not None and of_keys is None else None
    found = [
        assembled(tensors, n, *(x.float() for x in rows(tensors, n, d)), "precise", aligned=False)
        for n, d in (("q", of_queries), ("k", of_keys))
    ]
    return found[0], found[1]


def assembled(
    tensors: Tensors, name: str, c: torch.Tensor, s: torch.Tensor, form: str, aligned: bool
) -> torch.Tensor:
    """[x | y | rest]; aligned: x and y filled up with zeros to whole steps of a tensor core."""
    x, wide = tensors[name], tensors["inv_freq"].shape[0]
    size = magnitudes(x[..., :wide], form)
    spare = -wide % 16 if aligned else 0
    pair = [torch.nn.functional.pad((size * t).to(x.dtype), (0, spare)) for t in (c, s)]
    return torch.cat([*pair, x[..., wide:]], -1)
