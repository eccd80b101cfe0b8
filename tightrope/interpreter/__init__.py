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
    " and the flushes of exp2, sqrt and rsqrt are modelled. Worst on an H200, in ulps: exp2 2.06,"
    " log2 0.92, log 0.87, sqrt 0.94, rsqrt 1.51, float32 / 2.10, libdevice tanh 1.82"
    " (which makes 0 of a subnormal number there)",
    "sums and scans along an axis: the order depends on the layout; here by halves and by doubling."
    " An H200 adds the columns of a thread one by one, then lanes and warps by halves. After a load"
    " of float32 a thread has up to 4 neighbours of every 4 * lanes * warps columns (those that"
    " share a row); after a dot 2 of every 8, or with 16 rows 2 of every 8 * min(warps, columns/8)",
    "contraction of a*b+c: which product is fused when both could be and one has other uses; a"
    " product made before a loop or a branch is fused here, one that passes through a reshape or a"
    " transposition is not; nothing is fused inside a reduction",
    "tensor cores: dots of one matrix equal an H200's bit for bit (see `interpreter.dots`). Not"
    " verified: fp8 with float16 accumulators, the fnuz"
    " types, batched dots, max_num_imprecise_acc. The rows alone decide here whether fp8 takes its"
    " own instruction (64 or more); on a GPU, 4 warps are needed too. Operands that a kernel widens"
    " (8 bits to 16, 16 to tf32) before a dot of fewer than 64 rows are summed in order here; an"
    " instruction takes other places (`interpreter.dots.by_lanes`). dot_scaled is Triton's own,"
    " which fails before 3.9",
    "tf32x3 with a product as accumulator: contraction fuses the two on a GPU",
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
