"""docs/kernel_comparison.ipynb: its cells run, and what it shows is what its JSON says."""

from __future__ import annotations

import ast
import copy
import json
import runpy
from pathlib import Path

import pytest
from bench_result import result

matplotlib = pytest.importorskip("matplotlib", reason="the extra 'bench' brings it")
DOCS = Path(__file__).resolve().parent.parent / "docs"
NOTEBOOK = DOCS / "kernel_comparison.ipynb"
CELLS = runpy.run_path(str(DOCS / "make_kernel_comparison.py"))["CELLS"]


def shown(text, names):
    """Execute a cell: the Markdown of its last expression, if that is what it ends with."""
    *before, last = ast.parse(text).body
    if not isinstance(last, ast.Expr):
        before.append(last)
    exec(compile(ast.Module(before, []), "cell", "exec"), names)
    value = None
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    return value._repr_markdown_() if hasattr(value, "_repr_markdown_") else ""


@pytest.fixture
def executed(tmp_path, monkeypatch, capsys):
    """Runs code cells on a result, in order: what each showed as text, and its figures."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    (tmp_path / "measurements").mkdir()
    monkeypatch.chdir(tmp_path)

    def run(found, name="2026-01-02-kernel-comparison.json"):
        (tmp_path / "measurements" / name).write_text(json.dumps(found))
        names, printed, figures = {}, [], []
        for kind, text in CELLS:
            if kind == "code":
                value = shown(text, names)
                printed.append(capsys.readouterr().out + value)
                figures += [pyplot.figure(n) for n in pyplot.get_fignums()]
                pyplot.close("all")
        return printed, figures

    return run


def test_every_number_of_a_cell_comes_from_the_json(executed):
    found = result()
    head, tables, *_, legend = executed(found)[0]
    assert "2026-01-02-kernel-comparison.json: 2026-11-30T12:00:00+00:00, a device" in head
    for here in found["shapes"].values():
        for us in (row.get("us in a graph") for row in here["rows"].values()):
            assert not isinstance(us, dict) or f"{us['median']:.1f}" in tables
    assert "torch math: OutOfMemoryError" in legend
    changed = copy.deepcopy(found)
    changed["shapes"]["1x8x512x64"]["rows"]["flash"]["us in a graph"]["median"] = 987654.3
    assert "987654.3" not in tables
    assert "987654.3" in executed(changed)[0][1]


def test_the_pictures_show_the_same_rows(executed):
    found = result()
    _, (lengths, ratios) = executed(found)
    drawn = {line.get_label(): list(line.get_ydata()) for line in lengths.axes[0].lines}
    series = [found["shapes"][f"1x8x{n}x64"]["rows"]["flash"] for n in (512, 1024)]
    assert drawn["flash"] == [row["us in a graph"]["median"] for row in series]
    marks = {line.get_label(): list(line.get_xdata()) for line in ratios.axes[0].lines}
    rows = [here["rows"]["flash"] for here in found["shapes"].values()]
    assert marks["flash"] == [row["over torch cudnn"] for row in rows]


def test_the_newest_measurement_is_shown(executed):
    executed(result(), "2025-12-31-kernel-comparison.json")
    assert "2026-01-02-kernel-comparison.json" in executed(result())[0][0]


def test_no_prose_quotes_a_measurement():
    told = " ".join(text for kind, text in CELLS if kind == "markdown")
    assert " us" not in told
    assert "MiB" not in told
    assert "H200" not in told


def text_of(output):
    """Of one output of a cell, the text that readers see."""
    return "".join(output.get("text", output.get("data", {}).get("text/markdown", "")))


def test_the_committed_notebook_is_what_its_json_gives(executed):
    files = sorted((DOCS / "measurements").glob("*-kernel-comparison.json"))
    assert files, "no measurement is committed: tightrope bench --json=FILE on a GPU"
    printed, figures = executed(json.loads(files[-1].read_text()), files[-1].name)
    book = json.loads(NOTEBOOK.read_text())
    kept = [(cell["cell_type"], "".join(cell["source"])) for cell in book["cells"]]
    assert kept == list(CELLS), "run docs/make_kernel_comparison.py"
    outputs = [cell["outputs"] for cell in book["cells"] if cell["cell_type"] == "code"]
    kept_text = ["".join(map(text_of, each)) for each in outputs]
    assert kept_text == printed, "run docs/make_kernel_comparison.py"
    pictures = [o for each in outputs for o in each if "image/png" in o.get("data", {})]
    assert len(pictures) == len(figures) == 2
