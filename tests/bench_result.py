"""A small result of `tightrope bench`, as its JSON holds it; the numbers mean nothing."""

from __future__ import annotations

from dataclasses import asdict

from tightrope.bench_comparison import LEGEND, YARDSTICK
from tightrope.bench_inputs import Shape
from tightrope.bench_rows import DIRECT, GRAPH, METHOD

SHAPES = (Shape(1, 8, 1024, 64), Shape(1, 8, 512, 64), Shape(4, 8, 1024, 64))
FACTORS = {"flash": 0.75, "simple_pope": 1.5, "torch math": 8.0, YARDSTICK: 1.0}


def times(median, apart=0.1):
    return {"low": median - apart, "median": median, "high": median + apart}


def result():
    """Three shapes, two of them a series; one row ran out of memory, one could not be recorded."""
    shapes = {}
    for place, shape in enumerate(SHAPES):
        rows = {}
        for name, factor in FACTORS.items():
            us = factor * (16.0 + 8 * place)
            rows[name] = {
                GRAPH: times(us), DIRECT: times(2 * us), "max error": 0.001 * factor,
                "extra memory": factor, "extra MiB": factor * shape.output_bytes / 2**20,
                "over torch cudnn": factor, "over flash": factor / 0.75,
            }  # fmt: skip
        shapes[shape.name] = {**asdict(shape), "rows": rows}
    shapes["4x8x1024x64"]["rows"]["torch math"] = {"error": "OutOfMemoryError: no room"}
    shapes["1x8x512x64"]["rows"]["pope-pytorch"] = {
        GRAPH: "RuntimeError: not while recording", DIRECT: times(700.0), "max error": 0.5,
        "extra memory": 3.0, "extra MiB": 3.0,
    }  # fmt: skip
    device = {"device": {"name": "a device"}, "packages": {"torch": "1.2", "triton": "3.4"}}
    return {
        "date": "2026-11-30T12:00:00+00:00", "environment": device, "method": METHOD,
        "yardstick": YARDSTICK, "legend": LEGEND, "shapes": shapes,
    }  # fmt: skip
