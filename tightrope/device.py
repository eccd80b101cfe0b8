"""Where arrays cross between host and device: one upload, one launch, one download."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tightrope import blackbox, compiles
from tightrope.arena import Arena, MemoryFault, where_unwritten
from tightrope.arithmetic import Device
from tightrope.budget import Violation
from tightrope.fatal import fatal
from tightrope.formats import FORMATS, Array
from tightrope.memory_limit import prove_within
from tightrope.surroundings import kept
from tightrope.verdict import element
from tightrope.watcher import watcher

if TYPE_CHECKING:
    import torch

    from tightrope.implementation import Implementation


# what Hypothesis, pytest or unittest take for something else than an error
ESCAPES = ("SkipTest", "Skipped", "UnsatisfiedAssumption", "XFailed", "Exit", "KeyboardInterrupt")


def prepare(kind: str | None = None) -> Device:
    """Choose the device for this process and, on a CPU, make Triton's interpreter faithful.

    kind: "cuda", "cpu" or None (a GPU if there is one). Raises RuntimeError if a GPU is asked for
    and there is none, or if Triton was imported too early to be interpreted.
    """
    wanted = kind or os.environ.get("TIGHTROPE_DEVICE") or None
    if wanted:
        os.environ["TIGHTROPE_DEVICE"] = wanted
    return current()


@cache
def current() -> Device:
    """The device of this process; decided once."""
    import torch

    wanted = os.environ.get("TIGHTROPE_DEVICE", "")
    if wanted == "cuda" and not torch.cuda.is_available():
        raise RuntimeError("no CUDA device is visible to this process, and one was asked for")
    if wanted == "cuda" or (not wanted and torch.cuda.is_available()):
        compiles.watch()
        major, minor = torch.cuda.get_device_capability()
        return Device("cuda", torch.cuda.get_device_name(), (major, minor))
    if "triton" not in sys.modules:
        os.environ["TRITON_INTERPRET"] = "1"
    from tightrope.interpreter import install

    torch.set_num_threads(1)  # tensors are small: threads only get in one another's way
    install()
    return Device("cpu", "Triton interpreter on the CPU", None, interpreted=True)


@cache
def _accepted(fn: Callable[..., Any]) -> frozenset[str] | None:
    """Keyword names that a function takes; None if it takes any."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return frozenset(p.name for p in parameters)


def _off(value: Any) -> bool:
    """Whether an option asks for nothing: None, False, an offset of 0, no window on either side."""
    return value is None or value == 0 or value == (None, None)


