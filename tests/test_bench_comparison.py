"""`tightrope bench` without an operation: who takes part, what counts, tables and picture."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest
import torch
from bench_result import result, times

from tightrope import bench, bench_comparison, bench_contenders, bench_rows, bench_summary
from tightrope.bench import Wanted
from tightrope.bench_inputs import POSITIONS, ROPE_THETA, Shape, draw
from tightrope.cli import main
from tightrope.device import prepare
from tightrope.softplus import FORMS

SMALL = Shape(1, 2, 33, 16)
OURS = tuple(bench_comparison.BUNDLED)
TORCH = tuple(f"torch {backend}" for backend in bench_contenders.SDPA)


def apart(inputs):
    """Position -> a twentieth of how far its output is from that of any other."""
    exact = {p: inputs.exact(p, inputs.rows()) for p in POSITIONS}
    return {
        p: min(float((exact[p] - exact[o]).abs().max()) for o in POSITIONS if o != p) / 20
        for p in POSITIONS
    }


@pytest.fixture
def on_the_cpu(monkeypatch):
    """Kernels run on the interpreter; the clock is made up, memory too."""
    if torch.cuda.is_available():
        pytest.skip("kernels are compiled here; the command itself runs them")
    prepare()
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(bench_rows, "memory", lambda c, i: 2 * i.shape.output_bytes)
    monkeypatch.setattr(bench_rows, "draw", lambda s, buffers=1: draw(s, buffers, "cpu"))

    def both(calls, buffers, around):
        made = {name: times(10.0 * (1 + place)) for place, name in enumerate(calls)}
        return made, made

    monkeypatch.setattr(bench_rows, "both", both)


def test_the_shapes_are_those_of_the_promise():
    assert [s.name for s in bench_comparison.SHAPES] == [
        *(f"1x8x{n}x64" for n in (512, 1024, 2048, 4096)),
        *("2x8x1024x64", "4x8x1024x64", "4x32x4096x64", "2x16x4096x128"),
    ]  # fmt: skip
    assert all(s.causal and s.dtype == "float16" for s in bench_comparison.SHAPES)


def test_every_row_is_there_and_explained_whether_or_not_it_can_run():
    rows = bench_comparison.contenders(SMALL)
    assert [c.name for c in rows] == [*OURS, *TORCH, "pope-pytorch"]
    assert {c.name for c in rows} == set(bench_comparison.LEGEND)
    for row in rows:
        kind = "pope" if "pope" in row.name else "rope" if row.name == "rope" else "none"
        assert row.error or row.position == kind, row.name


def test_with_delta_each_pope_row_is_there_twice():
    rows = bench_comparison.with_delta(SMALL)
    names = [c.name for c in rows]
    assert names[:2] == ["flash", "torch cudnn"]
    pope = [name for name in (*OURS, "pope-pytorch") if "pope" in name]
    assert names[2:] == [name + more for name in pope for more in ("", " with delta")]
    assert all((c.position == "pope with delta") == c.name.endswith("delta") for c in rows)


@pytest.mark.usefixtures("on_the_cpu")
@pytest.mark.parametrize("make", [bench_comparison.contenders, bench_comparison.with_delta])
def test_what_runs_computes_its_row_and_no_other(make):
    torch.manual_seed(1)
    inputs = draw(SMALL, 1, "cpu")
    checked = bench_comparison.rows(inputs, make(SMALL), lambda step: None)
    ran = {c.name: c.position for c in make(SMALL) if "error" not in checked[c.name]}
    assert len(ran) >= 3, checked
    for name, position in ran.items():
        assert checked[name]["max error"] < apart(inputs)[position], name


def test_what_is_not_registered_says_why(monkeypatch):
    module = SimpleNamespace(MISSING="no sm_90 device")
    monkeypatch.setitem(sys.modules, "tightrope.impls.pope_attention_hopper", module)
    row = bench_comparison.ours_of(SMALL, "memory_optimized_pope (hopper)")
    assert row.error == "no sm_90 device"
    module.MISSING = None
    row = bench_comparison.ours_of(SMALL, "memory_optimized_pope (hopper)")
    assert row.error == "pope_attention_hopper registers no pope_attention hopper"


@pytest.mark.usefixtures("on_the_cpu")
def test_rope_makes_its_table_in_the_call():
    inputs = draw(SMALL, 1, "cpu")
    seen = []

    def attend(given, i):
        seen.append((given.cos, given.sin, i))

    object.__setattr__(inputs, "cos", None)
    bench_comparison.rope(attend, inputs, 0)
    ((cos, sin, _),) = seen
    feature = torch.arange(0, 16, 2, dtype=torch.float64)
    angle = inputs.positions[:, None] * ROPE_THETA ** (-feature / 16)
    for made, right in ((cos, angle.cos()), (sin, angle.sin())):  # rounded once, to 24 bits
        assert float((made.double() - right).abs().max()) < 2.0**-24


@pytest.mark.usefixtures("on_the_cpu")
def test_a_result_is_kept_after_each_shape_and_shown(monkeypatch, capsys):
    shapes = (SMALL, Shape(2, 2, 16, 16))
    monkeypatch.setattr(bench_comparison, "SHAPES", shapes)
    few = ("flash", "torch math", "torch cudnn")
    every = bench_comparison.contenders
    monkeypatch.setattr(
        bench_comparison, "contenders", lambda s: [c for c in every(s) if c.name in few]
    )
    kept = []
    found = bench_comparison.measure(Wanted(keep=lambda m: kept.append(list(m["shapes"]))))
    assert kept == [["1x2x33x16"], ["1x2x33x16", "2x2x16x16"]]
    row = found["shapes"]["1x2x33x16"]["rows"]["torch math"]
    assert row["over flash"] == row["us in a graph"]["median"] / 10.0
    assert (row["extra memory"], row["extra MiB"]) == (2.0, 2 * SMALL.output_bytes / 2**20)
    bench_comparison.show(found)
    out = capsys.readouterr().out
    assert "1x2x33x16" in out
    assert "flash: attention without positions" in out


def test_the_comparison_has_no_sweep():
    with pytest.raises(ValueError, match="the comparison has no sweep"):
        bench_comparison.measure(Wanted(sweep=True))


@pytest.mark.usefixtures("on_the_cpu")
def test_a_sweep_of_pope_builds_the_kernel_in_each_way(monkeypatch):
    tiles = {16: ((16, 32, 4, 1),)}
    monkeypatch.setattr(bench_contenders, "TILES", tiles)
    rows = bench_comparison.sweep(SMALL)
    assert len(rows) == len({r.name for r in rows}) == 1 + len(FORMS)
    inputs = draw(SMALL, 1, "cpu")
    found = bench_rows.rows(inputs, rows, lambda step: None)
    assert max(row["max error"] for row in found.values()) < apart(inputs)["pope"]


def test_tables_say_what_there_is_and_why_there_is_nothing():
    cells = bench_summary.cells(result())
    runtime = cells["Runtime, microseconds (median, CUDA graph)"]
    assert runtime["flash"] == ["12.0", "18.0", "24.0"]
    assert runtime["torch math"] == ["128.0", "192.0", "-"]
    assert "pope-pytorch" not in runtime
    assert cells["Runtime over torch cudnn"]["simple_pope"] == ["1.50"] * 3
    assert cells["Largest error against float64"]["pope-pytorch"] == ["-", "5.0e-01", "-"]
    lines = bench_summary.legend(result())
    assert "torch math: OutOfMemoryError: no room (4x8x1024x64)" in lines
    assert "pope-pytorch: RuntimeError: not while recording (1x8x512x64)" in lines
    (said,) = [x for x in bench_summary.markdown(result()).splitlines() if "torch math | 128" in x]
    assert said == "| torch math | 128.0 | 192.0 | - |"


def test_the_cli_knows_every_operation(capsys):
    assert main(["bench", "--help"]) == 0
    assert "{" + ",".join(bench.OPERATIONS) + "}" in capsys.readouterr().out


@pytest.mark.parametrize("more", [["--picture=p.txt"], ["rope", "--picture=p.png"]])
def test_a_picture_that_cannot_be_is_refused_before_anything_is_timed(more, capsys):
    assert main(["bench", *more]) == 4
    assert "picture" in capsys.readouterr().err


def test_memory_is_poisoned_before_the_output_that_is_checked(monkeypatch):
    inputs, order = draw(SMALL, 1, "cpu"), []
    monkeypatch.setattr(bench_rows, "memory", lambda c, i: 0)
    monkeypatch.setattr(bench_rows, "poison", lambda i: order.append("poison"))

    def run(given, i):
        order.append("run")
        return given.q[0]

    bench_rows.check(bench_contenders.Contender("a row", SMALL, run), inputs)
    assert order == ["run", "poison", "run"]


@pytest.fixture
def as_if_on_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(bench, "interpreted", lambda kernel: False)
    monkeypatch.setattr(bench, "environment", lambda: {"device": {"name": "a device"}})


@pytest.mark.usefixtures("as_if_on_a_gpu")
def test_a_run_leaves_json_and_a_picture(monkeypatch, tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="the extra 'bench' brings it")
    found = {k: v for k, v in result().items() if k not in ("date", "environment")}
    monkeypatch.setattr(bench_comparison, "measure", lambda wanted: found)
    files = [tmp_path / name for name in ("b.json", "b.png")]
    assert main(["bench", f"--json={files[0]}", f"--picture={files[1]}"]) == 0
    written = json.loads(files[0].read_text())
    assert list(written) == ["date", "environment", *found]
    assert files[1].stat().st_size > 1000
    assert "Runtime over torch cudnn" in capsys.readouterr().out


@pytest.mark.usefixtures("as_if_on_a_gpu")
def test_a_crash_loses_no_shape_that_was_measured(monkeypatch, tmp_path):
    def measure(wanted):
        wanted.keep({"shapes": {"one": {}}})
        raise RuntimeError("an illegal memory access")

    monkeypatch.setattr(bench_comparison, "measure", measure)
    with pytest.raises(RuntimeError, match="illegal"):
        bench.bench(json_file=str(tmp_path / "b.json"))
    assert json.loads((tmp_path / "b.json").read_text())["shapes"] == {"one": {}}
