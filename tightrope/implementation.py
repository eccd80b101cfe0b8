"""Implementations: functions under test, what they support and what they promise."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from tightrope import ledger, record
from tightrope.arithmetic import Arithmetic, Device
from tightrope.budget import Budget
from tightrope.contract import Contract, contract
from tightrope.limits import Limits, check_limits

Function = TypeVar("Function", bound=Callable[..., Any])
Promise = Arithmetic | Callable[[Any, Device], Arithmetic]


@dataclass(frozen=True, kw_only=True)
class Implementation:
    """One function that claims to meet a contract. `source` is the decorator's file and line."""

    contract_name: str
    name: str
    fn: Callable[..., Any]
    limits: Mapping[str, Collection[Any]] = field(default_factory=dict)
    where: tuple[str, ...] = ()
    arithmetic: Promise | None = None
    returns: tuple[str, ...] | None = None
    module: str = ""
    source: str = ""

    def __repr__(self) -> str:
        return f"<{self.contract_name}: {self.id}>"

    @property
    def contract(self) -> Contract:
        return contract(self.contract_name)

    @property
    def id(self) -> str:
        """`acme-bfloat16` once it is narrowed to one dtype, `acme` before."""
        dtypes = self.limits.get("dtype", ())
        return f"{self.name}-{next(iter(dtypes))}" if len(dtypes) == 1 else self.name

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.returns or self.contract.outputs

    def narrow(
        self, limits: Mapping[str, Collection[Any]], where: Collection[str] = ()
    ) -> Implementation | None:
        """The same function on fewer cases; None if none is left."""
        left = self.contract.limits(self.limits, self.where).narrowed(limits, where)
        return (
            None
            if left is None
            else replace(self, limits=left.given, where=tuple(sorted(left.where)))
        )

    def allowed(self) -> Limits:
        """Its limits; and a contract's relation `without_X`, if there is one, for a missing X."""
        missing = {f"without_{name}" for name in set(self.contract.outputs) - set(self.outputs)}
        return self.contract.limits(
            self.limits, (*self.where, *missing & set(self.contract.relations))
        )

    def promise(self, case: Any, device: Device) -> Arithmetic:
        """Its arithmetic over the contract's defaults for strangers; see tightrope.record."""
        given = self.arithmetic(case, device) if callable(self.arithmetic) else self.arithmetic
        return record.over((given or Arithmetic()).over(self.contract.stages), device)

    def budgets(self, case: Any, inputs: Mapping[str, Any], device: Device) -> dict[str, Budget]:
        """Output -> budget of a call under its promise; the ledger notes whose constants it has."""
        promise = self.promise(case, device)
        found, name = self.contract.budget(case, inputs, promise), record.used(promise)
        if not name:
            return found
        ledger.opened().record = name
        return {n: replace(b, record=name, _cache={}) for n, b in found.items()}

    @property
    def stranger(self) -> bool:
        """Whether it promises nothing: only the worst case of a float32 kernel is checked."""
        return self.arithmetic is None

    def __call__(
        self, case: Any, inputs: Mapping[str, Any] | None = None, **changes: Any
    ) -> dict[str, Any]:
        """Upload, launch, download: output name -> NumPy array. See tightrope.device.run."""
        from tightrope.device import run

        return run(self, case, self.contract.inputs(case) if inputs is None else inputs, **changes)


_REGISTERED: dict[tuple[str, str], Implementation] = {}


def implements(
    name_of_contract: str, *, name: str, where: Collection[str] = (),
    returns: tuple[str, ...] | None = None, arithmetic: Promise | None = None, **limits: Any,
) -> Callable[[Function], Function]:  # fmt: skip
    """Put a function under test for a contract; the function itself is returned unchanged.

    Limits are tuples of values or ranges (`head_dim=(64, 128)`), or under `where` names of
    relations (`out_dtype=input`). Nothing is looked up here: names are resolved when tests are
    collected, and a wrong one is reported with this decorator's file and line. Raises ValueError
    if the pair (contract, name) is taken by another function.
    """
    frame = sys._getframe(1)  # not inspect.stack(), which reads the sources of all callers
    source = f"{frame.f_code.co_filename}:{frame.f_lineno}"

    def register(fn: Function) -> Function:
        key = (name_of_contract, name)
        old = _REGISTERED.get(key)
        if old is not None and old.source != source:
            raise ValueError(
                f"{name_of_contract}: {name!r} is registered twice, at {old.source} and {source}"
            )
        _REGISTERED[key] = Implementation(
            contract_name=name_of_contract, name=name, fn=fn, limits=limits,
            where=(where,) if isinstance(where, str) else tuple(where),
            returns=returns, arithmetic=arithmetic, module=fn.__module__, source=source,
        )  # fmt: skip
        return fn

    return register


