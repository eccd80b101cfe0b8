"""A million keys: sampled rows are certified, and what hides in a million keys is found."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from tightrope.device import current
from tightrope.implementation import registered
from tightrope.oracles.attention import AttentionCase
from tightrope.oracles.attention_budget import forward
from tightrope.oracles.attention_problem import Problem
from tightrope.verdict import judge

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="a million keys need a GPU")
KEYS, ROWS, WIDTH, NEEDLES = 1 << 20, 64, 64, 8
TILE = 128
SECONDS = 60.0  # the promise


def keys_with_needles(device):
    """q, k, v (1, 1, KEYS, WIDTH) float16. Each needle, a key in the last quarter, has about a
    tenth of every row's weight that sees all of them; the noise of the other keys has the rest.

    Signal stays: with random keys alone every output would be the mean of v, which is near 0.
    """
    made = torch.Generator(device).manual_seed(7)
    shape = (1, 1, KEYS, WIDTH)
    q, k, v = (torch.randn(shape, generator=made, device=device) for _ in range(3))
    signs = torch.sign(torch.randn(WIDTH, generator=made, device=device))
    at = 3 * KEYS // 4 + torch.arange(NEEDLES, device=device) * (KEYS // 64) + 777
    k[:, :, at] = signs * np.log(KEYS) / WIDTH**0.5
    q = signs + 0.1 * q
    v[:, :, at] = 4 * torch.sign(v[:, :, at])
    return q.half(), k.half(), v.half(), at.tolist()


def sampled(q, k, v):
    """64 rows that see every needle, as a problem; their numbers."""
    rows = np.unique(np.linspace(KEYS - KEYS // 16, KEYS - 1, ROWS).astype(np.int64))
    plain = [x[0].cpu().numpy().astype(np.float64) for x in (q[:, :, rows], k, v)]
    seen = (np.arange(KEYS) <= rows[:, None])[None]
    problem = Problem(
        q=plain[0], k=plain[1], v=plain[2], visible=seen, softmax_scale=WIDTH**-0.5,
        dtype="float16", out_dtype="float32",
    )  # fmt: skip
    return rows, problem


def impl():
    import tightrope.impls.attention as kernels

    return next(i for i in registered(kernels.__name__) if i.name == "triton")


def rejected(spent, out, lse):
    """Whether one of both outputs, as the kernel would have returned it, is refused."""
    verdicts = [judge("out", out, spent.out).ok, judge("lse", lse, spent.lse).ok]
    return not all(verdicts)


@gpu
def test_a_million_keys_are_certified_within_a_minute(record_property):
    q, k, v, needles = keys_with_needles("cuda")
    kernel = impl()

    def call(q, k, v, **options):
        out, lse = kernel.fn(q, k, v, causal=True, out_dtype=torch.float32, **options)
        return out[0, 0], lse[0, 0]

    out, lse = call(q, k, v)
    began = time.perf_counter()
    rows, problem = sampled(q, k, v)
    case = AttentionCase(seqlen_q=KEYS, seqlen_k=KEYS, head_dim=WIDTH, head_dim_v=WIDTH)
    spent = forward(problem, kernel.promise(case, current()))

    def rows_of(found):
        return [x[rows].cpu().numpy()[None] for x in found]

    right_out, right_lse = rows_of((out, lse))
    for name, array, budget in (("out", right_out, spent.out), ("lse", right_lse, spent.lse)):
        verdict = judge(name, array, budget)
        assert verdict.ok, verdict.message
        record_property(f"{name}: worst share", verdict.share)
    seconds = time.perf_counter() - began
    record_property("seconds", seconds)
    assert seconds < SECONDS

    # the same rows, after faults that hide in a million keys
    tile = needles[2] // TILE * TILE
    kept = torch.ones(KEYS, dtype=torch.bool, device="cuda")
    kept[tile : tile + TILE] = False
    bias = torch.zeros(1, 1, 1, KEYS, device="cuda").masked_fill(~kept, -torch.inf)
    assert rejected(spent, *rows_of(call(q, k, v, bias=bias))), "a dropped tile"
    twice = torch.zeros(1, 1, 1, KEYS, device="cuda")
    twice[..., needles[5]] = float(np.log(2.0))
    assert rejected(spent, *rows_of(call(q, k, v, bias=twice))), "a doubled key"
    scaled = call(q, k, v, softmax_scale=1.01 * WIDTH**-0.5)
    assert rejected(spent, *rows_of(scaled)), "a scale error of 1 %"
