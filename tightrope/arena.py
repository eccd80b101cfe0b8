"""Arenas: every input and output lies between guard bands, unused slots and outputs are poisoned.

One block of memory holds all inputs of a call and room for what the kernel allocates. It is
uploaded once and downloaded once; afterwards every byte that the kernel had no business with is
compared.

    | band | q (gaps poisoned) | band | k | band | ... | band | output | band | output | band |
    room |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tightrope.budget import Violation
from tightrope.formats import FORMATS, Array
from tightrope.layouts import Placement, place

if TYPE_CHECKING:
    import torch

GUARD = 0x0055  # a subnormal in every format up to 32 bits: a stray `+= 0.0` that flushes shows
POISON = 0x7FFA  # a NaN in every format
BAND = 256  # bytes
ROOM = 1 << 16  # bytes for outputs in the smallest arena
LINE = 64  # bytes; inputs and outputs start at a multiple of it, plus their offset
VIEW = "view of "  # a layout "view of k": the leading part of an earlier input, in its memory


# A call in the memory of the one before it: what a kernel keeps by address is out of date.
_last: dict[str, torch.Tensor] = {}


class MemoryFault(Violation):
    """The kernel wrote where it must not, or did not write where it must."""


@dataclass(frozen=True)
class Section:
    """One input inside the block. `start` is in bytes and counts the layout's offset."""

    name: str
    start: int
    dtype: np.dtype
    shape: tuple[int, ...]
    placement: Placement

    def view(self, block: Array) -> Array:
        strides = tuple(s * self.dtype.itemsize for s in self.placement.strides)
        return np.ndarray(self.shape, self.dtype, block, self.start, strides)


@dataclass(frozen=True)
class Allocation:
    """What the kernel asked for: bytes [start, stop) of a chunk."""

    chunk: int
    start: int
    stop: int


