"""Pictures of an audit as SVG, for light and for dark pages; matplotlib (the extra "bench") draws.

A picture is data: what is drawn is a function of the JSON. Colours are Okabe and Ito's, which
people with any colour vision tell apart, and every line has a mark of its own too.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#888888")
BRIGHTER = {"#0072B2": "#4C9BE8"}  # on a dark page, where the first has too little contrast
MARKS, DASHES = "osD^vP*X<>", ("-", "--", "-.", ":")
INK = {"light": "#1a1a1a", "dark": "#e8e8e8"}


class Picture(NamedTuple):
    """title; x and y: labels with units. series: name -> points. lines: label -> height of a
    threshold. log: bases of both axes, 0 for an even one. alt: what it shows, in words.
    """

    title: str
    x: str
    y: str
    series: Mapping[str, list[tuple[float, float]]]
    lines: Mapping[str, float] = {}
    log: tuple[int, int] = (2, 10)
    alt: str = ""


def check() -> None:
    """Raise ImportError, with what to install, where matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError("--html needs matplotlib: pip install 'tightrope[bench]'") from error


def svg(picture: Picture, theme: str) -> str:
    """The picture as one SVG document; theme: "light" or "dark"."""
    check()
    import matplotlib
    from matplotlib.figure import Figure

    ink = INK[theme]
    style: Any = dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), ink
    ) | {"svg.fonttype": "none", "svg.hashsalt": "tightrope", "font.size": 10}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(9.5, 4.8), layout="constrained", facecolor="none")
        axes = figure.subplots()
        axes.set_facecolor("none")
        for place, (name, points) in enumerate(picture.series.items()):
            colour = COLOURS[place % len(COLOURS)]
            look = {
                "color": BRIGHTER.get(colour, colour) if theme == "dark" else colour,
                "marker": MARKS[place % len(MARKS)],
                "linestyle": DASHES[place // len(COLOURS) % len(DASHES)],
                # the first widest, so that a line under another still shows
                "linewidth": 1.3 + 2.4 * (1 - (place + 1) / len(picture.series)),
            }
            _line(axes, name, points, picture.log, look)
        _axes(axes, picture, ink)
        figure.legend(loc="outside right upper", frameon=False, fontsize=8.5)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def _line(axes: Any, name: str, points: Any, log: tuple[int, int], look: dict[str, Any]) -> None:
    kept = [(x, y) for x, y in points if not (log[1] and y <= 0) and math.isfinite(y)]
    x, y = [x for x, _ in kept], [y for _, y in kept]
    axes.plot(x, y, label=name, markersize=4, markevery=0.08, **look)


def _axes(axes: Any, picture: Picture, ink: str) -> None:
    for axis, base in zip("xy", picture.log, strict=True):
        if base:
            getattr(axes, f"set_{axis}scale")("log", base=base)
    axes.set_xlabel(picture.x)
    axes.set_ylabel(picture.y)
    axes.set_title(picture.title, fontsize=11, loc="left", color=ink)
    axes.grid(True, color=ink, alpha=0.15)
    for label, height in picture.lines.items():
        axes.axhline(height, color=ink, linewidth=0.9, linestyle=(0, (1, 2)))
        axes.annotate(
            label, (1, height), xycoords=("axes fraction", "data"), xytext=(-3, 2),
            textcoords="offset points", fontsize=8.5, color=ink, ha="right",
        )  # fmt: skip
