"""Refusing bad input before anything is launched: from metadata, with argument, expected and got.

Nothing here reads a tensor's elements, except `check_rows`, which its callers use on CPU tensors
or on request. Tensors are duck-typed, so this module imports no torch.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any, ClassVar, NoReturn

from tightrope.polar import EXPONENT_SIGNS

INTEGERS = ("int32", "int64")
INPUTS = ("float16", "bfloat16", "float32", "float64")
TABLES = ("float16", "bfloat16", "float32")


def refuse(
    argument: str, expected: object, got: object, error: type[Exception] = ValueError
) -> NoReturn:
    """Raise `error` in the one wording; TypeError for types and dtypes, else ValueError."""
    raise error(f"{argument}: expected {expected}, got {got}")


def dtype_name(tensor: Any) -> str:
    """'float16' for torch.float16."""
    return str(tensor.dtype).removeprefix("torch.")


def check_strided(name: str, tensor: Any) -> None:
    """Refuse what is no tensor, or one that is sparse or nested. Raises TypeError."""
    if not hasattr(tensor, "stride"):
        refuse(name, "a tensor", type(tensor).__name__, TypeError)
    layout = str(getattr(tensor, "layout", "torch.strided"))
    nested = getattr(tensor, "is_nested", False)  # may call its layout strided all the same
    if nested or layout != "torch.strided":
        got = f"nested, {layout}" if nested else layout
        refuse(f"{name}.layout", "torch.strided", got, TypeError)


def check_tensor(name: str, tensor: Any, axes: Sequence[str], dtypes: Sequence[str]) -> None:
    """Refuse what is no strided tensor, or has another number of axes or another dtype.

    Raises: TypeError (no tensor, layout, dtype), ValueError (axes).
    """
    check_strided(name, tensor)
    if len(tensor.shape) != len(axes):
        refuse(f"{name}.shape", f"({', '.join(axes)})", tuple(tensor.shape))
    if dtype_name(tensor) not in dtypes:
        refuse(f"{name}.dtype", " or ".join(dtypes), dtype_name(tensor), TypeError)


def check_device(name: str, tensor: Any, device: Any) -> None:
    """Refuse a tensor that lies elsewhere than `device`. Raises ValueError."""
    if tensor.device != device:
        refuse(f"{name}.device", device, tensor.device)


def distinct_addresses(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether every element has an address of its own, decided by nesting.

    With axes sorted by stride, each stride must exceed the reach of all smaller ones. All views
    made by slicing, transposing and viewing a tensor nest; layouts that do not are called shared.
    """
    if 0 in shape:
        return True
    extent = 0
    for step, size in sorted((t, n) for n, t in zip(shape, stride, strict=True) if n > 1):
        if step <= extent:
            return False
        extent += step * (size - 1)
    return True


def check_writable(name: str, tensor: Any) -> None:
    """Refuse an output in which two indices share an address (an expanded axis, say)."""
    if not distinct_addresses(tensor.shape, tensor.stride()):
        refuse(
            f"{name}.stride()",
            "strides under which no two elements of an output share an address",
            f"{tuple(tensor.stride())} for shape {tuple(tensor.shape)}",
        )


def _bytes(tensor: Any) -> Any:
    """A NumPy array with the tensor's addresses, on whatever device: never to be read."""
    import numpy as np

    class Addresses:
        __array_interface__: ClassVar[dict[str, Any]] = {
            "version": 3,
            "typestr": f"|V{tensor.element_size()}",
            "data": (tensor.data_ptr(), True),
            "shape": tuple(tensor.shape),
            "strides": tuple(t * tensor.element_size() for t in tensor.stride()),
        }

    return np.asarray(Addresses())


def check_disjoint(names: str, a: Any, b: Any) -> None:
    """Refuse two outputs that share a byte; raises ValueError.

    Interleaved views of one storage are legal: common addresses are solved for, exactly. Layouts
    whose equation takes too long are refused (views of a tensor take microseconds).
    """
    import numpy as np

    if 0 in a.shape or 0 in b.shape:
        return
    work: Any = 10**6  # NumPy's stub knows only "no bound" and "bounds alone"
    try:
        shared = np.shares_memory(_bytes(a), _bytes(b), max_work=work)
    except np.exceptions.TooHardError:
        shared = True
    if shared:
        refuse(names, "outputs that share no element", "overlapping views of one storage")


def check_rows(positions: Any, rows: int, name: str = "positions") -> None:
    """Refuse positions that are no row of a table (IndexError); reads the elements."""
    if math.prod(positions.shape):
        low, high = (int(v) for v in positions.aminmax())
        if low < 0 or high >= rows:
            held = f"rows 0 to {rows - 1} of the table" if rows else "none of an empty table"
            refuse(name, held, f"{low} to {high}", IndexError)


