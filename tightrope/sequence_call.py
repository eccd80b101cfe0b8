"""From a call to a launch, for the packed, paged and rotating attention kernels.

As in `tightrope.attention_call`, everything that metadata decides is decided once and kept. These
kernels take first the tensors whose addresses an aligned build needs at multiples of 16, then the
others, then numbers, then constants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
import triton

from tightrope import Arithmetic
from tightrope.arithmetic import EXP2, LOG2
from tightrope.attention_call import NO_KEY, UNIT, bounds, described, factors
from tightrope.attention_tiles import Config
from tightrope.launch import aligned, launcher


class Options(NamedTuple):
    """The contracts' common keywords, but for bias, which none of these has."""

    softmax_scale: Any
    causal: Any
    q_offset: Any
    window_size: Any
    softcap: Any
    sink: Any
    out_dtype: Any

    def numbers(self, head_dim: int) -> tuple[float, ...]:
        """(left, right, c, factor, cap) of a launch, as `attention_call` makes them."""
        scale, cap = self.softmax_scale, self.softcap
        return (*bounds(self.causal, self.window_size), *factors(scale, cap, head_dim))


class Plan(NamedTuple):
    """What one set of metadata decides: the launch of each build, ready but for the addresses.

    no_sink and no_offsets stand in, without memory, for what is off. rest: the caller's own.
    """

    general: Callable[..., None]
    aligned: Callable[..., None] | None
    no_sink: torch.Tensor
    no_offsets: torch.Tensor
    on_cpu: bool
    rest: Any

    def launch(
        self, wide: Sequence[torch.Tensor], sink: Any, offsets: Any, *others: torch.Tensor
    ) -> None:
        """Launch on these tensors, in the kernel's order."""
        sink = self.no_sink if sink is None else sink
        offsets = offsets if isinstance(offsets, torch.Tensor) else self.no_offsets
        self.launch_all(wide, sink, offsets, *others)

    def launch_all(self, wide: Sequence[torch.Tensor], *others: torch.Tensor) -> None:
        """The same for a kernel without options: in the aligned build if addresses allow it."""
        chosen = self.general
        if self.aligned is not None:
            addresses = 0
            for t in wide:
                addresses |= t.data_ptr()
            if not addresses % 16:
                chosen = self.aligned
        chosen(*wide, *others)


_PLANS: dict[Any, Plan] = {}


def planned(arguments: Sequence[Any], check: Callable[[], None], make: Callable[[], Plan]) -> Plan:
    """The plan for the arguments' metadata, made once by `make` after `check` let them pass."""
    key: Any = None
    try:
        key = described(arguments)
        plan = _PLANS.get(key)
    except NO_KEY:  # the check says why
        plan = None
    if plan is None:
        check()
        plan = make()
        if len(_PLANS) >= 4096:
            _PLANS.clear()
        if key is not None:
            _PLANS[key] = plan
    return plan


def strides(tensors: Iterable[Any], unit: int) -> tuple[int, ...]:
    """All strides in turn; but for the last axis' they count `unit` elements."""
    return tuple(chain(*((*(s // unit for s in t.stride()[:-1]), t.stride(-1)) for t in tensors)))


def make_plan(
    kernel: Any,
    wide: Sequence[torch.Tensor],
    lengths: tuple[int, ...],
    programs: int,
    numbers: Callable[[int], tuple[float, ...]],
    constants: Mapping[str, Any],
    tile: Config,
    rest: Any = None,
) -> Plan:
    """Both builds of a kernel, the aligned one where the metadata of `wide` and `lengths` allows.

    lengths: head_dim, head_dim_v, and others that must be multiples of a word. numbers(unit): of a
    launch whose strides and lengths count `unit` elements. constants: beside UNIT, PADDED, BLOCK_D,
    BLOCK_DV, BLOCK_M and BLOCK_N, which come first. Raises as `tightrope.launch.launcher`.
    """
    device = wide[0].device
    widths = [max(16, triton.next_power_of_2(n)) for n in lengths[:2]]

    def build(unit: int) -> Callable[..., None]:
        shape = {
            "UNIT": unit, "PADDED": unit == 1 or widths != [*lengths[:2]],
            "BLOCK_D": widths[0], "BLOCK_DV": widths[1],
            "BLOCK_M": tile.BLOCK_M, "BLOCK_N": tile.BLOCK_N,
        }  # fmt: skip
        given = {**shape, **constants}
        warps, stages = tile.num_warps, tile.num_stages
        return launcher(kernel, device, programs, numbers(unit), given, warps, stages)

    no_sink, no_offsets = (
        torch.empty(0, dtype=t, device=device) for t in (torch.float32, torch.int32)
    )
    words = build(UNIT) if aligned(UNIT, wide, lengths) else None
    return Plan(build(1), words, no_sink, no_offsets, device.type == "cpu", rest)


def arithmetic(case: Any, device: Any, block_k: int | None) -> Arithmetic:
    """What these kernels promise; block_k: keys of a tile, tiles ascending, or None: not said."""
    single = case.dtype == "float32"
    hopper = device.interpreted or device.capability == (9, 0)
    return Arithmetic(
        dot="hopper_mma" if hopper and not single else "any", dot_precision="ieee",
        scores="float32", p="input", accumulator="unnormalised", logits="scaled", lse="base2",
        sink="start", block_k=block_k, exp_ulp=EXP2, exp_flush=True, division_ulp=2.5,
        log_ulp=LOG2,
    )  # fmt: skip
