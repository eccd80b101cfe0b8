"""Prove or disprove GPU kernels for position embeddings and attention.

The names most users need are here; they load on first use, so that `import tightrope` stays light
(no torch, triton, hypothesis or pytest).
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# In a checkout impls/, oracles/ and properties/ lie beside this folder; in a wheel, inside it.
if not (Path(__file__).parent / "impls").is_dir():
    __path__.append(str(Path(__file__).parent.parent))

if TYPE_CHECKING:
    from tightrope.arithmetic import Arithmetic
    from tightrope.budget import Budget, Violation
    from tightrope.implementation import implements
    from tightrope.law import holds_for

_HOME = {
    "Arithmetic": "arithmetic",
    "Budget": "budget",
    "Violation": "budget",
    "holds_for": "law",
    "implements": "implementation",
}

__all__ = ["Arithmetic", "Budget", "Violation", "__version__", "holds_for", "implements"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tightrope' has no attribute {name!r}")
    return getattr(import_module(f"tightrope.{_HOME[name]}"), name)