def check_rope(
    q: Any,
    k: Any,
    cos: Any,
    sin: Any,
    positions: Any,
    *,
    interleaved: bool,
    inplace: bool = False,
    out_dtype: Any = None,
) -> None:
    """Refuse what the contract `rope` excludes, from metadata alone.

    Raises: TypeError (types, dtypes), ValueError (shapes, devices, strides, option pairs).
    """
    for name, option in (("interleaved", interleaved), ("inplace", inplace)):
        if not isinstance(option, bool):
            refuse(name, "True or False", repr(option), TypeError)
    check_tensor("q", q, ("tokens", "num_heads", "head_dim"), INPUTS)
    check_tensor("k", k, ("tokens", "num_kv_heads", "head_dim"), (dtype_name(q),))
    tables = (*TABLES, "float64") if dtype_name(q) == "float64" else TABLES
    check_tensor("cos", cos, ("rows", "rotary_dim/2"), tables)
    check_tensor("sin", sin, ("rows", "rotary_dim/2"), (dtype_name(cos),))
    check_tensor("positions", positions, ("tokens",), INTEGERS)
    for name, tensor in (("k", k), ("cos", cos), ("sin", sin), ("positions", positions)):
        check_device(name, tensor, q.device)
    _check_rope_shapes(q, k, cos, sin, positions)
    _check_rope_outputs(q, k, inplace, out_dtype)


def _check_rope_shapes(q: Any, k: Any, cos: Any, sin: Any, positions: Any) -> None:
    tokens, num_heads, head_dim = q.shape
    if k.shape[0] != tokens or k.shape[2] != head_dim:
        refuse("k.shape", f"({tokens}, num_kv_heads, {head_dim}) as q", tuple(k.shape))
    num_kv_heads = k.shape[1]
    if num_kv_heads < 1 or num_heads < 1 or num_heads % num_kv_heads:
        refuse("num_heads", "a multiple of num_kv_heads", f"{num_heads} and {num_kv_heads}")
    if not 2 <= 2 * cos.shape[1] <= head_dim:
        refuse("rotary_dim = 2*cos.shape[1]", f"2 to head_dim = {head_dim}", 2 * cos.shape[1])
    if sin.shape != cos.shape:
        refuse("sin.shape", f"{tuple(cos.shape)} as cos", tuple(sin.shape))
    if positions.shape[0] != tokens:
        refuse("positions.shape", f"({tokens},), one a token", tuple(positions.shape))


def _check_rope_outputs(q: Any, k: Any, inplace: bool, out_dtype: Any) -> None:
    if not inplace:
        if out_dtype is not None and str(out_dtype) not in (str(q.dtype), "torch.float32"):
            refuse("out_dtype", f"None, {q.dtype} or torch.float32", out_dtype, TypeError)
        return
    if out_dtype is not None:
        refuse("out_dtype", "None with inplace=True", out_dtype)
    check_writable("q", q)
    check_writable("k", k)


def _check_int(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        refuse(name, "an int", repr(value), TypeError)


def _check_base(rope_theta: Any) -> None:
    if not isinstance(rope_theta, (int, float)) or isinstance(rope_theta, bool):
        refuse("rope_theta", "a float", repr(rope_theta), TypeError)
    if not 0 < rope_theta <= sys.float_info.max:
        refuse("rope_theta", "a finite float64 above 0", rope_theta)


def check_pope_table(
    positions: Any, *, rotary_dim: Any, rope_theta: Any, exponent_sign: Any
) -> None:
    """Refuse what the contract `pope_table` excludes; positions (len,), any integers.

    Raises: TypeError (types, dtypes), ValueError (shape, rotary_dim < 1, rope_theta <= 0, an
    exponent_sign that is not one of `tightrope.polar.EXPONENT_SIGNS`).
    """
    check_tensor("positions", positions, ("len",), INTEGERS)
    _check_int("rotary_dim", rotary_dim)
    if rotary_dim < 1:
        refuse("rotary_dim", "1 or more", rotary_dim)
    _check_base(rope_theta)
    _check_int("exponent_sign", exponent_sign)
    if exponent_sign not in EXPONENT_SIGNS:
        refuse("exponent_sign", " or ".join(map(str, EXPONENT_SIGNS)), exponent_sign)


def check_rope_table(
    positions: Any, *, rotary_dim: Any, rope_theta: Any, rope_scaling: Any = None,
    seq_len: Any = None,
) -> Any:  # fmt: skip
    """Refuse what the contract `rope_table` excludes; positions (len,) or (3, len), any integers.

    Returns what rope_scaling says, as `tightrope.rope_scaling.read`. Raises: TypeError (types,
    dtypes), ValueError (shape, odd or small rotary_dim, rope_theta <= 0), and as `read`.
    """
    from tightrope.rope_scaling import AXES, read

    many = len(getattr(positions, "shape", ())) == 2
    check_tensor("positions", positions, ("axes", "len") if many else ("len",), INTEGERS)
    _check_int("rotary_dim", rotary_dim)
    if rotary_dim < 2 or rotary_dim % 2:
        refuse("rotary_dim", "an even number, 2 or more", rotary_dim)
    _check_base(rope_theta)
    scaling = read(
        rope_scaling, rotary_dim=rotary_dim, rope_theta=float(rope_theta), seq_len=seq_len
    )
    if many and (not scaling.mrope_section or positions.shape[0] != AXES):
        usual = f"({AXES}, len) with mrope_section, or (len,)"
        refuse("positions.shape", usual, tuple(positions.shape))
    return scaling
