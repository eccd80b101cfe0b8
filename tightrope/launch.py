"""Launching a Triton kernel over and over with little host time; all that kernels share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import triton

from tightrope import compiles
from tightrope.validate import refuse


def interpreted(kernel: Any) -> bool:
    """Whether TRITON_INTERPRET was set when `kernel` was decorated."""
    return not isinstance(kernel, triton.JITFunction)


def capability(kernel: Any, device: torch.device) -> tuple[int, int] | None:
    """(major, minor) of the GPU, None for the interpreter; the key of every config table.

    Raises ValueError for a device that the kernel cannot run on.
    """
    if device.type == "meta":
        refuse("device", "one with memory", device)
    if interpreted(kernel):
        return None
    if device.type != "cuda":
        refuse("device", "cuda, or TRITON_INTERPRET=1 set before Triton is imported", device)
    return torch.cuda.get_device_capability(device)


def check_plain(*tensors: Any) -> None:
    """Refuse tensors that mean more than their memory holds; ValueError. What is no tensor passes.

    That is: autograd would record the call, or a minus sign is pending (`x.conj().imag`).
    """
    for t in tensors:
        if not isinstance(t, torch.Tensor):
            continue
        if t.requires_grad and torch.is_grad_enabled():
            refuse("requires_grad", "False, or torch.no_grad(): no gradient is computed", True)
        if t.is_neg():
            refuse("is_neg()", "False, as after resolve_neg(): kernels read bare memory", True)


def aligned(unit: int, tensors: Iterable[torch.Tensor], lengths: Iterable[int]) -> bool:
    """Whether rows are contiguous and start, like the lengths, at multiples of `unit` elements.

    That is what metadata can tell; addresses are known at the call.
    """
    return not any(n % unit for n in lengths) and all(
        t.stride(-1) == 1 and not any(s % unit for s in t.stride()[:-1]) for t in tensors
    )


def launcher(
    kernel: Any,
    device: torch.device,
    programs: int,
    numbers: tuple[float, ...],
    constants: Mapping[str, Any],
    num_warps: int,
    num_stages: int | None = None,
) -> Callable[..., None]:
    """`launch(*tensors)` for one compiled form of a kernel(tensors, numbers, constants).

    The first call goes through Triton's JIT; later ones go to the compiled kernel with bare
    addresses, which skips the JIT's look at every argument. So the kernel must not specialize on
    any, its numbers must be annotated with their types, and later tensors have the first ones'
    dtypes. A float is rounded once, to the type that the kernel annotates. num_stages: tiles of a
    loop in flight, None for Triton's default. Products are not fused into sums. Nothing is launched
    for 0 programs. A kernel with the constant EARLY on may begin before the launch in front of it
    has ended, once that one lets it (programmatic dependent launch, from sm_90 on): it waits itself
    before it reads what that one wrote.

    Raises TypeError for a kernel that specializes.
    """
    compiles.watch()
    for p in getattr(kernel, "params", ()):  # the interpreter's functions specialize on nothing
        if not (p.is_constexpr or p.do_not_specialize):
            refuse(f"{kernel.__name__}'s {p.name}", "do_not_specialize", "specialized", TypeError)
    grid = (programs, 1, 1)
    rest = (*numbers, *constants.values())
    options: dict[str, Any] = {"num_warps": num_warps, "enable_fp_fusion": False}
    if num_stages is not None:
        options["num_stages"] = num_stages
    if constants.get("EARLY"):
        options["launch_pdl"] = True
    compiled: Callable[..., None] | None = None
    index = device.index if device.type == "cuda" else None

    def launch(*tensors: torch.Tensor) -> None:
        nonlocal compiled
        if index is not None and index != torch.cuda.current_device():
            with torch.cuda.device(index):
                return launch(*tensors)
        if compiled is not None:
            compiled(*[t.data_ptr() for t in tensors], *rest)
        elif programs:
            made = kernel[grid](*tensors, *rest, **options)
            compiled = None if made is None else made[grid]  # the interpreter makes nothing

    return launch
