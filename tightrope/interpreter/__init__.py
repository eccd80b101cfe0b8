"""Triton's interpreter, made to round the way a compiled kernel rounds.

The stock interpreter (`TRITON_INTERPRET=1`) keeps bfloat16 as uint16 and then adds, compares and
multiplies the *bit patterns*; it truncates float32 to bfloat16, rounds `a*b+c` twice, ignores
`input_precision`, and lets a scalar float argument take part in float64. After `install()` every
prescribed rounding is done once, to nearest even, as in the PTX that Triton 3.6 to 3.9 emits for
sm_90, so that a kernel gives the same bits here and on a GPU, except for `NOT_FAITHFUL`.

    with install(dot="hopper"):
        kernel[grid](...)

Importing this package imports neither Triton nor NumPy; `install` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tightrope.interpreter.patch import Patch

__all__ = ["DOT_MODELS", "NOT_FAITHFUL", "TESTED_TRITON", "Patch", "install"]

DOT_MODELS = ("ieee", "tf32", "hopper")
TESTED_TRITON = ("3.6", "3.7", "3.9")

NOT_FAITHFUL: tuple[str, ...] = (
    "approximate functions (exp, exp2, sqrt, rsqrt, float32 /) and libdevice (log, sin, cos):"
    " the rounded float64 value stands in for a result a few ulps off; the product inside tl.exp"
    " and the flushes of exp2, sqrt and rsqrt are modelled",
    "sums and scans along an axis: the order depends on the layout; here by halves and by doubling",
    "contraction of a*b+c: which product is fused when both could be and one has other uses; a"
    " product made before a loop or a branch is fused here, one that passes through a reshape or a"
    " transposition is not; nothing is fused inside a reduction",
    "tensor cores: fp16 and bf16 with float32 accumulation follow the published Hopper model; tf32,"
    " fp8, fp16 accumulators, float64 sums, overflow and max_num_imprecise_acc are not verified;"
    " dot_scaled is Triton's own, which fails before 3.9",
    "float64 %: the exact remainder here",
    "arg-reductions over NaN, and signed zeros in tl.max and tl.min along an axis",
    "NaN payloads and signs (a GPU returns 0x7fffffff)",
    "atomics: in program order, lane after lane; races, barriers and shared memory do not exist",
    "masked loads without other give 0; an access out of bounds is a plain access to host memory",
    "inline assembly, and libdevice functions on integers and bit patterns: refused",
    "autotuning measures nothing: the first configuration is used",
)


def install(dot: str = "hopper", contract: bool | None = None) -> Patch:
    """Make Triton's interpreter faithful until `.restore()` (or the end of a `with` block).

    dot: how `tl.dot` sums. `"ieee"`: operands as given, float64 sum, one rounding to the
        accumulator; `"tf32"`: the same after float32 operands went through `input_precision`;
        `"hopper"`: the same operands, the tensor core's own sum (`tightrope.interpreter.dots`).
    contract: whether `a*b+c` becomes one fma; None follows the default of this Triton. A launch
        with `enable_fp_fusion=...` decides for itself.

    Installs nest: `restore` brings back the settings that were in force before. Launches of several
    threads take turns; install and restore in one thread.
    Raises ValueError for an unknown `dot`, RuntimeError if TRITON_INTERPRET=1 was not set before
    Triton was imported, or if this Triton's internals are not the ones relied upon (named).
    """
    try:
        from tightrope.interpreter import patch
    except (AttributeError, ImportError) as error:
        tested = ", ".join(TESTED_TRITON)
        raise RuntimeError(
            f"Triton's interpreter is missing or unknown: {error} (tested: {tested})"
        ) from error
    return patch.install(dot, contract)


def __getattr__(name: str) -> object:
    if name == "Patch":
        from tightrope.interpreter.patch import Patch

        return Patch
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
