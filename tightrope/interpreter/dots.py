"""What `tl.dot` computes: operand conversion by `input_precision`, and three ways to sum.

Arrays: a (..., M, K), b (..., K, N), c (..., M, N) in the accumulator's dtype; results like c.

The `hopper` summation is the published tensor-core model (Xie et al., "MMA-Sim", arXiv 2511.10909;
Khattak and Mikaitis, arXiv 2512.07004): `group` exact products and the accumulator are aligned to
the largest exponent (ea + eb for a product, not normalised), each truncated to `bits` fractional
bits, added exactly, and the sum truncated to float32. For fp16 and bf16 operands with a float32
accumulator it agreed with an H200 bit for bit on normal inputs; the constants for tf32 and fp8
follow the literature and are not verified.
"""

from __future__ import annotations

import numpy as np

from tightrope.interpreter.rounding import Array, fma, round_to

# (products per step, fractional bits kept) by operand kind
HOPPER = {"half": (16, 25), "tf32": (8, 25), "fp8": (32, 13)}
_ZERO_EXPONENT = -1000


def dot(a: Array, b: Array, c: Array, *, precision: str, model: str) -> Array:
    """c + a @ b as Triton compiles it for operands of this dtype.

    precision: "tf32", "tf32x3" or "ieee", for float32 operands only. model: one of DOT_MODELS.
    Raises NotImplementedError for another precision.
    """
    if a.dtype.kind in "biu":
        return np.matmul(a, b, dtype=c.dtype) + c
    if a.dtype == np.float64:
        return np.matmul(a, b) + c
    if a.dtype != np.float32:
        return _multiply(a, b, c, "fp8" if a.dtype.itemsize == 1 else "half", model)
    if model == "ieee":
        return _multiply(a, b, c, "tf32", model)
    if precision == "tf32":
        return _multiply(drop_to_tf32(a), drop_to_tf32(b), c, "tf32", model)
    if precision == "tf32x3":
        return _three_products(a, b, c, model)
    if precision == "ieee":
        return _fma_chain(a, b, c) if model == "hopper" else _multiply(a, b, c, "tf32", model)
    raise NotImplementedError(f"input_precision={precision!r} is not modelled")


def _multiply(a: Array, b: Array, c: Array, kind: str, model: str) -> Array:
    x, y, z = (v.astype(np.float64) for v in (a, b, c))
    return round_to(
        tensor_core(x, y, z, *HOPPER[kind]) if model == "hopper" else x @ y + z, c.dtype
    )


def _three_products(a: Array, b: Array, c: Array, model: str) -> Array:
    """tf32x3, as the F32DotTC pass splits it: small*big, big*small, NaN to 0, big*big, then c."""
    a_big, b_big = nearest_tf32(a), nearest_tf32(b)
    a_small, b_small = drop_to_tf32(a - a_big), drop_to_tf32(b - b_big)
    small = _multiply(a_small, b_big, np.zeros_like(c), "tf32", model)
    small = _multiply(a_big, b_small, small, "tf32", model)
    small = np.where(np.isnan(small), small.dtype.type(0), small)
    return _multiply(a_big, b_big, small, "tf32", model) + c


def _fma_chain(a: Array, b: Array, c: Array) -> Array:
    for k in range(a.shape[-1]):
        c = fma(a[..., :, k, None], b[..., None, k, :], c, c.dtype)
    return c


def drop_to_tf32(x: Array) -> Array:
    """What a tensor core reads of a float32 register: the low 13 bits are ignored."""
    return (np.ascontiguousarray(x).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def nearest_tf32(x: Array) -> Array:
    """`cvt.rna.tf32.f32`: to nearest, ties away from zero."""
    return drop_to_tf32(
        (np.ascontiguousarray(x).view(np.uint32) + np.uint32(0x1000)).view(np.float32)
    )


def tensor_core(a: Array, b: Array, c: Array, group: int, bits: int) -> Array:
    """The Hopper summation; a, b, c and the result are float64, the result holds float32 values."""
    b = np.ascontiguousarray(b.swapaxes(-1, -2))
    exponent_a, exponent_b, total = _exponent(a), _exponent(b), c
    for k in range(0, a.shape[-1], group):
        step = np.s_[..., k : k + group]
        products = a[step][..., :, None, :] * b[step][..., None, :, :]
        largest = (exponent_a[step][..., :, None, :] + exponent_b[step][..., None, :, :]).max(-1)
        scale = np.ldexp(1.0, bits - np.maximum(np.maximum(largest, _exponent(total)), -200))
        products *= scale[..., None]
        total = _truncate32(
            (np.trunc(products, out=products).sum(-1) + np.trunc(total * scale)) / scale
        )
    return total


def _exponent(x: Array) -> Array:
    return np.where(x == 0, _ZERO_EXPONENT, np.frexp(x)[1] - 1)


def _truncate32(x: Array) -> Array:
    unit = np.ldexp(1.0, np.maximum(np.frexp(x)[1] - 24, -149))
    return np.where(x == 0, 0.0, np.trunc(x / unit) * unit)
