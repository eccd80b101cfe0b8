"""Timing calls on a GPU: many repetitions, all contenders in turn, medians and spread."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")
Call = Callable[[int], Any]  # of the number of the buffers to work on
Times = dict[str, float]  # low, median and high, in microseconds

BUFFERS, BATCH, REPEATS = 4, 16, 25


def _measure(calls: dict[str, T], once: Callable[[str, T], float]) -> dict[str, list[float]]:
    """Name -> times in seconds of each call, all calls in turn, REPEATS times."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(REPEATS):
        for name, call in calls.items():
            times[name].append(once(name, call))
    return times


def _warm(calls: dict[str, Call]) -> None:
    """Compile and allocate outside the clock."""
    for call in calls.values():
        for i in range(BUFFERS):
            call(i)


def spread(times: list[float]) -> Times:
    """Median and the middle half, in microseconds, of times in seconds."""
    quarters = statistics.quantiles([t * 1e6 for t in times], n=4, method="inclusive")
    return dict(zip(("low", "median", "high"), quarters, strict=True))


def _batch(call: Call, buffers: int = BUFFERS, batch: int = BATCH) -> None:
    for i in range(batch):
        call(i % buffers)


def _events(work: Callable[[], Any], ahead: Callable[[], Any], batch: int = BATCH) -> float:
    """Seconds a call, by CUDA events around `batch`, queued while `ahead` keeps the GPU busy."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    ahead()
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / batch


def prefill(calls: dict[str, Call], size: int) -> dict[str, dict[str, Any]]:
    """Name -> time a call (us), and bandwidth for the `size` bytes that a call moves."""
    _warm(calls)
    times = _measure(
        calls, lambda _, c: _events(lambda: _batch(c), lambda: [c(i) for i in range(4)])
    )
    found: dict[str, dict[str, Any]] = {name: {"us": spread(t)} for name, t in times.items()}
    for row in found.values():
        row["TB/s"] = size / row["us"]["median"] / 1e6
    return found


def _in_a_row(call: Call) -> float:
    """Wall seconds a call of many, until the GPU is done."""
    import torch

    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(20):
        _batch(call)
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / (20 * BATCH)


def _alone(call: Call) -> float:
    """Wall seconds of one call, until the GPU is done."""
    import torch

    torch.cuda.synchronize()
    began = time.perf_counter()
    call(0)
    torch.cuda.synchronize()
    return time.perf_counter() - began


def _recorded(call: Call, buffers: int = BUFFERS, batch: int = BATCH) -> Any:
    """A CUDA graph of `batch` calls: its replay takes no host time a call."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _batch(call, buffers, batch)
    return graph


def decode(calls: dict[str, Call]) -> dict[str, dict[str, Any]]:
    """Name -> wall time (us) a call of many in a row, of one alone, and time on the device only."""
    _warm(calls)
    in_a_row = _measure(calls, lambda _, c: _in_a_row(c))
    alone, device = _measure(calls, lambda _, c: _alone(c)), on_device(calls)
    return {
        name: {"us": spread(in_a_row[name]), "us alone": spread(alone[name]), **device[name]}
        for name in calls
    }


def on_device(calls: dict[str, Call]) -> dict[str, dict[str, Any]]:
    """Name -> time a call on the device (us), by replaying a CUDA graph of many."""
    _warm(calls)
    graphs = {name: _recorded(call) for name, call in calls.items()}
    times = _measure(graphs, lambda _, graph: _events(graph.replay, graph.replay))
    return {name: {"us on the device": spread(t)} for name, t in times.items()}


def calls_a_time(seconds: float, buffers: int) -> int:
    """How many calls of about that length to time at once: all buffers, or 6 ms of slow ones."""
    return max(1, min(max(buffers, BATCH), int(0.006 / max(seconds, 1e-7))))


def both(
    calls: dict[str, Call], buffers: int, around: Mapping[str, Callable[[], Any]]
) -> tuple[dict[str, Any], dict[str, Times]]:
    """Name -> times on the device by graph replay, or why none could be recorded; and direct.

    The calls are warm, run inside a context of their own (`around`), and take turns. Direct: queued
    one by one while the GPU is busy, so host time shows where it is longer.
    """
    batches, graphs, failed = {}, {}, {}
    for name, call in calls.items():
        with around[name]():
            batches[name] = calls_a_time(_alone(call), buffers)
    _free()
    for name, call in calls.items():
        try:
            with around[name]():
                graphs[name] = _recorded(call, buffers, batches[name])
        except RuntimeError as error:
            failed[name] = reason(error)

    def directly(name: str, call: Call) -> float:
        n = batches[name]
        with around[name]():
            return _events(lambda: _batch(call, buffers, n), lambda: call(0), n)

    device = _measure(graphs, lambda name, g: _events(g.replay, g.replay, batches[name]))
    graphs.clear()  # they hold all memory that their calls took
    _free()
    direct = _measure(calls, directly)
    found: dict[str, Any] = {name: spread(t) for name, t in device.items()}
    return {**found, **failed}, {name: spread(t) for name, t in direct.items()}


def _free() -> None:
    import torch

    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def reason(error: BaseException) -> str:
    """An exception as one line for a table: its type and the first line that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:160] if lines else ''}"
