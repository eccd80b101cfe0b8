"""Kernels whose arithmetic is recorded: one operation each, many trials a launch."""

from __future__ import annotations

import os
import re
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from tightrope.softplus import softplus

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"
INSTRUCTIONS = re.compile(
    r"\b(?:wgmma\.mma_async|mma\.sync|fma\.rn|ex2\.approx|lg2\.approx|div\.\w+|(?:sin|cos)\.approx|rcp\.\w+"
    r"|sqrt\.\w+|rsqrt\.\w+|tanh\.approx|cvt\.\w+\.\w*(?:f8|e4m3|e5m2|tf32|bf16|f16)|redux|shfl\.sync\.bfly"
    r"|mul\.(?:rn\.)?b?f\d+|add\.(?:rn\.)?b?f\d+)[\w.]*"
)


def instructions(compiled: Any) -> list[str]:
    """The arithmetic instructions in the PTX of a launch; nothing where it was interpreted."""
    if compiled is None:
        return ["interpreter"]
    return sorted(set(INSTRUCTIONS.findall(compiled.asm["ptx"])))


@triton.jit
def dot_kernel(A, B, C, O, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, P: tl.constexpr):
    m = tl.arange(0, M)[:, None]
    n = tl.arange(0, N)[None, :]
    k = tl.arange(0, K)
    t = tl.program_id(0)
    a = tl.load(A + t * M * K + m * K + k[None, :])
    b = tl.load(B + t * K * N + k[:, None] * N + n)
    c = tl.load(C + t * M * N + m * N + n)
    o = tl.dot(a, b, c, input_precision=P, out_dtype=C.dtype.element_ty)
    tl.store(O + t * M * N + m * N + n, o)


@triton.jit
def widened_kernel(A, B, O, T, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """The dot of operands that are loaded in one type and used in that of T."""
    m = tl.arange(0, M)[:, None]
    n = tl.arange(0, N)[None, :]
    k = tl.arange(0, K)
    t = tl.program_id(0)
    a = tl.load(A + t * M * K + m * K + k[None, :]).to(T.dtype.element_ty)
    b = tl.load(B + t * K * N + k[:, None] * N + n).to(T.dtype.element_ty)
    tl.store(O + t * M * N + m * N + n, tl.dot(a, b))


@triton.jit
def chain_kernel(
    A, B, C, S, O, steps, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, P: tl.constexpr
):
    """acc = dot(a_i, b_i, acc * s_i) over the steps, as online softmax does it."""
    m = tl.arange(0, M)
    n = tl.arange(0, N)[None, :]
    k = tl.arange(0, K)
    t = tl.program_id(0)
    acc = tl.load(C + t * M * N + m[:, None] * N + n)
    for i in range(steps):
        at = t * steps + i
        a = tl.load(A + at * M * K + m[:, None] * K + k[None, :])
        b = tl.load(B + at * K * N + k[:, None] * N + n)
        s = tl.load(S + at * M + m)
        acc = tl.dot(a, b, acc * s[:, None], input_precision=P)
    tl.store(O + t * M * N + m[:, None] * N + n, acc)


@triton.jit
def unary_kernel(X, Y, F: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + i)
    if F == "exp2":
        y = tl.exp2(x)
    elif F == "log2":
        y = tl.log2(x)
    elif F == "exp":
        y = tl.exp(x)
    elif F == "log":
        y = tl.log(x)
    elif F == "sqrt":
        y = tl.sqrt(x)
    elif F == "rsqrt":
        y = tl.rsqrt(x)
    elif F == "sigmoid":
        y = tl.sigmoid(x)
    elif F == "tanh":
        y = libdevice.tanh(x)
    elif F == "sin":
        y = tl.sin(x)
    elif F == "cos":
        y = tl.cos(x)
    elif F == "softplus":
        y = softplus(x, "precise")
    else:
        y = x.to(Y.dtype.element_ty)
    tl.store(Y + i, y)


@triton.jit
def binary_kernel(X, W, Y, F: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + i)
    w = tl.load(W + i)
    if F == "x / w":
        y = x / w
    elif F == "div_rn":
        y = tl.div_rn(x, w)
    elif F == "x * w + x":
        y = x * w + x
    else:
        y = tl.fma(x, w, x)
    tl.store(Y + i, y)


@triton.jit
def reduce_kernel(
    X, Z, Y, M: tl.constexpr, N: tl.constexpr, AFTER_DOT: tl.constexpr, MAX: tl.constexpr
):
    """Row sums or maxima of X, in the layout of a load or (plus a product of zeros) of a dot."""
    m = tl.arange(0, M)
    n = tl.arange(0, N)[None, :]
    t = tl.program_id(0)
    x = tl.load(X + t * M * N + m[:, None] * N + n)
    if AFTER_DOT:
        k = tl.arange(0, 16)
        zeros = tl.load(Z + m[:, None] * 16 + k[None, :])
        x = tl.dot(zeros, tl.load(Z + k[:, None] * N + n), x)
    y = tl.max(x, 1) if MAX else tl.sum(x, 1)
    tl.store(Y + t * M + m, y)
