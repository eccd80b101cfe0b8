"""Gluon kernels run on the CPU: their very Python code, with NumPy in place of the language.

Groups of warps are threads; barriers count arrivals and bytes as PTX's mbarriers do, and a wait
that takes too long is a deadlock. TMA writes at once, tensor cores read at the wait: the earliest
and the latest they may, so that a slot filled again too soon shows. Layouts say nothing here.
Numbers: `simulated_numbers`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
import simulated_numbers as numbers
from simulated_numbers import Array, Value, value

from tightrope.interpreter.dots import dot

DOT_MODEL = "ieee"  # of tensor cores; "hopper" is exact, and takes longer
PATIENCE = 20.0  # seconds
FORMATS: dict[str, Any] = {"float32": np.float32, "int64": np.int64, "float16": np.float16}


class Pointer:
    """Elements of one flat array, at offsets."""

    def __init__(self, memory: Array, at: Any = 0) -> None:
        self.memory, self.at = memory, at
        self.dtype = SimpleNamespace(element_ty=memory.dtype)

    def __add__(self, offset: Any) -> Pointer:
        return Pointer(self.memory, self.at + offset)


class Shared:
    """A view of shared memory."""

    def __init__(self, memory: Array) -> None:
        self.memory, self.shape, self.dtype = memory, memory.shape, memory.dtype

    def index(self, i: Any) -> Shared:
        return Shared(self.memory[int(i)])

    def slice(self, start: int, length: int, dim: int) -> Shared:
        assert dim == 0
        return Shared(self.memory[start : start + length])

    def reshape(self, shape: list[int]) -> Shared:
        return Shared(self.memory.reshape(shape))

    def permute(self, order: tuple[int, ...]) -> Shared:
        return Shared(self.memory.transpose(order))

    def load(self, layout: Any) -> Value:
        return value(self.memory.copy())

    def store(self, x: Array) -> None:
        assert x.shape == self.shape
        assert x.dtype == self.dtype
        self.memory[...] = x


class Descriptor:
    """Tiles (planes, 1, rows, features / parts) of a tensor cut to `shape`, 0 outside."""

    layout = None

    def __init__(
        self, x: Array, shape: tuple[int, ...], rows: int, planes: int = 1, parts: int = 1
    ) -> None:
        self.x, self.box = x[tuple(map(slice, shape))], (planes, 1, rows, shape[3] // parts)

    def tile(self, corner: list[Any]) -> Array:
        found = np.zeros(self.box, self.x.dtype)
        at = [slice(int(c), int(c) + n) for c, n in zip(corner, self.box, strict=True)]
        there = self.x[tuple(at)]
        found[tuple(map(slice, there.shape))] = there
        return found


class Barrier:
    """What is pending of the current phase: arrivals and bytes."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.count = self.pending = self.bytes = self.phase = 0

    def init(self, count: int) -> None:
        self.count = self.pending = count

    def arrive(self, count: int = 1, expected: int = 0, received: int = 0) -> None:
        with self.changed:
            self.pending -= count
            self.bytes += expected - received
            assert self.pending >= 0
            if not self.pending and not self.bytes:
                self.phase, self.pending = self.phase + 1, self.count
                self.changed.notify_all()

    def wait(self, parity: Any) -> None:
        with self.changed:
            done = self.changed.wait_for(lambda: self.phase % 2 != parity, PATIENCE)
        if not done:
            raise TimeoutError(f"no arrival in {PATIENCE} s: a deadlock")


class Barriers:
    def __init__(self, count: int) -> None:
        self.all = [Barrier() for _ in range(count)]

    def index(self, i: Any) -> Barrier:
        return self.all[int(i)]


def _expect(bar: Barrier, bytes: int, pred: Any = True) -> None:
    if pred:
        bar.arrive(1, expected=bytes)


def _copy(tiles: Descriptor, at: list[Any], bar: Barrier, result: Shared, pred: Any = True) -> None:
    if pred:
        found = tiles.tile(at)
        result.store(found)
        bar.arrive(0, received=found.nbytes)


class Product:
    """a b + c of tensor cores, computed when it is waited for; 16-bit products, float32 sums."""

    def __init__(self, a: Any, b: Any, c: Any, use_acc: bool = True, is_async: bool = True) -> None:
        self.parts, self.use = (a, b, c), use_acc

    def result(self) -> Value:
        a, b, c = (getattr(x, "memory", x) for x in self.parts)
        c = c.result() if isinstance(c, Product) else c
        c = c if self.use else np.zeros_like(c)
        operands = [np.asarray(x) for x in (a, b, c)]
        return value(dot(*operands, precision="ieee", model=DOT_MODEL))


