"""Which implementations are under test, and on which laws, contracts and dtypes."""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from tightrope.contract import contract, names
from tightrope.implementation import Implementation, registered, resolve
from tightrope.law import Law, strategy

BUNDLED = "tightrope.impls"
GROUP = "tightrope.impls"
PEERS = "peers"  # a name for other people's kernels, as many as are installed


def chosen(option: Sequence[str], ini: Sequence[str]) -> list[str]:
    """What is under test: option, $TIGHTROPE_IMPL, ini, entry points, or the bundled kernels."""
    return (
        list(option)
        or os.environ.get("TIGHTROPE_IMPL", "").split()
        or list(ini)
        or [entry.value for entry in entry_points(group=GROUP)]
        or [BUNDLED]
    )


_own: dict[tuple[str, ...], list[Implementation]] = {}


def of_module(state: Any, module: ModuleType) -> list[Implementation]:
    """What the laws of a test file run for: what its `tightrope_impl` names, or what the run does.

    The variable is a MODULE[:NAME] or a list of them; option and $TIGHTROPE_IMPL go before it, the
    ini option and entry points behind. state: a `tightrope.session.State`, whose errors are raised.
    """
    named, option = getattr(module, "tightrope_impl", None), state.config.option
    if not named or option.tightrope_impl or os.environ.get("TIGHTROPE_IMPL"):
        return list(state.subjects())
    specs = (named,) if isinstance(named, str) else tuple(named)
    if specs not in _own:
        others, state.impls, option.tightrope_impl = state.impls, None, list(specs)
        try:
            _own[specs] = state.subjects()
        finally:
            state.impls, option.tightrope_impl = others, []
    return _own[specs]


def load(module: str) -> ModuleType:
    """Import a module by its dotted name or file, and the modules inside it if it is a package.

    The working directory counts, as it does for `python -m`, and a file's folder, as it does for
    `python FILE.py`. Raises ImportError.
    """
    _search(os.getcwd())
    if module.endswith(".py"):
        path = Path(module).resolve()
        if not path.is_file():
            raise ImportError(f"no such file: {path}")
        _search(str(path.parent))
        return _importing(_load_file, str(path))
    loaded = _importing(importlib.import_module, module)
    for found in pkgutil.iter_modules(getattr(loaded, "__path__", ())):
        _importing(importlib.import_module, f"{module}.{found.name}")
    return loaded


def peers() -> dict[str, str | None]:
    """Modules of `--impl=peers` -> why it registers nothing or less than it could, None if all."""
    folder = importlib.import_module(BUNDLED).__path__
    names = [f.name for f in pkgutil.iter_modules(folder) if f.name.startswith("peer_")]
    reasons = {n: getattr(load(f"{BUNDLED}.{n}"), "MISSING", None) for n in names}
    told = {n: "; ".join({*r.values()}) if isinstance(r, dict) else r for n, r in reasons.items()}
    return {f"{BUNDLED}.{n}": reason or None for n, reason in told.items()}


def _registered(name: str) -> list[Implementation]:
    """What a MODULE, a FILE.py or `peers` registers, imported if need be; raises ImportError."""
    modules = list(peers()) if name == PEERS else [load(name).__name__]
    return [impl for module in modules for impl in registered(module)]


def _search(folder: str) -> None:
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _importing(work: Callable[[str], ModuleType], name: str) -> ModuleType:
    """Whatever a module raises while it is imported, as an ImportError with its place."""
    try:
        return work(name)
    except Exception as error:
        places = _places(error)
        told = f"{name} cannot be imported: "
        told += str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
        told += f" ({', '.join(places)})" if places else ""
        if getattr(error, "name", None):  # of a module that was not found, or is another one
            told += (
                f"; modules are looked for in the working directory ({os.getcwd()}), on PYTHONPATH "
                "and, for a FILE.py, beside it"
            )
        raise ImportError(told) from error


def _places(error: Exception) -> list[str]:
    """FILE:LINE of the module that was loaded and, if it is another, of what raised in the end."""
    frames = [
        f"{frame.filename}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename not in (__file__, importlib.__file__)
        and not frame.filename.startswith("<frozen")
    ]
    return list(dict.fromkeys(frames[:1] + frames[-1:]))


def _load_file(name: str) -> ModuleType:
    path = Path(name)
    if path.stem in sys.modules and getattr(sys.modules[path.stem], "__file__", None) == str(path):
        return sys.modules[path.stem]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"not a Python file: {path}")
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(path.stem)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:  # half a module must not be found by the next import
        sys.modules.pop(path.stem)
        if before is not None:
            sys.modules[path.stem] = before
        raise
    return module


def under_test(specs: Sequence[str], dtypes: Sequence[str] = ()) -> list[Implementation]:
    """Import what is named and return its implementations, every name in them checked.

    dtypes: what the run is restricted to; each must be one that an implementation supports.
    Raises ImportError, and ValueError or LookupError that list what is known.
    """
    found: dict[tuple[str, str], Implementation] = {}
    for spec in specs:
        name, _, only = spec.partition(":")
        mine = _registered(name)
        if not mine:
            raise LookupError(
                f"{name} registers no implementation; decorate a function with @implements"
            )
        if only and only not in {i.name for i in mine}:
            raise LookupError(
                f"{name} has no implementation {only!r}; known: {', '.join(i.name for i in mine)}"
            )
        for impl in mine:
            if only in ("", impl.name):
                found[impl.contract_name, impl.name] = resolve(impl)
    order = names()
    impls = sorted(found.values(), key=lambda i: order.index(i.contract_name))
    _check_dtypes(impls, dtypes)
    return impls


def _check_dtypes(impls: Sequence[Implementation], dtypes: Sequence[str]) -> None:
    supported = {f"{i.name} ({i.contract_name})": i.allowed().values("dtype") for i in impls}
    for dtype in dtypes:
        if not any(dtype in values for values in supported.values()):
            known = "; ".join(f"{name} supports {', '.join(v)}" for name, v in supported.items())
            raise ValueError(f"nothing under test supports the dtype {dtype}: {known}")


def possible(impl: Implementation) -> bool:
    """Whether there is any case within an implementation's limits."""
    try:
        strategy(impl)
    except ValueError:
        return False
    return True


def subjects(
    law: Law, impls: Sequence[Implementation], dtypes: Sequence[str], device: str
) -> Iterator[tuple[str, Implementation | None]]:
    """(id, implementation narrowed to the law and one dtype) pairs; None where nothing applies."""
    for impl in impls:
        if impl.contract_name not in (law.contracts or names()):
            continue
        spec = contract(impl.contract_name)
        limits = dict(law.limits)
        if device == "cpu" and "size" in spec.domain:
            limits.setdefault("size", ("small",))
        if device == "cuda" and "builds" in spec.domain:  # each combination is a compilation
            limits.setdefault("builds", ("committed",))
        for dtype in impl.allowed().values("dtype"):
            if dtypes and dtype not in dtypes:
                continue
            narrowed = impl.narrow({**limits, "dtype": (dtype,)}, law.where)
            able = impl.allowed().all_of(law.needs) and set(law.returns) <= set(impl.outputs)
            if not able or (narrowed and not possible(narrowed)):
                narrowed = None
            yield f"{impl.contract_name}-{impl.name}-{dtype}", narrowed
