"""Putting the replacements into Triton and taking them out again.

Everything relied upon is looked up first, by name and by the names of its parameters; if this
Triton differs, nothing is changed and the error lists what is missing. The replacements are put in
once; an install inside another only adds settings.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import triton
import triton.language as tl
import triton.runtime.interpreter as ip

from tightrope.interpreter import DOT_MODELS, TESTED_TRITON
from tightrope.interpreter.replacements import Replacement, replacements
from tightrope.interpreter.state import STATE, Settings

_ABSENT = object()


def _problems(wanted: list[Replacement]) -> Iterator[str]:
    for r in wanted:
        where = f"{getattr(r.owner, '__name__', r.owner)}.{r.name}"
        if r.name not in vars(r.owner):
            if not r.optional:
                yield f"{where} is missing"
        elif r.parameters is not None:
            expected = r.parameters.split()
            have = list(inspect.signature(vars(r.owner)[r.name]).parameters)
            if have[: len(expected)] != expected:
                yield f"{where} takes ({', '.join(have)}), expected ({', '.join(expected)}, ...)"
    for name in ("load", "store"):
        if not hasattr(getattr(ip, "_interpreter", None), name):
            yield f"libtriton.interpreter.{name} is missing"
    if not hasattr(getattr(triton.knobs, "language", None), "default_fp_fusion"):
        yield "triton.knobs.language.default_fp_fusion is missing"


def _put_in() -> list[tuple[Any, str, Any]]:
    wanted = list(replacements())
    problems = list(_problems(wanted))
    if not problems and ip._get_np_dtype(tl.bfloat16) != np.uint16:
        problems.append("bfloat16 is no longer stored as uint16")
    if problems:
        raise RuntimeError(
            f"the interpreter of Triton {triton.__version__} is not one this package knows"
            f" (tested: {', '.join(TESTED_TRITON)}): " + "; ".join(problems)
        )
    done = [(r.owner, r.name, vars(r.owner).get(r.name, _ABSENT)) for r in wanted]
    STATE.original.update({(owner, name): old for owner, name, old in done if old is not _ABSENT})
    for r in wanted:
        setattr(r.owner, r.name, r.new)
    return done


_replaced: list[tuple[Any, str, Any]] = []


def _take_out() -> None:
    for owner, name, old in reversed(_replaced):
        if old is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, old)
    _replaced.clear()
    STATE.original.clear()


class Patch:
    """An install in force: a context manager, or call `restore` once."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def restore(self) -> None:
        """Bring back what was in force before; a second call does nothing."""
        for i, installed in enumerate(STATE.installed):
            if installed is self.settings:
                del STATE.installed[i]
                if not STATE.installed:
                    _take_out()
                return

    def __enter__(self) -> Patch:
        return self

    def __exit__(self, *exc: object) -> None:
        self.restore()


@contextmanager
def suspended() -> Iterator[None]:
    """The stock interpreter for a while; what was in force comes back afterwards."""
    installed = list(STATE.installed)
    for settings in installed:
        Patch(settings).restore()
    try:
        yield
    finally:
        if installed and not STATE.installed:
            _replaced.extend(_put_in())
        STATE.installed[:0] = installed


def install(dot: str, contract: bool | None) -> Patch:
    """See `tightrope.interpreter.install`."""
    if dot not in DOT_MODELS:
        raise ValueError(f"dot is one of {', '.join(DOT_MODELS)}, not {dot!r}")
    if not isinstance(tl.sum, ip.InterpretedFunction):
        raise RuntimeError("set TRITON_INTERPRET=1 before Triton is imported; it was not set then")
    settings = Settings(dot, contract)
    if not STATE.installed:
        _replaced.extend(_put_in())
    STATE.installed.append(settings)
    return Patch(settings)