def _keywords(fn: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as the function wants them: torch dtypes; off-switches only if it has them."""
    import torch

    known, out = _accepted(fn), {}
    for name, value in options.items():
        if known is not None and name not in known and _off(value):
            continue
        out[name] = (
            getattr(torch, value) if name.endswith("dtype") and isinstance(value, str) else value
        )
    return out


def run(
    impl: Implementation,
    case: Any,
    inputs: Mapping[str, Any],
    layouts: Mapping[str, str] | None = None,
) -> dict[str, Array]:
    """Call an implementation on a case inside an arena; output name -> NumPy array.

    layouts: argument -> layout name, in place of the case's (an empty mapping: all contiguous).
    Raises MemoryFault (guard bands, changed inputs, unwritten outputs), GlobalState, Violation
    (wrong outputs by count, type, device or kind of dtype), DeviceLost, MemoryLimit, and whatever
    the implementation raises.
    """
    blackbox.record(impl, case)
    try:
        where = impl.contract.layouts(case) if layouts is None else layouts
        outputs = _launch(impl, case, Arena(inputs, where, current().kind))
        prove_within()
    except Exception as error:
        end = fatal(error)
        if end is not None:
            blackbox.lost(impl, case, end)
            raise end from error
        blackbox.clear()
        raise
    blackbox.clear()
    return outputs


def _launch(impl: Implementation, case: Any, arena: Arena) -> dict[str, Array]:
    spec, in_place = impl.contract, impl.contract.in_place(case)
    arena.upload()
    arguments = {name: arena.argument(name) for name in arena.sections}
    plain, named = spec.arguments(arguments)
    returned = _call(impl, arena, plain, {**_keywords(impl.fn, spec.options(case)), **named})
    absent = {name for name, argument in spec.of_argument.items() if argument not in arguments}
    tensors = _named(impl, returned, arena.device, absent)
    blocks = arena.download()
    outputs = {
        n: _fetch(n, t, arena, blocks, arguments, in_place.get(n)) for n, t in tensors.items()
    }
    arena.check(blocks, {arg: out for out, arg in in_place.items()})
    return outputs


def _call(
    impl: Implementation, arena: Arena, arguments: Sequence[Any], options: Mapping[str, Any]
) -> Any:
    process = os.getpid()
    try:
        with kept(impl.name), watcher()(arena):
            return impl.fn(*arguments, **options)
    except BaseException as error:
        if type(error).__name__ in ESCAPES:
            raise Violation(
                f"{impl.name} raised {type(error).__name__} on a case within its limits"
            ) from error
        raise
    finally:
        if os.getpid() != process:  # a child that the kernel forked: it must not run the suite too
            os._exit(0)


def _named(impl: Implementation, returned: Any, home: str, absent: set[str]) -> dict[str, Any]:
    """The tensors by name, empty for absent ones; a Violation explains anything else."""
    import torch

    names = impl.outputs
    values = returned if isinstance(returned, tuple | list) else (returned,)
    if len(values) == len(names):
        nothing = [torch.empty(0, device=home) if name in absent else None for name in names]
        values = [e if v is None else v for v, e in zip(values, nothing, strict=True)]
    if len(values) != len(names) or not all(isinstance(v, torch.Tensor) for v in values):
        told = f"{_counted(returned)}, expected {len(names)}: {', '.join(names)}"
        told += " (in place too they are returned)" if returned is None else ""
        raise Violation(f"{impl.name} returned {told}")
    for name, value in zip(names, values, strict=True):
        kind, place = str(value.dtype).removeprefix("torch."), value.device.type
        if kind not in FORMATS or place != home or value.layout is not torch.strided:
            raise Violation(
                f"{name} is a {value.layout} tensor of {kind} on {place}, expected a strided one "
                f"of {', '.join(FORMATS)} on {home}"
            )
    return dict(zip(names, values, strict=True))


def _counted(returned: Any) -> str:
    """`one tensor`, `3 tensors`, or the types if not all are tensors."""
    import torch

    values = returned if isinstance(returned, tuple | list) else (returned,)
    if not values or not all(isinstance(v, torch.Tensor) for v in values):
        kinds = ", ".join("None" if v is None else type(v).__name__ for v in values)
        return f"({kinds})" if isinstance(returned, tuple | list) else kinds
    return "one tensor" if len(values) == 1 else f"{len(values)} tensors"


def _fetch(
    name: str, tensor: torch.Tensor, arena: Arena, blocks: list[Array],
    arguments: Mapping[str, torch.Tensor], argument: str | None,
) -> Array:  # fmt: skip
    """One output on the host, after checking where it lives and that all of it was written."""
    home = arena.locate(tensor)
    if argument is not None:
        if not _same_memory(tensor, arguments[argument]):
            raise MemoryFault(
                f"in place, {name} must be the argument {argument} itself", law="memory"
            )
    elif home is not None and home[0] == 0 and home[1] < arena.inputs_end and tensor.numel():
        owner = [n for n, section in arena.sections.items() if section.start <= home[1]][-1:]
        raise MemoryFault(
            f"{name} shares memory with an input ({', '.join(owner)}), "
            "but the call is not in place",
            law="memory",
        )
    if home is None:
        return to_numpy(tensor).copy()  # the kernel may keep its memory and write there again
    if argument is None and tensor.numel() and not arena.asked_for(*home):
        raise MemoryFault(f"{name} lies in the memory of an earlier call's result", law="memory")
    dtype, (chunk, byte) = numpy_dtype(tensor), home
    strides = tuple(s * dtype.itemsize for s in tensor.stride())
    array = np.ndarray(tuple(tensor.shape), dtype, blocks[chunk], byte, strides).copy()
    missing = where_unwritten(array)
    if len(missing) and argument is None:
        raise MemoryFault(
            f"{len(missing)} of {array.size} elements of {name} were never written, "
            f"the first is {element(name, missing[0])}",
            law="memory",
        )
    return array


def _same_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors name the same elements; strides of axes of one element say nothing."""
    steps = [[t for n, t in zip(x.shape, x.stride(), strict=True) if n > 1] for x in (a, b)]
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and steps[0] == steps[1]


def numpy_dtype(tensor: torch.Tensor) -> np.dtype:
    name = str(tensor.dtype).removeprefix("torch.")
    return FORMATS[name].dtype if name in FORMATS else np.dtype(name)


def to_numpy(tensor: torch.Tensor) -> Array:
    """A tensor's bits on the host, bfloat16 as ml_dtypes.bfloat16."""
    import torch

    plain = tensor.detach().cpu().contiguous()
    if plain.dtype is torch.bfloat16:
        return plain.view(torch.int16).numpy().view(numpy_dtype(tensor))
    return plain.numpy()