def _wait(outstanding: int, deps: list[Any]) -> Any:
    """What is waited for, once tensor cores have it."""
    found = tuple(x.result() if isinstance(x, Product) else x for x in deps)
    return found if len(found) > 1 else found[0]


def _load(pointer: Pointer, mask: Any = None, other: float = 0.0) -> Value:
    where, keep = np.broadcast_arrays(pointer.at, True if mask is None else mask)
    assert not (where[keep] < 0).any()
    found = np.full(where.shape, other, pointer.memory.dtype)
    found[keep] = pointer.memory[where[keep]]
    return value(found)


def _store(pointer: Pointer, x: Array, mask: Any = True) -> None:
    where, keep = np.broadcast_arrays(pointer.at, mask)
    assert not (where[keep] < 0).any()
    pointer.memory[where[keep]] = np.broadcast_to(x, where.shape)[keep]


def _shared(dtype: Any, shape: list[int], layout: Any) -> Any:
    return Barriers(shape[0]) if layout == "barriers" else Shared(np.full(shape, np.nan, dtype))


def _specialize(groups: list[Any], warps: list[int], registers: list[int]) -> None:
    """Every group in a thread of its own; the first error of any is raised."""
    errors: list[BaseException] = []

    def run(work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        try:
            with np.errstate(all="ignore"):
                work(*arguments)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=group) for group in groups]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]


def language(program: int, programs: int, assembly: Callable[..., Any]) -> dict[str, Any]:
    """Names that stand for Gluon in one program; assembly: for `gl.inline_asm_elementwise`."""
    nothing = lambda *given, **options: None  # noqa: E731
    gl = SimpleNamespace(
        program_id=lambda axis: value(program), num_programs=lambda axis: programs,
        where=lambda c, a, b: value(np.where(c, a, b)), cdiv=lambda a, b: -(-a // b),
        minimum=lambda a, b: value(np.minimum(a, b)), maximum=lambda a, b: value(np.maximum(a, b)),
        max=lambda x, axis: value(np.max(x, axis)), sum=numbers.sum, fma=numbers.fma,
        exp2=numbers.exp2, log2=numbers.log2,
        full=lambda shape, x, dtype, layout: value(np.full(shape, x, dtype)),
        zeros=lambda shape, dtype, layout: value(np.zeros(shape, dtype)),
        arange=lambda a, b, layout: value(np.arange(a, b)), load=_load, store=_store,
        multiple_of=lambda x, by: x, convert_layout=lambda x, layout: x,
        static_range=lambda *x: range(*map(int, x)),
        allocate_shared_memory=_shared, warp_specialize=_specialize, BlockedLayout=nothing,
        SliceLayout=nothing, DotOperandLayout=nothing, NVMMADistributedLayout=nothing,
        NVMMASharedLayout=SimpleNamespace(get_default_for=nothing),
        inline_asm_elementwise=assembly, **FORMATS,
    )  # fmt: skip
    bars = SimpleNamespace(
        MBarrierLayout=lambda: "barriers", init=lambda bar, count: bar.init(count), expect=_expect,
        arrive=lambda bar, count: bar.arrive(count), wait=lambda bar, parity: bar.wait(parity),
    )  # fmt: skip
    return {
        "gl": gl, "mbarrier": bars, "tma": SimpleNamespace(async_copy_global_to_shared=_copy),
        "warpgroup_mma": Product, "fence_async_shared": nothing, "barrier": nothing,
        "warpgroup_mma_wait": _wait,
        "tl": SimpleNamespace(extra=SimpleNamespace(cuda=SimpleNamespace(gdc_wait=nothing))),
    }  # fmt: skip


def launched(
    functions: dict[str, Any], kernel: str, programs: int, names: dict[str, Any],
    assembly: Callable[..., Any], arguments: tuple[Any, ...],
) -> None:  # fmt: skip
    """Run all programs of a kernel, one after another.

    functions: name -> jitted Gluon function, the kernel among them. names: what else they use.
    """
    for program in range(programs):
        scope = {**language(program, programs, assembly), **names}
        for name, fn in functions.items():
            scope[name] = FunctionType(fn.fn.__code__, scope, name)
        partial(scope[kernel], *arguments)()
