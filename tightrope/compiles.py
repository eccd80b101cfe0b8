"""How many kernels this process has compiled: compilation is a cost that a run reports.

Triton tells one listener of every kernel that it builds or takes from its cache on disk, whoever
asked for it (`triton.knobs.compilation.listener`, the same in 3.6, 3.7 and 3.9). So foreign kernels
count as well, and none has to be registered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_found = {"built": 0, "from disk": 0}


def watch() -> None:
    """Count from now on; a second call does nothing. An earlier listener is called too."""
    import triton

    earlier = triton.knobs.compilation.listener
    if not isinstance(earlier, _Listener):
        triton.knobs.compilation.listener = _Listener(earlier)


def count() -> int:
    """Kernels built or loaded since `watch`, each compiled form once; 0 under the interpreter."""
    return sum(_found.values())


def from_disk() -> int:
    """Those of `count` that Triton's cache on disk already had."""
    return _found["from disk"]


class _Listener:
    def __init__(self, earlier: Callable[..., Any] | None) -> None:
        self.earlier = earlier

    def __call__(self, *, cache_hit: bool, **facts: Any) -> None:
        _found["from disk" if cache_hit else "built"] += 1
        if self.earlier is not None:
            self.earlier(cache_hit=cache_hit, **facts)