class Arena:
    """The memory of one call.

    arrays: the inputs. layouts: name -> a layout (tightrope.layouts), or "view of NAME": the
    leading elements of that input, whose values it must hold and whose dtype it has.
    """

    def __init__(
        self, arrays: Mapping[str, Array], layouts: Mapping[str, str], device: str
    ) -> None:
        self.sections: dict[str, Section] = {}
        cursor = BAND
        self.views = {n: l[len(VIEW) :] for n, l in layouts.items() if l.startswith(VIEW)}
        for name, array in arrays.items():
            if name in self.views:
                whole = self.sections[self.views[name]]
                self.sections[name] = replace(whole, name=name, shape=array.shape)
                continue
            placement = place(layouts.get(name, "contiguous"), array.shape)
            start = _aligned(cursor) + placement.offset * array.dtype.itemsize
            self.sections[name] = Section(name, start, array.dtype, array.shape, placement)
            cursor = _aligned(cursor) + placement.extent * array.dtype.itemsize + BAND
        self.inputs_end = _aligned(cursor)
        self.before = self._fill(arrays)
        self.device = device
        self.chunks: list[torch.Tensor] = []
        self.used: list[int] = []
        self.allocations: list[Allocation] = []

    def _fill(self, arrays: Mapping[str, Array]) -> Array:
        room = max(ROOM, 2 * self.inputs_end)
        block = np.full((self.inputs_end + _aligned(room)) // 2, GUARD, np.uint16)
        for name, array in arrays.items():
            if name in self.views:
                continue
            section = self.sections[name]
            size = array.dtype.itemsize
            first = section.start - section.placement.offset * size
            gaps = block.view(np.uint8)[first : first + section.placement.extent * size]
            if array.dtype.name in FORMATS:
                gaps.view(np.uint16)[:] = POISON
            else:
                # an integer may be an index: what a masked lane reads must be harmless
                block.view(np.uint8)[first - BAND : first + len(gaps) + BAND] = 0
            section.view(block)[...] = array
        return block

    def upload(self) -> None:
        import torch

        memory = torch.from_numpy(self.before.view(np.int16))
        last = _last.get(self.device)
        if last is None or last.shape != memory.shape:
            last = _last[self.device] = torch.empty_like(memory, device=self.device)
        self.chunks = [last.copy_(memory)]
        self.used = [self.inputs_end]

    def asked_for(self, chunk: int, byte: int) -> bool:
        """Whether the kernel was given this byte in this call."""
        return any(a.chunk == chunk and a.start <= byte < a.stop for a in self.allocations)

    def argument(self, name: str) -> torch.Tensor:
        """The input as a tensor with its layout's strides."""
        section = self.sections[name]
        dtype, strides = section.dtype.name, section.placement.strides
        return _view(self.chunks[0], dtype, section.shape, strides, section.start)

    def allocate(
        self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        """Poisoned memory between guard bands, as `torch.empty_strided` would give it."""
        import torch

        extent = (
            0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        )
        size = extent * dtype.itemsize
        size += size % 2
        need = _aligned(size) + 2 * BAND
        if self.used[-1] + need > 2 * self.chunks[-1].numel():
            words = _aligned(max(need, ROOM) + BAND) // 2
            self.chunks.append(torch.full((words,), GUARD, dtype=torch.int16, device=self.device))
            self.used.append(0)
        start = _aligned(self.used[-1] + BAND)
        chunk = self.chunks[-1]
        chunk[start // 2 : (start + size) // 2].fill_(POISON)
        self.used[-1] = _aligned(start + size) + BAND
        self.allocations.append(Allocation(len(self.chunks) - 1, start, start + size))
        return _view(chunk, str(dtype).removeprefix("torch."), shape, strides, start)

    def download(self) -> list[Array]:
        """Every chunk after the call, as uint16 words on the host; unused room too."""
        return [chunk.cpu().numpy().view(np.uint16) for chunk in self.chunks]

    def locate(self, tensor: torch.Tensor) -> tuple[int, int] | None:
        """(chunk, first byte in it) of a tensor, None if it lies elsewhere.

        By address: a view made outside of torch (DLPack, NumPy) has a storage of its own.
        """
        pointer = tensor.data_ptr()
        for index, chunk in enumerate(self.chunks):
            byte = pointer - chunk.data_ptr()
            if 0 <= byte < 2 * chunk.numel():
                return index, byte
        return None

    def check(self, blocks: list[Array], written: Mapping[str, str]) -> None:
        """Raise MemoryFault unless inputs, gaps and all memory nobody asked for are unchanged.

        written: inputs that the call may change in place (name -> output's name).
        """
        expected = self.before[: self.inputs_end // 2]
        if written:
            expected = expected.copy()
            for name in written:
                section = self.sections[name]
                section.view(expected)[...] = section.view(blocks[0])
        actual = blocks[0][: self.inputs_end // 2]
        if not np.array_equal(actual, expected):
            raise MemoryFault(self._blame(2 * int(np.argmax(actual != expected))), law="memory")
        for index, block in enumerate(blocks):
            mine = [a for a in self.allocations if a.chunk == index]
            stray = block != GUARD
            stray[: self.inputs_end // 2 if index == 0 else 0] = False
            for allocation in mine:
                stray[allocation.start // 2 : allocation.stop // 2] = False
            if stray.any():
                raise MemoryFault(_astray(2 * np.flatnonzero(stray), mine), law="memory")

    def _blame(self, byte: int) -> str:
        for section in self.sections.values():
            size = section.placement.extent * section.dtype.itemsize
            first = section.start - section.placement.offset * section.dtype.itemsize
            if first <= byte < first + size:
                return f"input {section.name} was changed: byte {byte - first} of its storage"
            if byte < first:
                ahead = first - byte
                return (
                    f"guard band before input {section.name} was overwritten, {ahead} bytes ahead"
                )
        return "guard band after the last input was overwritten"


def _astray(stray: Array, allocations: list[Allocation]) -> str:
    """Where the first of the stray bytes lies, seen from the output nearest to it."""
    first, total = int(stray[0]), 2 * stray.size
    if not allocations:
        return f"{total} bytes behind the inputs were overwritten"

    def away(a: Allocation) -> int:
        return a.start - first if first < a.start else first - a.stop

    near = min(allocations, key=away)
    side = "before" if first < near.start else "after"
    return (
        f"guard band overwritten: {total} bytes, the first of them {away(near)} bytes {side} "
        f"an output of {near.stop - near.start} bytes"
    )


def unwritten(array: Array) -> int:
    """How many elements still hold the poison they started with."""
    return len(where_unwritten(array))


def where_unwritten(array: Array) -> Array:
    """Indices (n, array.ndim) of the elements that still hold the poison they started with."""
    if not array.size:
        return np.empty((0, array.ndim), np.intp)
    words = np.ascontiguousarray(array).view(np.uint16).reshape(array.size, -1)
    return np.argwhere((words == POISON).all(axis=1).reshape(array.shape))


def _aligned(byte: int) -> int:
    return -(-byte // LINE) * LINE


def _view(memory: torch.Tensor, dtype: str, shape: Any, strides: Any, start: int) -> torch.Tensor:
    import torch

    kind = getattr(torch, dtype)
    return torch.as_strided(memory.view(kind), shape, strides, start // kind.itemsize)
