"""Pictures of what `tightrope bench` measured; matplotlib (the extra "bench") draws them.

Functions of the result alone, as `tightrope.bench_summary`: the command saves one, the notebook
docs/kernel_comparison.ipynb shows them all.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tightrope.bench import Row
from tightrope.bench_summary import Result, grid, microseconds, names, number

SUFFIXES = (".png", ".pdf", ".svg")
MARKERS = "osD^vP*Xh<>"
SIZES = ("batch", "num_heads", "head_dim", "dtype", "causal")
Points = dict[str, tuple[list[int], list[float]]]


def check(path: str) -> None:
    """Raise ValueError for a file that is no picture, ImportError without matplotlib."""
    if Path(path).suffix not in SUFFIXES:
        raise ValueError(f"--picture: expected a name that ends in {', '.join(SUFFIXES)}: {path}")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError("pictures need matplotlib: pip install 'tightrope[bench]'") from error


def save(found: Result, path: str) -> None:
    """Draw runtime and memory against length into a file. Raises as `check`."""
    check(path)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5), layout="constrained")
    against_length(found, figure)
    figure.savefig(path, dpi=150)


def longest_series(found: Result) -> list[str]:
    """Shapes that differ in length alone, as many as there are, shortest first."""
    series: dict[tuple[Any, ...], list[str]] = {}
    for name, here in found["shapes"].items():
        series.setdefault(tuple(here[s] for s in SIZES), []).append(name)
    longest = max(series.values(), key=len, default=[])
    return sorted(longest, key=lambda name: int(found["shapes"][name]["seqlen"]))


def points(found: Result, value: Callable[[Row], float | None]) -> Points:
    """Name -> lengths and values along the longest series, rows that have some."""
    shapes = {name: found["shapes"][name] for name in longest_series(found)}
    lengths = [int(here["seqlen"]) for here in shapes.values()]
    drawn: Points = {}
    for name, values in grid({**found, "shapes": shapes}, value).items():
        there = [(n, v) for n, v in zip(lengths, values, strict=True) if v is not None]
        if there:
            drawn[name] = [n for n, _ in there], [v for _, v in there]
    return drawn


def style(found: Result, name: str) -> dict[str, Any]:
    """The look of a row, the same in every picture: ours solid, others dashed and thin."""
    place = names(found).index(name)
    ours = name.startswith(("flash", "rope", "simple_pope", "memory_optimized_pope"))
    line = {"linestyle": "-", "linewidth": 2.0} if ours else {"linestyle": "--", "linewidth": 1.0}
    return {**line, "color": f"C{place % 10}", "marker": MARKERS[place % len(MARKERS)]}


def against_length(found: Result, figure: Any) -> None:
    """Two panels, log axes: microseconds, and MiB of one forward, against seqlen."""
    panels = figure.subplots(1, 2)
    shown = {
        "runtime, microseconds (median, CUDA graph)": microseconds,
        "peak memory of one forward, MiB": number("extra MiB"),
    }
    for axes, (title, value) in zip(panels, shown.items(), strict=True):
        for name, (lengths, values) in points(found, value).items():
            axes.plot(lengths, values, label=name, markersize=5, **style(found, name))
        _log_axes(axes, title, points(found, value))
    series = longest_series(found)
    if series:
        here = found["shapes"][series[-1]]
        sizes = f"{here['batch']}x{here['num_heads']}xNx{here['head_dim']} {here['dtype']}"
        device = found["environment"].get("device", {}).get("name", "no GPU")
        figure.suptitle(f"{sizes}{', causal' if here['causal'] else ''}: {device}")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize=8, frameon=False)


def _log_axes(axes: Any, title: str, drawn: Points) -> None:
    from matplotlib.ticker import NullFormatter

    lengths = sorted({n for ns, _ in drawn.values() for n in ns})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(lengths, [str(n) for n in lengths])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("sequence length N")
    axes.set_title(title, fontsize=10)
    axes.grid(True, which="both", alpha=0.25)


def over_yardstick(found: Result, figure: Any) -> None:
    """One panel: time over the yardstick's, a row of marks a shape, log axis."""
    axes = figure.subplots()
    shapes = list(found["shapes"])
    for name, values in grid(found, number(f"over {found['yardstick']}")).items():
        there = [(v, i) for i, v in enumerate(values) if v is not None]
        if there and name != found["yardstick"]:
            look = {**style(found, name), "linestyle": "none"}
            axes.plot(*zip(*there, strict=True), label=name, markersize=7, **look)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xscale("log", base=2)
    ticks = [0.5, 1, 2, 4, 8, 16, 32]
    axes.set_xticks(ticks, [str(t) for t in ticks])
    axes.set_yticks(range(len(shapes)), shapes)
    axes.invert_yaxis()
    axes.set_xlabel(f"runtime over {found['yardstick']} (attention without positions)")
    axes.grid(True, axis="x", alpha=0.25)
    figure.legend(loc="outside right center", fontsize=8, frameon=False)
