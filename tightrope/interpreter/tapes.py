"""Calls of `triton.language`, noted once and made again: most of a launch went into Triton's types.

Which functions of the builder a built-in calls depends on the types of its tensors and on its other
arguments, never on elements. So the first call of its kind runs Triton's own code, with a builder
that takes notes; later ones call the same functions in the same order on their own operands. The
builder, and with it all arithmetic, is what it was. What cannot be noted (one operand in two
places, an argument of an unknown kind, a result that is no tensor) takes Triton's way every time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import triton.language as tl
import triton.runtime.interpreter as ip
from triton.language.semantic import TritonSemantic

from tightrope.interpreter.state import STATE
from tightrope.interpreter.types import Handle

_BUILT_IN = (
    "abs add arange broadcast broadcast_to cast ceil clamp cos div_rn dot erf exp exp2 expand_dims"
    " fdiv floor fma full load log log2 maximum minimum mul permute program_id reshape rsqrt sin"
    " sqrt sqrt_rn store sub to trans umulhi view where"
)
# Beside the operators. Left out is what prints or asserts, and what the interpreter replaces by
# functions of its own (reduce).
NAMES = frozenset(_BUILT_IN.split())
_ELEMENTWISE = (
    "add addptr and fdiv fma fmul fsub maximumf maxnumf maxsi maxui minimumf minnumf minsi minui"
    " mul or sdiv select srem sub udiv urem xor"
)
# These give what they give of operands of one shape also of operands not yet brought to it.
ELEMENTWISE = frozenset(f"create_{name}" for name in _ELEMENTWISE.split())
COMPARING = "create_icmp", "create_fcmp"
# To one shape: the place of the operand among the arguments.
VIEWS = {"create_splat": 1, "create_broadcast": 0}
MOST = 1 << 14  # tapes kept: a number among the arguments has a tape of its own

_PLAIN = frozenset({int, bool, str, type(None)})
_OF_A_TENSOR = {"handle", "shape", "numel", "type", "dtype"}


class Unknown(Exception):
    """A call that no tape can stand for."""


Step = tuple[str, list[int], int]


class Tape(NamedTuple):
    """Calls of the builder. Places count the handles of the call's tensors, then `rest`.

    rest: constants, and None where a step's result will be. steps: name, places of the arguments,
    place of the result. result: the place of the returned tensor's handle; made: what else that
    tensor is. Without steps and with made None, the call returns its argument at `result`.
    """

    rest: list[Any]
    steps: list[Step]
    result: int
    made: tuple[Any, ...] | None


def _elementwise(step: Step) -> bool:
    return step[0] in ELEMENTWISE or step[0].startswith(COMPARING)


def _shortened(steps: list[Step], result: int) -> list[Step]:
    """The steps without views that only elementwise steps look at: NumPy broadcasts by itself."""
    kept = list(steps)
    for step in steps:
        name, places, made = step
        users = [s for s in kept if made in s[1]]
        if name in VIEWS and made != result and all(map(_elementwise, users)):
            kept.remove(step)
            source = places[VIEWS[name]]
            kept = [(n, [source if p == made else p for p in ps], m) for n, ps, m in kept]
    return kept


class Recorder:
    """A builder that notes what is asked of another one."""

    def __init__(self, builder: Any, handles: list[Any]) -> None:
        self.builder, self.slots = builder, list(handles)
        self.steps: list[Step] = []
        self.places = {id(h): i for i, h in enumerate(handles)}
        self.results: set[int] = set()
        if len(self.places) < len(handles) or not all(isinstance(h, Handle) for h in handles):
            raise Unknown

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.builder, name)
        if name.startswith("create_"):
            return lambda *args: self._note(name, args, value(*args))
        if name.startswith("get_"):
            return lambda *args: self._constant(value(*args))
        if callable(value):
            raise Unknown
        return value

    def _constant(self, value: Any) -> Any:
        """A type, or a handle that depends on no operand."""
        if isinstance(value, Handle):
            self._keep(value)
        return value

    def _keep(self, value: Any) -> int:
        self.slots.append(value)
        self.places[id(value)] = len(self.slots) - 1
        return len(self.slots) - 1

    def _note(self, name: str, args: tuple[Any, ...], value: Any) -> Any:
        places = [self._place(x) for x in args]
        if not isinstance(value, Handle | None):
            raise Unknown
        place = self._keep(value)
        self.results.add(place)
        self.steps.append((name, places, place))
        return value

    def _place(self, x: Any) -> int:
        if isinstance(x, Handle):
            if id(x) not in self.places:
                raise Unknown
            return self.places[id(x)]
        if isinstance(x, list | tuple) and not all(isinstance(n, int | tl.constexpr) for n in x):
            raise Unknown
        self.slots.append(x)
        return len(self.slots) - 1

    def tape(self, made: Any, tensors: list[Any]) -> Tape:
        """Of the call that returned `made`. Raises Unknown."""
        for i, tensor in enumerate(tensors):
            if made is tensor:
                return Tape([], [], i, None)
        if type(made) is not tl.tensor or set(made.__dict__) != _OF_A_TENSOR:
            raise Unknown
        if id(made.handle) not in self.places:
            raise Unknown
        rest = [None if i in self.results else x for i, x in enumerate(self.slots)]
        place = self.places[id(made.handle)]
        what = made.shape, made.numel, made.type, made.dtype
        return Tape(rest[len(tensors) :], _shortened(self.steps, place), place, what)


def _kind(x: Any) -> Any:
    """An argument that is no tensor, as part of a key."""
    kind = type(x)
    if kind in _PLAIN:
        return kind, x
    if kind is float:  # 0.0 == -0.0, and NaN is unlike itself
        return kind, repr(x)
    if kind is tl.constexpr:
        return kind, _kind(x.value)
    if kind in (list, tuple):
        return kind, *map(_kind, x)
    if kind is slice:
        return kind, _kind(x.start), _kind(x.stop), _kind(x.step)
    if isinstance(x, tl.dtype):
        return tl.dtype, x.name
    raise Unknown


def _recorded(member: Any, args: Any, named: dict[str, Any], tensors: list[Any]) -> Any:
    """What Triton's own code returns, and a tape of it, None if there can be none."""
    builder = ip.interpreter_builder
    try:
        recorder = Recorder(builder, [t.handle for t in tensors])
        made = member(*args, **named, _semantic=TritonSemantic(recorder))
        return made, recorder.tape(made, tensors)
    except Unknown:
        return member(*args, **named, _semantic=ip.interpreter_semantic), None


