"""Where re-created public bugs register: each twice, as it was and mended.

A bug is one function with a keyword `mended`, so that it and its right twin differ in nothing
else. Its docstring begins with the thread (`owner/repository#number`, or `@commit` where the bug
was found by reading) and says what went wrong there; the code is our own.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from dataclasses import dataclass
from pathlib import Path

TESTS = str(Path(__file__).resolve().parent.parent)
if TESTS not in sys.path:  # the right twins are the suite's own plain torch kernels
    sys.path.insert(0, TESTS)

from tightrope import implements  # noqa: E402

THREAD = re.compile(r"[\w.-]+/[\w.-]+(#\d+|@[0-9a-f]{8})")
ORACLE = "test_matches_oracle"
STRIDED = "test_strided_equals_contiguous"
WRITES = "test_writes_its_outputs_and_nothing_else"
NARROW = {"dtype": ("float16",)}


@dataclass(frozen=True)
class Bug:
    """One bug: its contract, the law named for it, and the public thread."""

    contract: str
    law: str
    thread: str
    told: str


BUGS: dict[str, Bug] = {}


def bug(contract, law=ORACLE, **limits):
    """Register `fn(..., mended)` as `NAME` and `NAME_mended`; limits: the cases that show it.

    Raises ValueError for a docstring that names no thread, and for a name that is taken.
    """

    def register(fn):
        name, told = fn.__name__, fn.__doc__ or ""
        thread = THREAD.match(told)
        if thread is None or name in BUGS:
            raise ValueError(f"{name}: its docstring must name a thread, and its name be new")
        BUGS[name] = Bug(contract, law, thread[0], told)
        for suffix, mended in (("", False), ("_mended", True)):
            implements(contract, name=name + suffix, **limits)(_twin(fn, mended))
        return fn

    return register


def _twin(fn, mended):
    @functools.wraps(fn)
    def call(*args, **options):
        return fn(*args, **options, mended=mended)

    signature = inspect.signature(fn)
    others = [p for name, p in signature.parameters.items() if name != "mended"]
    call.__signature__ = signature.replace(parameters=others)  # what a call passes is looked up
    return call
