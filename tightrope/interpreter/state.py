"""What is in force: the installed settings, this launch's contraction, Triton's own functions.

The interpreter of Triton changes `triton.language` for the length of a launch, for all threads. So
launches take turns; installing and restoring is for one thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import triton
import triton.runtime.interpreter as ip


@dataclass(frozen=True)
class Settings:
    """One install: the dot model, and contraction (None: Triton's default)."""

    dot: str
    contract: bool | None


@dataclass
class State:
    installed: list[Settings] = field(default_factory=list)
    original: dict[tuple[Any, str], Callable[..., Any]] = field(default_factory=dict)
    fuse: bool = False
    prepared: set[tuple[int, ...]] | None = None
    types: dict[Any, Any] | None = None
    tapes: dict[Any, Any] = field(default_factory=dict)
    tapes_of: Any = None  # the settings of Triton that the tapes were made under


STATE = State()
_TURN = threading.RLock()  # again by its holder: a hook may launch too


def contraction(requested: bool | None) -> bool:
    """Whether a launch that asked for `requested` contracts, by Triton's own precedence."""
    knobs = triton.knobs.language
    if getattr(knobs, "force_disable_fp_fusion", False):  # newer than 3.7
        return False
    if requested is None:
        requested = STATE.installed[-1].contract
    return bool(knobs.default_fp_fusion if requested is None else requested)


@contextmanager
def launching(requested: bool | None) -> Iterator[None]:
    """The state of one launch; restored afterwards."""
    with _TURN:
        before = STATE.fuse, STATE.prepared, STATE.types
        STATE.fuse, STATE.prepared, STATE.types = contraction(requested), set(), {}
        settings = ip.interpreter_builder.options, triton.knobs.language.fp32_default
        if STATE.tapes_of != settings:
            STATE.tapes, STATE.tapes_of = {}, settings
        try:
            yield
        finally:
            STATE.fuse, STATE.prepared, STATE.types = before