def resolve(impl: Implementation) -> Implementation:
    """Check every name an implementation uses; raises ValueError with the decorator's place."""
    try:
        spec = contract(impl.contract_name)
        check_limits(spec.domain, impl.limits, spec.relations, impl.where)
        unknown = set(impl.returns or ()) - set(spec.outputs)
        if unknown:
            raise ValueError(f"unknown output {unknown.pop()!r}; known: {', '.join(spec.outputs)}")
        if isinstance(impl.arithmetic, Arithmetic):
            _check_arithmetic(spec, impl.allowed(), impl.arithmetic)
        spec.cases(impl.allowed())  # limits may contradict one another
        _check_call(spec, impl.fn)
    except (LookupError, ValueError) as error:
        raise ValueError(f"{impl.source}: implementation {impl.name!r}: {error.args[0]}") from None
    return impl


def _check_arithmetic(spec: Contract, allowed: Limits, arithmetic: Arithmetic) -> None:
    """Raise ValueError for stages, or values of stages, that the contract has no budget for."""
    full = arithmetic.over(spec.stages)
    for dtype in allowed.values("dtype"):
        case = spec.case(dtype=dtype)
        try:
            spec.budget(case, spec.inputs(case), full)
        except ValueError:
            raise
        except Exception as error:
            guilty = [f"{k}={v!r}" for k, v in arithmetic.items() if error.args == (v,)]
            told = ", ".join(guilty) or f"{arithmetic!r}: {type(error).__name__}: {error}"
            raise ValueError(f"unknown value in arithmetic: {told}") from error


def _check_call(spec: Contract, fn: Callable[..., Any]) -> None:
    """Raise ValueError for a function that no call of the contract can bind.

    A keyword that it lacks may be off in every case of its limits: then it is not passed.
    """
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # some builtins have none
        return
    parameters, case = signature.parameters.values(), spec.case()
    any_keyword = any(p.kind is p.VAR_KEYWORD for p in parameters)
    taken = [k for k in spec.options(case) if any_keyword or k in signature.parameters]
    try:
        plain, _ = spec.arguments(spec.inputs(case))
        signature.bind(*plain, **dict.fromkeys(taken))
    except TypeError as error:
        raise ValueError(
            f"{fn.__name__}{signature} cannot be called as {spec.signature}: {error}"
        ) from error


def placed(told: Any, error: BaseException, impl: Implementation) -> Any:
    """A failure's text and, if it is of the call and not of a value, where the call is written."""
    detail = getattr(error, "detail", None)
    of_the_call = detail is not None and not {"wrong", "share", "of_the_law"} & set(detail)
    if not of_the_call or not isinstance(told, str) or impl.source in told:
        return told
    story, mark, command = told.partition("\n\nreplay: ")
    return f"{story}\n{impl.source}: called as {impl.contract.signature}{mark}{command}"


def registered(module: str | None = None) -> list[Implementation]:
    """Everything registered so far, or what `module` (and the modules below it) registered."""
    found = list(_REGISTERED.values())
    if module is None:
        return found
    return [i for i in found if f"{i.module}.".startswith(f"{module}.")]


def bundled(name_of_contract: str, name: str) -> Implementation:
    """A bundled implementation, imported if need be, for one that is made of others.

    Raises LookupError for a name that the contract's module does not register.
    """
    module = importlib.import_module(f"tightrope.impls.{name_of_contract}").__name__
    found = {i.name: i for i in registered(module) if i.contract_name == name_of_contract}
    if name not in found:
        raise LookupError(f"{module} registers no {name!r}; known: {', '.join(found)}")
    return found[name]
