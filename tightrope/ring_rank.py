"""What one process of a ring does: join, answer calls until there are none, leave."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from tightrope.device import prepare


class Packed(NamedTuple):
    """A tensor as it crosses between processes."""

    data: bytes
    dtype: str
    shape: tuple[int, ...]


class Call(NamedTuple):
    """local(*tensors, group, **options) in each of the first `ranks` processes."""

    local: Callable[..., Any]
    ranks: int
    tensors: Sequence[Packed]
    options: Mapping[str, Any]


class Answer(NamedTuple):
    """Tensors, or the error that a rank raised and where."""

    tensors: Sequence[Packed]
    error: Exception | None = None
    place: str = ""


def packed(tensor: torch.Tensor) -> Packed:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    name = str(tensor.dtype).removeprefix("torch.")
    return Packed(flat.view(torch.uint8).numpy().tobytes(), name, tuple(tensor.shape))


def unpacked(given: Packed, device: Any) -> torch.Tensor:
    dtype = getattr(torch, given.dtype)
    if not given.data:  # NumPy's empty arrays have strides that torch cannot view
        return torch.empty(given.shape, dtype=dtype, device=device)
    flat = torch.from_numpy(np.frombuffer(given.data, np.uint8).copy())
    return flat.view(dtype).reshape(given.shape).to(device)


def serve(
    rank: int, size: int, store: str, kind: str, timeout: float, connection: Any
) -> None:  # fmt: skip
    """Answer calls as rank `rank` of `size`; ends at None, or when the other end is gone.

    store: a new file, in a folder of its own, by which the ranks find one another. kind: "cuda" or
    "cpu". timeout: seconds after which a rank gives up waiting for another.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that calls decides
    folder = Path(store).parent
    threading.Thread(target=_leave_with_parent, args=(folder,), daemon=True).start()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    prepare(kind)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size,
        timeout=timedelta(seconds=timeout),
    )  # fmt: skip
    groups = _groups(size, kind, timedelta(seconds=timeout))
    device = torch.device("cpu")
    if kind == "cuda":
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    connection.send(Answer(()))
    while True:
        try:
            call = connection.recv()
        except EOFError:
            break
        except Exception as error:  # the function cannot be imported here
            connection.send(Answer((), RuntimeError(f"{type(error).__name__}: {error}")))
            continue
        if call is None:
            break
        connection.send(_answer(call, groups[call.ranks], device))
    dist.destroy_process_group()


def _leave_with_parent(folder: Path) -> None:
    """Wait for the end of the process that calls, killed perhaps, and end, whatever goes on."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def _groups(size: int, kind: str, timeout: timedelta) -> dict[int, Any]:
    """A group of the first n ranks for every n; of NCCL where each has a GPU of its own."""
    gpus = torch.cuda.device_count() if kind == "cuda" else 0
    return {
        n: dist.new_group(list(range(n)), timeout, "nccl" if 2 <= n <= gpus else "gloo")
        for n in range(1, size + 1)
    }


def _answer(call: Call, group: Any, device: torch.device) -> Answer:
    try:
        tensors = [unpacked(t, device) for t in call.tensors]
        found = call.local(*tensors, group, **call.options)
        return Answer([packed(t) for t in found])
    except Exception as error:
        place = traceback.format_exc()
        plain = type(error) in (TypeError, ValueError, RuntimeError)
        told = error if plain else RuntimeError(f"{type(error).__name__}: {error}")
        return Answer((), told, place)
