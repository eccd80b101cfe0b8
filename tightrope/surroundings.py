"""What a call must leave as it was: settings that every later call of a process reads."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from tightrope.budget import Violation

FOLDER, FLOATING = "working directory", "handling of floating-point errors"
DRAWS = "draws of a random generator"
OWNERS = {FOLDER: "the", FLOATING: "NumPy's"}
Setting = tuple[str, Callable[[], Any], Callable[[Any], Any]]


class GlobalState(Violation):
    """The kernel changed what belongs to the whole process."""


@cache
def settings() -> tuple[Setting, ...]:
    """(name, getter, setter) of what is watched; CUDA's if it has been started."""
    import numpy as np
    import torch

    found: list[Setting] = [
        ("default dtype", torch.get_default_dtype, torch.set_default_dtype),
        ("default device", torch.get_default_device, torch.set_default_device),
        ("deterministic algorithms", torch.are_deterministic_algorithms_enabled,
         torch.use_deterministic_algorithms),
        ("recording of gradients", torch.is_grad_enabled, torch.set_grad_enabled),
        ("precision of float32 products", torch.get_float32_matmul_precision,
         torch.set_float32_matmul_precision),
        ("number of threads", torch.get_num_threads, torch.set_num_threads),
        ("seed", torch.initial_seed, torch.manual_seed),
        (FLOATING, np.geterr, lambda old: np.seterr(**old)),
        (FOLDER, os.getcwd, os.chdir),
        # after the seed: putting that back starts its draws anew
        (f"{DRAWS}: random", random.getstate, random.setstate),
        (f"{DRAWS}: numpy.random", _of_numpy, _into_numpy),
        (f"{DRAWS}: torch", _of_torch, _into_torch),
    ]  # fmt: skip
    if torch.cuda.is_initialized():
        found += [
            ("current GPU", torch.cuda.current_device, torch.cuda.set_device),
            ("current stream", torch.cuda.current_stream, torch.cuda.set_stream),
        ]
    return tuple(found)


def _of_numpy() -> Any:
    import numpy as np

    name, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002 - the one that all share
    return name, keys.tobytes(), *rest  # type: ignore[union-attr]


def _into_numpy(state: Any) -> None:
    import numpy as np

    keys = np.frombuffer(state[1], np.uint32)
    np.random.set_state((state[0], keys, *state[2:]))  # noqa: NPY002


def _of_torch() -> bytes:
    import torch

    return torch.get_rng_state().numpy().tobytes()


def _into_torch(state: bytes) -> None:
    import torch

    torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


@contextmanager
def kept(who: str) -> Iterator[None]:
    """Raise GlobalState if a setting is another one after the block; all are put back.

    An exception from the block is let through.
    """
    watched = settings()
    before = [get() for _, get, _ in watched]
    try:
        yield
    except BaseException:
        _put_back(watched, before)
        raise
    changed = _put_back(watched, before)
    if changed:
        raise GlobalState(f"{who} changed, and did not put back: {'; '.join(changed)}")


def _put_back(watched: tuple[Setting, ...], before: list[Any]) -> list[str]:
    changed = []
    for (name, get, put), old in zip(watched, before, strict=True):
        new = get()
        if new != old:
            put(old)
            whose = OWNERS.get(name, "torch's")
            told = f"{whose} {name} (was {old}, is {new})"
            changed.append(f"the {name}" if name.startswith(DRAWS) else told)
    return changed
