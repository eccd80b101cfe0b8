"""Tensors that a kernel's launcher makes: they are given memory between guard bands."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from tightrope.arena import Arena

if TYPE_CHECKING:
    import torch


@cache
def watcher() -> Any:
    """The class of a mode in which new tensors lie between guard bands, empty ones poisoned."""
    import torch
    from torch.overrides import TorchFunctionMode

    own, blank = torch.Tensor, {
        torch.empty, torch.empty_like, torch.empty_strided, torch.empty_permuted,
        torch.Tensor.new_empty, torch.Tensor.new_empty_strided,
    }  # fmt: skip
    filled = {
        torch.zeros, torch.zeros_like, torch.ones, torch.ones_like, torch.full, torch.full_like,
        torch.clone, own.clone, own.new_zeros, own.new_ones, own.new_full, own.new_tensor,
    }  # fmt: skip

    class Watcher(TorchFunctionMode):
        def __init__(self, arena: Arena) -> None:
            super().__init__()
            self.arena = arena
            self.home = torch.device(arena.device).type

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            made = func(*args, **kwargs)
            if (func not in blank and func not in filled) or not self.guardable(made, kwargs):
                return made
            guarded = self.arena.allocate(tuple(made.shape), made.stride(), made.dtype)
            if func in filled:
                guarded.copy_(made)
            return guarded.requires_grad_(made.requires_grad)

        def guardable(self, made: torch.Tensor, kwargs: Mapping[str, Any]) -> bool:
            # one without elements may be resized, which would take the arena's memory after it
            plain = type(made) is torch.Tensor and made.layout is torch.strided and made.numel()
            here = made.device.type == self.home and kwargs.get("out") is None
            return bool(plain and here and made.grad_fn is None and not made.is_quantized)

    return Watcher
