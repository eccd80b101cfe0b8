"""Ctrl-C and SIGTERM, so that nothing between the signal and the run's end can lose one.

A handler's exception is raised wherever Python happens to be. There it can vanish: in a callback of
the garbage collector, in a finalizer, or in a kernel that catches everything. So it is remembered
too, and laws raise it again with their next case.
"""

from __future__ import annotations

from typing import Any

_came = False


class Interrupt(KeyboardInterrupt):
    """Ctrl-C or SIGTERM: told from a KeyboardInterrupt that a kernel raises."""


def interrupt(*_: Any) -> Any:
    """A signal's handler."""
    global _came
    _came = True
    raise Interrupt


def forget() -> None:
    """A new session begins: what came before has ended another one."""
    global _came
    _came = False


def not_lost() -> None:
    """Raise Interrupt if one came and yet something still runs."""
    if _came:
        raise Interrupt
