"""Timing calls on a GPU: many repetitions, all contenders in turn, medians and spread."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
Call = Callable[[int], Any]  # of the number of the buffers to work on

BUFFERS, BATCH, REPEATS = 4, 16, 25


def _measure(calls: dict[str, T], once: Callable[[T], float]) -> dict[str, list[float]]:
    """Name -> times in seconds of each call, all calls in turn, REPEATS times."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(REPEATS):
        for name, call in calls.items():
            times[name].append(once(call))
    return times


def _warm(calls: dict[str, Call]) -> None:
    """Compile and allocate outside the clock."""
    for call in calls.values():
        for i in range(BUFFERS):
            call(i)


def _spread(times: list[float]) -> dict[str, float]:
    """Median and the middle half, in microseconds."""
    quarters = statistics.quantiles([t * 1e6 for t in times], n=4, method="inclusive")
    return dict(zip(("low", "median", "high"), quarters, strict=True))


def _batch(call: Call) -> None:
    for i in range(BATCH):
        call(i % BUFFERS)


def _events(work: Callable[[], Any], ahead: Callable[[], Any]) -> float:
    """Seconds a call, by CUDA events around BATCH, queued while `ahead` keeps the GPU busy."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    ahead()
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / BATCH


def prefill(calls: dict[str, Call], size: int) -> dict[str, dict[str, Any]]:
    """Name -> time a call (us), and bandwidth for the `size` bytes that a call moves."""
    _warm(calls)
    times = _measure(calls, lambda c: _events(lambda: _batch(c), lambda: [c(i) for i in range(4)]))
    found: dict[str, dict[str, Any]] = {name: {"us": _spread(t)} for name, t in times.items()}
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


def _recorded(call: Call) -> Any:
    """A CUDA graph of BATCH calls: its replay takes no host time a call."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _batch(call)
    return graph


def decode(calls: dict[str, Call]) -> dict[str, dict[str, Any]]:
    """Name -> wall time (us) a call of many in a row, of one alone, and time on the device only."""
    _warm(calls)
    in_a_row, alone, device = _measure(calls, _in_a_row), _measure(calls, _alone), on_device(calls)
    return {
        name: {"us": _spread(in_a_row[name]), "us alone": _spread(alone[name]), **device[name]}
        for name in calls
    }


def on_device(calls: dict[str, Call]) -> dict[str, dict[str, Any]]:
    """Name -> time a call on the device (us), by replaying a CUDA graph of many."""
    _warm(calls)
    graphs = {name: _recorded(call) for name, call in calls.items()}
    times = _measure(graphs, lambda graph: _events(graph.replay, graph.replay))
    return {name: {"us on the device": _spread(t)} for name, t in times.items()}
