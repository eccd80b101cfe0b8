"""Processes that play the ranks of a ring, started once and fed with calls.

A rank that raises, dies or hangs is an error of the call, and its pool is replaced; nothing waits
longer than `PATIENCE`.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import shutil
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch

from tightrope.device import current
from tightrope.ring_rank import Answer, Call, Packed, packed, serve, unpacked
from tightrope.ring_shards import spans
from tightrope.validate import refuse

SIZE = 4  # ranks of a pool
PATIENCE = 60.0  # seconds for a call; kernels compile on their first
START = 120.0  # seconds for processes to import torch and to find one another
GRACE = 2.0  # seconds that others have to answer once a rank has failed


class RanksLost(RuntimeError):
    """A rank died or did not answer in time."""


class Pool:
    """Ranks 0 to size - 1 of a process group, each a process of its own."""

    def __init__(self, kind: str, size: int = SIZE) -> None:
        """kind: "cuda" or "cpu". Raises RanksLost if a process does not start."""
        self.folder = Path(tempfile.mkdtemp(prefix="tightrope-ring-"))
        self.size = size
        self.processes: list[Any] = []
        self.connections: list[Any] = []
        self.broken = False
        self.owner = os.getpid()
        try:
            self._start(kind)
        except BaseException:  # Ctrl-C among them
            self.close()
            raise

    def _start(self, kind: str) -> None:
        # One process imports torch, with the interpreter or without, and the ranks fork from it.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tightrope.ring_preload"])
        store = str(self.folder / "store")
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            arguments = (rank, self.size, store, kind, START, theirs)
            process = context.Process(target=serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self.processes.append(process)
            self.connections.append(ours)
            _impatient(ours)
        self._answers(range(self.size), START)

    def call(
        self, local: Callable[..., Any], tensors: Sequence[Sequence[Packed]], options: Any,
        patience: float = PATIENCE,
    ) -> list[Sequence[Packed]]:  # fmt: skip
        """What `local(*tensors[rank], group, **options)` returns in each rank of len(tensors).

        local: a function of a module, found by its name. Raises what a rank raised (TypeError,
        ValueError, or RuntimeError for others), RanksLost for one that is silent.
        """
        try:
            return self._call(local, tensors, options, patience)
        except BaseException:  # also Ctrl-C and time-outs: answers or messages may be on their way
            self.close()
            raise

    def _call(
        self, local: Callable[..., Any], tensors: Sequence[Sequence[Packed]], options: Any,
        patience: float,
    ) -> list[Sequence[Packed]]:  # fmt: skip
        ranks = len(tensors)
        try:
            for rank, given in enumerate(tensors):
                self.connections[rank].send(Call(local, ranks, given, options))
        except OSError as error:
            raise RanksLost(f"a rank is gone: {error}") from error
        answers = self._answers(range(ranks), patience)
        for rank, answer in answers.items():
            if answer.error is not None:
                answer.error.add_note(f"in rank {rank} of {ranks}:\n{answer.place}")
                raise answer.error
        return [answers[rank].tensors for rank in range(ranks)]

    def _answers(self, ranks: Sequence[int], patience: float) -> dict[int, Answer]:
        """An answer of every rank; after an error of one, those that come soon."""
        end = time.monotonic() + patience
        found: dict[int, Answer] = {}
        while len(found) < len(ranks):
            silent = [rank for rank in ranks if rank not in found]
            ready = wait([self.connections[r] for r in silent], max(0.0, end - time.monotonic()))
            if not ready:
                if any(answer.error for answer in found.values()):
                    return found
                self.close()
                told = ", ".join(map(str, silent))
                raise RanksLost(f"rank {told} of {len(ranks)} did not answer in {patience:g} s")
            for rank in silent:
                if self.connections[rank] in ready:
                    found[rank] = self._answer(rank, len(ranks))
                    if found[rank].error is not None:
                        end = min(end, time.monotonic() + GRACE)
        return found

    def _answer(self, rank: int, ranks: int) -> Answer:
        try:
            answer: Answer = self.connections[rank].recv()
        except (EOFError, OSError):
            self.close()
            status = self.processes[rank].exitcode
            raise RanksLost(f"rank {rank} of {ranks} died (exit status {status})") from None
        return answer

    def close(self) -> None:
        """End all ranks, whatever they do. May be called again."""
        if self.broken or self.owner != os.getpid():  # a fork's copy is not its to end
            return
        self.broken = True
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join(5)
        for connection in self.connections:
            connection.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _impatient(connection: Any) -> None:
    """Reads and writes that stall for PATIENCE seconds raise BlockingIOError."""
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            end.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(PATIENCE), 0))


_pools: dict[str, Pool] = {}


def pool(kind: str) -> Pool:
    """This process's ranks, started on first use and again after they were lost.

    Raises ValueError for a kind of device that is not this process's: its forkserver, and all that
    was prepared in it, is of one.
    """
    if kind != current().kind:
        refuse("device", f"{current().kind}, as this process has prepared", kind)
    old = _pools.get(kind)
    if old is None or old.broken or old.owner != os.getpid():
        os.environ["TIGHTROPE_DEVICE"] = kind  # what the preloaded modules go by
        _pools[kind] = Pool(kind)
    return _pools[kind]


@atexit.register
def close() -> None:
    """End the ranks of this process, if there are any."""
    for each in _pools.values():
        each.close()
    _pools.clear()


def on_ranks(
    local: Callable[..., Any], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, ranks: int,
    scheme: str, **options: Any,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """out and lse of whole tensors: sharded, `local` run in every rank, gathered.

    q (batch, num_heads, seqlen_q, head_dim), k and v (batch, num_kv_heads, seqlen_k, ..).
    local(q, k, v, group, *, seqlen_q, seqlen_k, scheme, **options), of a rank's shards, returns its
    rows of out and lse. Raises as `Pool.call`, ValueError for an unknown scheme or ranks beyond
    the pool.
    """
    lengths = {"seqlen_q": q.shape[2], "seqlen_k": k.shape[2]}
    out, lse = spread(local, (q, k, v), ranks, scheme, {**options, **lengths})
    return out, lse


def spread(
    local: Callable[..., Any], tensors: Sequence[torch.Tensor], ranks: int, scheme: str,
    options: dict[str, Any],
) -> list[torch.Tensor]:  # fmt: skip
    """What `local(*shards, group, scheme=.., **options)` returns in so many ranks, gathered.

    tensors and what comes back: rows along axis 2. Raises as `on_ranks`.
    """
    if ranks not in range(1, SIZE + 1):
        raise ValueError(f"ranks: expected 1 to {SIZE}, got {ranks}")
    given = [[packed(shard(x, ranks, scheme, rank)) for x in tensors] for rank in range(ranks)]
    device = tensors[0].device
    answers = pool(device.type).call(local, given, {**options, "scheme": scheme})
    parts = [[unpacked(t, device) for t in answer] for answer in answers]
    return [gathered(shards, scheme) for shards in zip(*parts, strict=True)]


def shard(x: torch.Tensor, ranks: int, scheme: str, rank: int) -> torch.Tensor:
    """A rank's rows (axis 2) of a whole tensor, in the order of its spans."""
    runs = [x[:, :, start:stop] for start, stop in spans(x.shape[2], ranks, scheme, rank)]
    return torch.cat(runs, 2)


def gathered(shards: Sequence[torch.Tensor], scheme: str) -> torch.Tensor:
    """The whole tensor (axis 2) of every rank's rows. Raises ValueError for wrong lengths."""
    length, ranks = sum(x.shape[2] for x in shards), len(shards)
    first = shards[0]
    whole = first.new_empty((*first.shape[:2], length, *first.shape[3:]))
    for rank, x in enumerate(shards):
        runs = spans(length, ranks, scheme, rank)
        for (start, stop), rows in zip(runs, x.split([b - a for a, b in runs], 2), strict=True):
            whole[:, :, start:stop] = rows
    return whole
