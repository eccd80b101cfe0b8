"""What is replaced in Triton, and what each replaced function must look like."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import triton.language as tl
import triton.runtime.interpreter as ip
from triton.language.semantic import TritonSemantic
from triton.runtime.autotuner import Autotuner

from tightrope.interpreter import (
    arguments,
    arithmetic,
    elementary,
    libdevice,
    memory,
    reductions,
    shortcuts,
    tapes,
    types,
)
from tightrope.interpreter.state import STATE, launching

BUILDER = ip.InterpreterBuilder


class Replacement(NamedTuple):
    """One attribute to replace. parameters: the leading ones it must have; optional: may lack."""

    owner: Any
    name: str
    new: Callable[..., Any]
    parameters: str | None = None
    optional: bool = False


def _run(self: Any, *args: Any, grid: Any, warmup: Any, **kwargs: Any) -> Any:
    """A launch: the interpreter drops launch options, so contraction is decided here."""
    stock = STATE.original[ip.InterpretedFunction, "run"]
    args, kwargs = arguments.typed(self.fn, args, kwargs)
    # A GPU computes infinities and NaN in silence.
    with launching(kwargs.get("enable_fp_fusion")), np.errstate(all="ignore"):
        return stock(self, *args, grid=grid, warmup=warmup, **kwargs)


class _NothingPatched:
    def restore(self) -> None:
        """Nothing to put back: an earlier call of the same launch did the work."""


def _patch_lang(fn: Any) -> Any:
    """Prepare `triton.language`: once a launch; stock does it at every device function call."""
    languages = tuple(sorted({id(v) for v in fn.__globals__.values() if v is tl or v is tl.core}))
    if STATE.prepared is not None:  # a launch is under way
        if languages in STATE.prepared:
            return _NothingPatched()
        STATE.prepared.add(languages)
    return STATE.original[ip, "_patch_lang"](fn)


def _bench(self: Any, *args: Any, config: Any, **meta: Any) -> list[float]:
    """Every configuration takes no time, so the first that survives pruning is used."""
    return [0.0, 0.0, 0.0]


def _shortcuts() -> Iterator[Replacement]:
    made, semantic = shortcuts.block_type_init, TritonSemantic
    check, broadcast = shortcuts.sanitize_overflow, shortcuts.broadcast_impl_value
    yield Replacement(tl.block_type, "__init__", made, "self element_ty shape")
    yield Replacement(tl.tensor, "__init__", shortcuts.tensor_init, "self handle type")
    overflow = "binary_op_sanitize_overflow_impl"
    yield Replacement(semantic, overflow, check, "self lhs rhs binary_op", optional=True)
    yield Replacement(semantic, "broadcast_impl_value", broadcast, "self lhs rhs")
    yield Replacement(ip, "_patch_attr", tapes.patch_attr, "obj name member builder scope")


def replacements() -> Iterator[Replacement]:
    """Everything that install replaces."""
    yield Replacement(ip, "_get_np_dtype", types.stored_dtype, "tt_dtype")
    converted = "input input_dtype output_dtype rounding_mode"
    yield Replacement(ip, "_convert_float", memory.convert_float, converted)
    yield Replacement(ip, "_implicit_cvt", arguments.implicit_cvt, "arg")
    yield Replacement(ip, "_patch_lang", _patch_lang, "fn")
    yield Replacement(ip, "_patch_lang_tensor", memory.patch_lang_tensor, "tensor scope")
    yield Replacement(ip.InterpretedFunction, "run", _run, "self args grid warmup kwargs")
    yield Replacement(ip.ReduceOps, "sum", reductions.reduce_sum, "self input")
    extremum = "self input val_reduce_op idx_reduce_op"
    yield Replacement(ip.ReduceOps, "min_max", reductions.min_max, extremum)
    yield Replacement(ip.ScanOps, "cumsum", reductions.scan_sum, "self input")
    yield Replacement(Autotuner, "_bench", _bench)
    yield from _shortcuts()
    for name, parameters in _BUILDER_PARAMETERS.items():
        home = next(m for m in (memory, arithmetic, elementary) if hasattr(m, name))
        yield Replacement(BUILDER, name, getattr(home, name), parameters)
    for name, new in elementary.REPLACED.items():
        yield Replacement(BUILDER, name, new, "self arg")
    yield Replacement(BUILDER, "get_bf16", memory.get_bf16, "self value", optional=True)
    yield Replacement(BUILDER, "create_fneg", arithmetic.create_fneg, "self input", optional=True)
    for module in libdevice.modules():
        for name in libdevice.names(module):
            yield Replacement(module, name, libdevice.replacement(name))


_BUILDER_PARAMETERS = {
    "binary_op": "self lhs rhs op",
    "cast_impl": "self src dst_type",
    "create_masked_load": "self ptrs mask other",
    "create_masked_store": "self ptrs value mask",
    "create_atomic_rmw": "self rmwOp ptr val mask",
    "create_dot": "self a b d input_precision max_num_imprecise_acc",
    "create_fma": "self x y z",
    "create_clampf": "self arg lo hi propagate_nans",
    "create_expand_dims": "self arg axis",
    "create_broadcast": "self arg shape",
    "create_splat": "self ret_ty arg",
    **{f"create_{op}": "self lhs rhs" for op in ("fadd", "fsub", "fmul", "frem", "umulhi")},
    **{f"create_{op}f": "self lhs rhs" for op in ("maxnum", "minnum", "maximum", "minimum")},
}
