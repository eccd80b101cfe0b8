"""Replacements that change no result, only the time: most of a launch goes into Triton's types.

The types and shapes of a launch are built once each, and a check for integer overflow that is
thrown away unless the launch is for debugging is not computed.
"""

from __future__ import annotations

from typing import Any

import triton.language as tl
from triton.language.semantic import TritonSemantic

from tightrope.interpreter.state import STATE

_OF_A_TENSOR = {"handle", "type", "dtype", "shape", "numel"}


def block_type_init(self: Any, element_ty: Any, shape: Any) -> None:
    stock, known = STATE.original[tl.block_type, "__init__"], STATE.types
    try:
        # The entry holds the element type, so that its id stays its own.
        key = id(element_ty), *shape
        made = None if known is None else known.get(key)
    except TypeError:
        known = made = None
    if made is not None:
        self.__dict__.update(made)
        return
    stock(self, element_ty, shape)
    if known is not None:
        known[key] = dict(self.__dict__)


def tensor_init(self: Any, handle: Any, type: Any) -> None:
    known = STATE.types
    made = None if known is None else known.get(type.name)
    if made is not None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = made
        return
    STATE.original[tl.tensor, "__init__"](self, handle, type)
    if known is not None and set(self.__dict__) == _OF_A_TENSOR:
        known[type.name] = self.shape, self.numel


def sanitize_overflow(self: Any, lhs: Any, rhs: Any, binary_op: Any) -> None:
    """The check ends in a `device_assert`, which is dropped without debug."""
    if self.builder.options.debug:
        name = "binary_op_sanitize_overflow_impl"
        STATE.original[TritonSemantic, name](self, lhs, rhs, binary_op)


def broadcast_impl_value(self: Any, lhs: Any, rhs: Any) -> Any:
    """Equal shapes need no broadcast; the stock function finds that out at length."""
    a, b = lhs.type, rhs.type
    if a.is_block() and b.is_block() and a.shape.values == b.shape.values:
        return lhs, rhs
    return STATE.original[TritonSemantic, "broadcast_impl_value"](self, lhs, rhs)
