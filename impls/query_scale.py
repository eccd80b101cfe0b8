"""The query temperature of layers without positions (Llama 4, Ministral 3), in one launch.

The steps are counted in integers, so that no position is too large; the logarithm, the product and
the sum are float64, rounded once to float32. libdevice's float64 log is within 1 ulp of correctly
rounded (CUDA programming guide, mathematical functions), so 1.5 of exact; NumPy's, which stands in
under the interpreter, within 1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from tightrope import Arithmetic, implements
from tightrope.launch import capability, launcher
from tightrope.validate import INTEGERS, check_tensor, refuse


@triton.jit(do_not_specialize=[*range(7)])
def query_scale_kernel(
    positions, scale, length: tl.int64, stride: tl.int64, floor_scale: tl.int64, shift: tl.int64,
    attn_scale: tl.float64, BLOCK: tl.constexpr,
):  # fmt: skip
    # positions by stride, 0 or more; scale contiguous.
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    m = tl.load(positions + place * stride, mask=place < length, other=0).to(tl.int64)
    # Unsigned, so that the last int64 has a successor.
    steps = (m.to(tl.uint64) + shift.to(tl.uint64)) // floor_scale.to(tl.uint64)
    log = tl.log(steps.to(tl.float64) + 1.0)
    tl.store(scale + place, (1.0 + attn_scale * log).to(tl.float32), mask=place < length)


class Config(NamedTuple):
    """Positions of a program (a power of 2) and its warps."""

    BLOCK: int
    num_warps: int


def config(length: int, capability: tuple[int, int] | None) -> Config:
    """Pure. capability: (major, minor), or None for the interpreter: few programs there."""
    if capability is None:
        return Config(min(triton.next_power_of_2(triton.cdiv(max(length, 1), 4)), 2**16), 4)
    return Config(512, 4)


def check_query_scale(positions: Any, attn_scale: Any, floor_scale: Any, shift: Any) -> None:
    """Refuse what the contract excludes; reads the elements of CPU tensors only.

    Raises: TypeError (types, dtypes), ValueError (shape, numbers out of range, a position below 0).
    """
    check_tensor("positions", positions, ("len",), INTEGERS)
    for name, value, least in (("floor_scale", floor_scale, 1), ("shift", shift, 0)):
        if not isinstance(value, int) or isinstance(value, bool):
            refuse(name, "an int", repr(value), TypeError)
        if not least <= value < 2**31:
            refuse(name, f"{least} to 2^31 - 1", value)
    if not isinstance(attn_scale, (int, float)) or isinstance(attn_scale, bool):
        refuse("attn_scale", "a float", repr(attn_scale), TypeError)
    if not 0 < attn_scale < 2**64:
        refuse("attn_scale", "a number above 0 and below 2^64", attn_scale)
    if positions.device.type == "cpu" and positions.numel() and int(positions.min()) < 0:
        refuse("positions", "0 or more", int(positions.min()))


@implements(
    "query_scale",
    name="triton",
    # "huge" is asked only of kernels that name it: positions past 2^24.
    positions=("range", "steps", "random", "repeated", "descending", "long", "huge"),
    arithmetic=Arithmetic(position="exact", quotient="exact", log="float64", log_ulp=1.5),
)
def query_scale(
    positions: torch.Tensor, *, attn_scale: float, floor_scale: int, shift: int
) -> torch.Tensor:
    """1 + attn_scale ln(1 + floor((positions + shift)/floor_scale)), (len,) float32.

    positions (len,), int32 or int64, 0 or more; what is below 0 on a GPU, where nobody looks, gives
    some number. shift: 1 for Llama 4, 0 for Ministral 3. Raises as `check_query_scale`.
    """
    check_query_scale(positions, attn_scale, floor_scale, shift)
    length, device = positions.shape[0], positions.device
    tile = config(length, capability(query_scale_kernel, device))
    scale = torch.empty(length, dtype=torch.float32, device=device)
    launch = launcher(
        query_scale_kernel,
        device,
        programs=triton.cdiv(length, tile.BLOCK),
        numbers=(length, positions.stride(0), floor_scale, shift, float(attn_scale)),
        constants={"BLOCK": tile.BLOCK},
        num_warps=tile.num_warps,
    )
    launch(positions, scale)
    return scale
