"""Write docs/kernel_comparison.ipynb, executed, from the newest committed comparison.

`python docs/make_kernel_comparison.py` needs matplotlib, nbformat, nbclient and ipykernel, and a
docs/measurements/*-kernel-comparison.json, which `tightrope bench --json=FILE` writes on a GPU.
tests/test_kernel_comparison.py holds the notebook against that file.
"""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).resolve().parent
NOTEBOOK = DOCS / "kernel_comparison.ipynb"

CELLS: tuple[tuple[str, str], ...] = (
    (
        "markdown",
        """\
# What PoPE costs: runtime and memory of attention kernels

Causal attention, float16, one forward. `flash` knows no positions. `rope` rotates pairs of
features. The others compute PoPE (polar coordinate position embedding, arXiv:2509.10534): each
feature is a magnitude, softplus of what is given, with an angle, position times frequency.
`simple_pope` writes both Cartesian parts of q and k to memory and attends to them; the two
`memory_optimized_pope` form them in registers, tile by tile.

This page is made from one file that `tightrope bench --json=FILE` wrote; nothing here is measured.
Each row begins with q, k, v, inv_freq and positions: tables, angles and copies that it needs are in
its time and in its memory.""",
    ),
    (
        "code",
        """\
import json
from pathlib import Path

import matplotlib.pyplot as plt

from tightrope import bench_picture, bench_summary

folder = next(p for p in (Path("measurements"), Path("docs/measurements")) if p.is_dir())
file = max(folder.glob("*-kernel-comparison.json"))
found = json.loads(file.read_text())
machine = found["environment"]
packages = ", ".join(f"{name} {machine['packages'][name]}" for name in ("torch", "triton"))
print(f"{file.name}: {found['date']}, {machine['device']['name']}, {packages}")""",
    ),
    (
        "markdown",
        """\
## Tables

A column is a shape, batch x heads x length x head_dim. Times are medians of many replays of a CUDA
graph, all rows in turn, so that neither Python nor a drift of the clock tells on one row alone.
PyTorch's cuDNN attention, which knows no positions either, is the yardstick. Memory is the most
that one call allocated, its output included. The error is that of every head against float64.""",
    ),
    ("code", "bench_summary.markdown(found)"),
    (
        "markdown",
        """\
## Runtime and memory against length

Both axes are logarithmic: what grows with the square of the length rises fourfold from one mark to
the next. A row is light if its memory lies on that of `flash`.""",
    ),
    (
        "code",
        """\
figure = plt.figure(figsize=(11, 5), layout="constrained")
bench_picture.against_length(found, figure)
plt.show()""",
    ),
    (
        "markdown",
        """\
## Every shape, over the yardstick

Left of the line is faster than cuDNN's attention without positions. PoPE's scores have twice the
features of `flash`, so half again as many multiplications for the same values: a ratio of 1.5 is
what the arithmetic alone asks for.""",
    ),
    (
        "code",
        """\
figure = plt.figure(figsize=(11, 5), layout="constrained")
bench_picture.over_yardstick(found, figure)
plt.show()""",
    ),
    ("markdown", "## What the rows are, how they were measured, and what could not be"),
    ("code", 'print("\\n".join(bench_summary.legend(found)))'),
)


def written() -> None:
    """Execute the cells and write the notebook, without the times of day that execution leaves."""
    import nbformat
    from nbclient import NotebookClient

    made = {"markdown": nbformat.v4.new_markdown_cell, "code": nbformat.v4.new_code_cell}
    cells = [made[kind](text, id=f"cell-{i}") for i, (kind, text) in enumerate(CELLS)]
    book = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(book, resources={"metadata": {"path": str(DOCS)}}).execute()
    for cell in book.cells:
        cell.metadata.clear()
    nbformat.validate(book)
    nbformat.write(book, NOTEBOOK)


if __name__ == "__main__":
    written()
