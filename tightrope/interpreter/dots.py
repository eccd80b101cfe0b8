"""What `tl.dot` computes: operand conversion by `input_precision`, and three ways to sum.

Arrays: a (..., M, K), b (..., K, N), c (..., M, N) in the accumulator's dtype; results like c.

Under `hopper` fp16, bf16, fp8 and tf32 operands take the tensor core's sum (`tensor_core`), float64
and float32 with `ieee` a chain of fma in the order of k. All of it agreed bit for bit with an H200
(2026-11-30, Triton 3.6.0, torch 2.11.0, `tests/record_device_arithmetic.py`): 28 million outputs of
22 kinds of data, from subnormal to infinite. Of fp16 and bf16 up to 128 rows and k = 256, with
float16 accumulators and of float32 up to 64 rows and k = 64, of fp8 up to k = 128 (with fewer than
64 rows: 16 rows to k = 64, 32 rows at k = 128), of float64 16 rows and k = 16.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from tightrope.interpreter.rounding import FP8, Array, double_rounding, fma, round_to
from tightrope.interpreter.tensor_core import HALF, core_for, tensor_core


def dot(a: Array, b: Array, c: Array, *, precision: str, model: str) -> Array:
    """c + a @ b as Triton compiles it for operands of this dtype.

    precision: "tf32", "tf32x3" or "ieee", for float32 operands only. model: one of DOT_MODELS.
    Raises NotImplementedError for another precision.
    """
    if a.dtype.kind in "biu":
        return np.matmul(a, b, dtype=c.dtype) + c
    if a.dtype == np.float64:
        return _fma_chain(a, b, c) if model == "hopper" else np.matmul(a, b) + c
    if a.dtype != np.float32 or model == "ieee":
        return _multiply(a, b, c, model)
    if precision == "tf32":
        return _multiply(drop_to_tf32(a), drop_to_tf32(b), c, model)
    if precision == "tf32x3":
        return _three_products(a, b, c, model)
    if precision == "ieee":
        return fma_chain(a, b, c) if model == "hopper" else _multiply(a, b, c, model)
    raise NotImplementedError(f"input_precision={precision!r} is not modelled")


def _multiply(a: Array, b: Array, c: Array, model: str) -> Array:
    if model == "hopper":
        core = core_for(a.dtype, a.shape[-2], a.ndim > 2)
        if a.dtype in FP8 and core == HALF:
            a, b = by_lanes(a.astype(np.float16), -1), by_lanes(b.astype(np.float16), -2)
        return tensor_core(a, b, c, core)
    x, y, z = (v.astype(np.float64) for v in (a, b, c))
    return round_to(x @ y + z, c.dtype)


def by_lanes(x: Array, axis: int, run: int = 2, parts: int = 2) -> Array:
    """x with its places along k (`axis`) in the order in which `mma.sync` instructions take them.

    Four lanes hold run * parts neighbouring operands each, twice; the first instruction takes the
    first `run` of every lane, and so on. So for fp8 read as fp16: 0 1 4 5 8 ... 29, 2 3 6 7 ... 31.
    """
    depth = x.shape[axis]
    return x if depth % (8 * run * parts) else np.take(x, _lane_order(depth, run, parts), axis)


@cache
def _lane_order(depth: int, run: int, parts: int) -> Array:
    place = np.arange(depth)
    return np.lexsort((place, place // run % parts, place // (8 * run * parts)))


def _three_products(a: Array, b: Array, c: Array, model: str) -> Array:
    """tf32x3, as the F32DotTC pass splits it: small*big, big*small, NaN to 0, big*big, then c."""
    a_big, b_big = nearest_tf32(a), nearest_tf32(b)
    a_small, b_small = drop_to_tf32(a - a_big), drop_to_tf32(b - b_big)
    small = _multiply(a_small, b_big, np.zeros_like(c), model)
    small = _multiply(a_big, b_small, small, model)
    small = np.where(np.isnan(small), small.dtype.type(0), small)
    return _multiply(a_big, b_big, small, model) + c


def fma_chain(a: Array, b: Array, c: Array) -> Array:
    """One fma after the other, in the order of k."""
    chain = _usual_chain(a, b, c) if c.dtype == np.float32 else None
    return _fma_chain(a, b, c) if chain is None else chain


def _fma_chain(a: Array, b: Array, c: Array) -> Array:
    for k in range(a.shape[-1]):
        c = fma(a[..., :, k, None], b[..., None, k, :], c, c.dtype)
    return c


def _usual_chain(a: Array, b: Array, c: Array) -> Array | None:
    """The chain of float32 fma by float64 sums; None if for one of them two roundings are not one.

    A product of two float32 is exact in float64, and RN32(RN64(product + c)) is the fma but where
    the float64 sum lies on a float32 tie, or the result is subnormal.
    """
    x, y = np.moveaxis(a, -1, 0).astype(np.float64), np.moveaxis(b, -2, 0).astype(np.float64)
    sums = np.expand_dims(x, -1) * np.expand_dims(y, -2)
    for partial in sums:
        partial += c
        c = partial.astype(np.float32)
    return None if double_rounding(sums) else c


def drop_to_tf32(x: Array) -> Array:
    """What a tensor core reads of a float32 register: the low 13 bits are ignored."""
    return (np.ascontiguousarray(x).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def nearest_tf32(x: Array) -> Array:
    """`cvt.rna.tf32.f32`: to nearest, ties away from zero."""
    return drop_to_tf32(
        (np.ascontiguousarray(x).view(np.uint32) + np.uint32(0x1000)).view(np.float32)
    )