def _played(tape: Tape, tensors: list[Any]) -> Any:
    if tape.made is None:
        return tensors[tape.result]
    slots, builder = [t.handle for t in tensors] + tape.rest, ip.interpreter_builder
    for name, places, place in tape.steps:
        slots[place] = getattr(builder, name)(*[slots[p] for p in places])
    made = tl.tensor.__new__(tl.tensor)
    made.handle = slots[tape.result]
    made.shape, made.numel, made.type, made.dtype = tape.made
    return made


@cache
def _taped(member: Any) -> Callable[..., Any]:
    def call(*args: Any, **named: Any) -> Any:
        if "_semantic" in named:  # from inside of another built-in
            return member(*args, **named)
        key, tensors = [member, *named], []
        try:
            for x in (*args, *named.values()) if named else args:
                if type(x) is tl.tensor:
                    key.append(x.type.name)
                    tensors.append(x)
                else:
                    key.append(_kind(x))
        except Unknown:
            return member(*args, **named, _semantic=ip.interpreter_semantic)
        what, tapes = tuple(key), STATE.tapes
        tape = tapes.get(what, Unknown)
        if tape is Unknown:
            made, tape = _recorded(member, args, named, tensors)
            if len(tapes) >= MOST:
                tapes.clear()
            tapes[what] = tape
            return made
        if tape is None:
            return member(*args, **named, _semantic=ip.interpreter_semantic)
        return _played(tape, tensors)

    return call


@cache
def _direct(member: Any) -> Callable[..., Any]:
    def call(*args: Any, **named: Any) -> Any:
        named.setdefault("_semantic", ip.interpreter_semantic)
        return member(*args, **named)

    return call


def patch_attr(obj: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
    """In place of a built-in, for the length of a launch: it with the interpreter's semantic."""
    operator = obj is tl.tensor and name.startswith("__")
    scope.set_attr(obj, name, (_taped if operator or name in NAMES else _direct)(member))
