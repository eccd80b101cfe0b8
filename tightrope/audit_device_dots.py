"""Dots of a device against the model, bit for bit; where they differ, which other model agrees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import torch

from tightrope.audit_device_data import KINDS, Draw
from tightrope.audit_device_kernels import DEVICE, dot_kernel, instructions
from tightrope.interpreter import tensor_core as core
from tightrope.interpreter.dots import by_lanes, dot, drop_to_tf32, nearest_tf32
from tightrope.interpreter.rounding import round_to

Array = np.ndarray
Model = Callable[[Array, Array, Array], Array]
NUMPY = {
    torch.float16: np.dtype(np.float16),
    torch.bfloat16: np.dtype(ml_dtypes.bfloat16),
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
    torch.float8_e4m3fn: np.dtype(ml_dtypes.float8_e4m3fn),
    torch.float8_e5m2: np.dtype(ml_dtypes.float8_e5m2),
}
HALF_SHAPES = (
    (16, 16, 16), (64, 16, 16), (16, 128, 32), (64, 64, 32), (16, 64, 64),
    (64, 64, 64), (16, 16, 128), (128, 128, 128), (64, 32, 256), (16, 16, 256),
)  # fmt: skip
OTHER_SHAPES = ((16, 16, 16), (64, 16, 16), (16, 64, 64), (64, 64, 64))
FP8_SHAPES = ((16, 16, 32), (16, 16, 64), (32, 32, 128), (64, 16, 32), (64, 64, 128))


def to_torch(x: Array, dtype: torch.dtype) -> torch.Tensor:
    """The same bits on the device."""
    bits = torch.from_numpy(np.ascontiguousarray(x).view(f"i{x.itemsize}"))
    return bits.view(dtype).to(DEVICE)


def to_numpy(x: torch.Tensor) -> Array:
    """The same bits in NumPy."""
    x = x.cpu()
    bits = getattr(torch, f"int{8 * x.element_size()}")
    return x.view(bits).numpy().view(NUMPY[x.dtype])


def rounded(x: Array, dtype: np.dtype) -> Array:
    """Rounded once, but not to an infinity, and infinities only where a format has them."""
    top = float(ml_dtypes.finfo(dtype).max)
    return round_to(np.where(np.isinf(x), x, np.clip(x, -top, top)), dtype)


def unequal(got: Array, model: Array) -> Array:
    """Where the bits differ; all NaN are equal."""
    bits = f"i{got.itemsize}"
    return (got.view(bits) != model.view(bits)) & ~(np.isnan(got) & np.isnan(model))


def compared(got: Array, model: Array) -> dict[str, Any]:
    """Counts of one comparison; ulp: the distance in the order of the numbers."""
    bits = f"i{got.itemsize}"
    g, m = got.view(bits).astype(np.int64), model.view(bits).astype(np.int64)
    differ = unequal(got, model)
    zeros = differ & (got == 0) & (model == 0)
    low = np.int64(1) << (8 * got.itemsize - 1)
    distance = np.abs(np.where(g < 0, -low - g, g) - np.where(m < 0, -low - m, m))
    finite = differ & np.isfinite(got.astype(np.float64)) & np.isfinite(model.astype(np.float64))
    return {
        "compared": got.size,
        "mismatches": int(differ.sum()),
        "only the sign of zero": int(zeros.sum()),
        "worst ulp": int(distance[finite].max(initial=0)),
        "at": [tuple(map(int, i)) for w in (differ & ~zeros, zeros) for i in np.argwhere(w)[:4]][
            :4
        ],
    }


def hexadecimal(x: Array) -> str:
    flat = np.ascontiguousarray(x).reshape(-1)
    return " ".join(f"{int(v):0{2 * x.itemsize}x}" for v in flat.view(f"u{x.itemsize}"))


def examples(found: dict[str, Any], a: Array, b: Array, c: Array, got: Array, model: Array) -> None:
    """Replace the places of mismatches by their operands, as bit patterns, unless they are long."""
    places = found.pop("at")
    if places and a.shape[-1] <= 32:
        found["examples"] = [
            {"a": hexadecimal(a[t, i]), "b": hexadecimal(b[t, :, j]),
             "c": hexadecimal(c[t, i, j]), "device": hexadecimal(got[t, i, j]),
             "model": hexadecimal(model[t, i, j])}
            for t, i, j in places
        ]  # fmt: skip


def each(model: Model, a: Array, b: Array, c: Array) -> Array:
    return np.stack([model(*slot) for slot in zip(a, b, c, strict=True)])


def variants(unit: core.Core) -> dict[str, core.Core]:
    """What else the hardware might do, one change at a time."""
    return {
        **{f"group {n}": unit._replace(group=n) for n in (4, 8, 16, 32) if n != unit.group},
        **{f"{n} bits": unit._replace(bits=n) for n in (12, 13, 14, 23, 24, 25, 26, 27)},
        **{f"result of {n} bits": unit._replace(kept=n) for n in (13, 23) if n != unit.kept},
        **{f"floor {n}": unit._replace(floor=n) for n in (-126, -132, -134, -149, -900)},
        "subnormals normalised": unit._replace(normalised=True),
    }


Read = Callable[[Array, int], Array]  # of operands, and the axis that is k


def _as_it_is(x: Array, axis: int) -> Array:
    return x


def _half(x: Array, axis: int) -> Array:
    return x.astype(np.float16)


def _half_by_lanes(x: Array, axis: int, run: int = 2, parts: int = 2) -> Array:
    return by_lanes(x.astype(np.float16), axis, run, parts)


def _as_core(unit: core.Core, read: Read = _as_it_is) -> Model:
    return lambda a, b, c: core.tensor_core(read(a, -1), read(b, -2), c, unit)


def _float32_then_half(a: Array, b: Array, c: Array, every: int) -> Array:
    """float16 accumulators held in float32 for `every` products."""
    for k in range(0, a.shape[1], every):
        step = core.tensor_core(a[:, k : k + every], b[k : k + every], c.astype("f4"), core.HALF)
        c = step.astype(np.float16)
    return c


def _products_then_sums(a: Array, b: Array, c: Array, order: int = 1) -> Array:
    for k in range(a.shape[1])[::order]:
        c = c + a[:, k, None] * b[None, k]
    return c


def candidates(dtype: np.dtype, m: int, precision: str, out: np.dtype) -> dict[str, Model]:
    """Models to try where the model proper differs."""
    found: dict[str, Model] = {"any order (float64)": partial(dot, precision="tf32", model="ieee")}
    if dtype == np.float64 or precision == "ieee":
        return found | {"products, then sums": _products_then_sums}
    unit = core.core_for(dtype, m, False)
    if precision == "tf32x3":
        return found
    read: Read = {
        np.dtype(np.float32): lambda x, axis: drop_to_tf32(x),
        **({dtype: _half_by_lanes} if dtype.itemsize == 1 and unit == core.HALF else {}),
    }.get(dtype, _as_it_is)
    found |= {name: _as_core(other, read) for name, other in variants(unit).items()}
    if dtype == np.float32:
        found["operands to nearest"] = _as_core(unit, lambda x, axis: nearest_tf32(x))
        found["operands whole"] = _as_core(unit)
    if dtype.itemsize == 1:
        found["converted to fp16, k in order"] = _as_core(core.HALF, _half)
        for run, parts in ((1, 2), (1, 4), (2, 4), (4, 2)):
            order = partial(_half_by_lanes, run=run, parts=parts)
            found[f"converted to fp16, {run} of {run * parts}"] = _as_core(core.HALF, order)
        found["fp8 instruction"] = _as_core(core.FP8_WGMMA)
    if out == np.float16:
        found |= {f"float32 for {n}": partial(_float32_then_half, every=n) for n in (16, 32, 999)}
    return found


def measured(
    dtype: torch.dtype, out: torch.dtype, precision: str, shape: tuple[int, int, int],
    products: int,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """One record a data kind: the dot of this dtype and shape on the device and by the model."""
    m, n, k = shape
    trials, kind_in, kind_out = max(2, products // (m * n * k)), NUMPY[dtype], NUMPY[out]
    model: Model = partial(dot, precision=precision, model="hopper")
    for seed, (kind, draw) in enumerate(KINDS.items()):
        a, b, c = draw(Draw(seed, trials, m, n, k, kind_in))
        a, b, c = rounded(a, kind_in), rounded(b, kind_in), rounded(c, kind_out)
        result = torch.empty(c.shape, dtype=out, device=DEVICE)
        operands = to_torch(a, dtype), to_torch(b, dtype), to_torch(c, out), result
        launched = dot_kernel[(trials,)](*operands, m, n, k, precision)
        got, expected = to_numpy(result), each(model, a, b, c)
        found = compared(got, expected)
        examples(found, a, b, c, got, expected)
        if found["mismatches"] > found["only the sign of zero"]:
            worst = np.argsort(-unequal(got, expected).sum((1, 2)), kind="stable")
            few = worst[: max(1, 2048 // (m * n))]
            found["outputs for candidates"] = few.size * m * n
            found["candidates"] = {
                name: int(unequal(got[few], each(other, a[few], b[few], c[few])).sum())
                for name, other in {
                    "model": model,
                    **candidates(kind_in, m, precision, kind_out),
                }.items()
            }
        yield {
            "probe": "dot", "dtype": str(dtype), "accumulator": str(out), "precision": precision,
            "shape": shape, "data": kind, "instructions": instructions(launched), **found,
        }  # fmt: skip
