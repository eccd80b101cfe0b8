"""What of `tightrope bench` needs no GPU: shapes, counting, rows that say why, ratios, tables."""

from __future__ import annotations

import io
from contextlib import nullcontext

import pytest
import torch
from rich.console import Console

from tightrope import bench, bench_attention, bench_contenders, bench_rope, bench_rows, timing
from tightrope.bench import Wanted
from tightrope.bench_contenders import Contender
from tightrope.bench_inputs import MOST_BUFFERS, Shape, draw
from tightrope.bench_rows import DIRECT, GRAPH
from tightrope.cli import main
from tightrope.oracles.attention_problem import visible


def times(median, spread=0.1):
    return {"low": median - spread, "median": median, "high": median + spread}


def graph_row(median):
    return {GRAPH: times(median), DIRECT: times(3 * median)}


def inputs(shape):
    """Two sets of q, k and v on the CPU."""
    torch.manual_seed(0)
    return draw(shape, buffers=2, device="cpu")


def test_every_shape_that_is_promised_a_speed_is_timed():
    names = {s.name for s in bench_attention.SHAPES}
    assert names >= {f"1x8x{n}x64" for n in (512, 1024, 2048, 4096)}
    assert names >= {"2x8x1024x64", "4x8x1024x64", "4x32x4096x64", "4x16x4096x128"}
    assert names >= {"4x16x4096x128 full", "4x16x4096x128 bfloat16"}
    assert len(names) == len(bench_attention.SHAPES)


def test_only_takes_the_start_of_a_name():
    shapes = bench_attention.SHAPES
    assert [s.name for s in bench_rows.chosen(shapes, "1x8x4096")] == ["1x8x4096x64"]
    assert len(bench_rows.chosen(shapes, "4x16x4096x128")) == 3
    assert bench_rows.chosen(shapes, None) == shapes
    with pytest.raises(ValueError, match="no shape starts with '3x': 1x8x512x64, "):
        bench_rows.chosen(shapes, "3x")
    with pytest.raises(ValueError, match="bench rope has one shape"):
        bench_rope.measure(Wanted("rope", only="1x8"))


def test_work_and_bytes_are_counted_as_said():
    shape = Shape(2, 8, 1024, 64)
    assert shape.flop == 2 * 2 * 8 * 1024 * 1024 * 64
    assert Shape(2, 8, 1024, 64, causal=False).flop == 2 * shape.flop
    assert shape.output_bytes == 2 * 8 * 1024 * (2 * 64 + 4)


@pytest.mark.parametrize("shape", bench_attention.SHAPES, ids=lambda s: s.name)
def test_buffers_exceed_the_cache(shape):
    cache = 50 << 20
    count = shape.buffers(cache)
    assert 4 <= count <= MOST_BUFFERS
    assert 3 * count * shape.tensor_bytes > cache


@pytest.mark.parametrize(("seconds", "count"), [(1e-6, 64), (1e-4, 60), (1e-3, 6), (0.1, 1)])
def test_slow_calls_are_timed_in_small_batches(seconds, count):
    assert timing.calls_a_time(seconds, 64) == count


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("position", ["none", "rope", "pope", "pope with delta"])
def test_the_exact_output_is_softmax_attention(position, causal):
    given = inputs(Shape(2, 3, 9, 8, dtype="float32", causal=causal))
    out = given.exact(position, torch.tensor([0, 3, 8]))
    q, k, v = (x[0].double() for x in (given.q, given.k, given.v))
    if position == "rope":  # a pair is a complex number
        turn = torch.complex(given.cos.double(), given.sin.double())
        q, k = (torch.complex(x[..., :4].contiguous(), x[..., 4:].contiguous()) for x in (q, k))
        q, k = q * turn, k * turn
    if position.startswith("pope"):  # a feature is one: PoPE, arXiv:2509.10534, eq. 5
        angle = given.positions[:, None] * given.inv_freq.double()
        q, k = ((1 + x.exp()).log().to(torch.complex128) for x in (q, k))
        q, k = (x * torch.polar(torch.ones_like(angle), angle) for x in (q, k))
        if position == "pope with delta":
            delta = given.delta.double()[:, None]
            k = k * torch.polar(torch.ones_like(delta), delta)
    scores = torch.einsum("bhid,bhjd->bhij", q.conj(), k).real / 8**0.5
    seen = torch.from_numpy(visible(9, 9, 0, causal, None, None))
    weights = torch.where(seen, scores.exp(), 0.0)
    expected = (weights / weights.sum(-1, keepdim=True)) @ v
    assert out.shape == (2, 3, 3, 8)
    assert float((out - expected[:, :, [0, 3, 8]]).abs().max()) < 1e-13
    assert position == "none" or not torch.equal(out, given.exact("none", torch.tensor([0, 3, 8])))


def test_rows_that_are_checked_hold_both_ends_and_few_others():
    rows = inputs(Shape(1, 1, 300, 8)).rows()
    assert rows[0] == 0
    assert rows[-1] == 299
    assert 60 <= len(rows) <= 64
    assert len({int(r) % 16 for r in rows}) == 16  # no one place in a tile
    assert inputs(Shape(1, 1, 5, 8)).rows().tolist() == [0, 1, 2, 3, 4]


def test_who_is_missing_is_a_row():
    shape = Shape(1, 2, 16, 16)
    (gone,) = bench_contenders.bundled(shape, "no_such_kernel", "attention")
    assert gone.error.startswith("missing: ModuleNotFoundError: No module named")
    rows = {c.name: c for c in (bench_contenders.sdpa(shape, b) for b in bench_contenders.SDPA)}
    if not torch.cuda.is_available():
        assert "CUDA devices only" in rows["torch cudnn"].error
        assert rows["torch math"].error is None


def test_the_key_outer_order_is_timed_on_small_shapes_only():
    assert bench_contenders._too_large(Shape(1, 8, 1024, 64), "attention_key_outer") is None
    large = Shape(1, 8, 2048, 64)
    assert "not made for speed" in bench_contenders._too_large(large, "attention_key_outer")
    assert bench_contenders._too_large(large, "attention") is None


def test_ours_take_part_with_what_they_return_first():
    shape = Shape(1, 2, 16, 16)
    given = inputs(shape)
    made = bench_contenders.plain(lambda q, k, v, causal: (q + causal, "lse"), given, 1)
    assert torch.equal(made, given.q[1] + 1)

    def rope(q, k, v, cos, sin, q_positions, k_positions, *, interleaved, causal):
        assert (interleaved, causal) == (False, True)
        return cos, q_positions

    assert bench_contenders.rotating(rope, given, 0) is given.cos


def broken(inputs, i):
    raise RuntimeError("\nout of memory, tried to allocate\nmore")


@pytest.fixture
def on_the_cpu(monkeypatch):
    """Rows without a GPU: nothing is timed, memory is what the test says."""
    monkeypatch.setattr(bench_rows, "memory", lambda c, i: 1.5 * i.shape.output_bytes)
    given = {"slow": times(40.0), "torch math": times(80.0), "torch flash": "RuntimeError: no"}

    def both(calls, buffers, around):
        return {n: given[n] for n in calls}, {n: times(50.0) for n in calls}

    monkeypatch.setattr(bench_rows, "both", both)


@pytest.mark.usefixtures("on_the_cpu")
def test_a_row_has_times_error_memory_or_a_reason():
    shape = Shape(1, 2, 16, 16)
    given = inputs(shape)
    right = given.exact("none", torch.arange(16)).float()
    entered = []

    def around():
        entered.append(1)
        return nullcontext()

    field = [
        Contender("slow", shape, lambda inputs, i: right + 0.25, around),
        Contender("torch math", shape, lambda inputs, i: right),
        Contender("torch flash", shape, lambda inputs, i: right),
        Contender("broken", shape, broken),
        Contender("unwritten", shape, lambda inputs, i: torch.full_like(right, torch.nan)),
        Contender("absent", shape, broken, error="missing: of course"),
    ]
    steps = []
    rows = bench_attention.rows(given, field, steps.append)
    assert steps == [f"1x2x16x16: {c.name}" for c in field]
    assert rows["broken"] == {"error": "RuntimeError: out of memory, tried to allocate"}
    assert rows["absent"] == {"error": "missing: of course"}
    assert rows["unwritten"] == {"error": "out holds NaN"}
    assert entered == [1]
    slow = rows["slow"]
    assert 0.2499 < slow["max error"] < 0.2501
    assert rows["torch math"]["max error"] < 1e-6
    assert slow["extra memory"] == 1.5
    assert slow["extra MiB"] == 1.5 * shape.output_bytes / 2**20
    assert slow["TFLOP/s"] == shape.flop / 40.0 / 1e6
    assert slow["over the fastest torch"] == 0.5
    assert rows["torch flash"][GRAPH] == "RuntimeError: no"
    assert "over the fastest torch" not in rows["torch flash"]


def test_ratios_compare_times_in_a_graph_only():
    direct_only = {GRAPH: "no graph", DIRECT: times(1.0)}
    rows = {
        bench_attention.OURS: graph_row(10.0), "torch cudnn": graph_row(20.0),
        "torch flash": direct_only, "rope_attention one copy": graph_row(11.0),
        "rope_attention": {"error": "missing"},
    }  # fmt: skip
    ours = bench_attention.OURS
    assert bench_attention.verdict({"s": {"rows": rows}}) == {
        f"s: {ours} over torch cudnn": 0.5, f"s: rope_attention one copy over {ours}": 1.1,
    }  # fmt: skip
    rows[ours] = {"error": "out of memory"}
    assert bench_attention.verdict({"s": {"rows": rows}}) == {}


def test_a_table_puts_the_fastest_first_and_reasons_last():
    rows = {
        "broken": {"error": "OutOfMemoryError: too much [of it]"},
        "slow": {**graph_row(30.0), "max error": 0.0005}, "fast": graph_row(20.0),
    }  # fmt: skip
    out = io.StringIO()
    Console(file=out, width=200).print(bench.table("1x8x512x64", rows))
    text = out.getvalue()
    assert text.index("fast") < text.index("slow") < text.index("broken")
    assert "20.00 (19.90 to 20.10)" in text
    assert "5.00e-04" in text
    assert "OutOfMemoryError: too much [of it]" in text


def test_a_result_is_shown_and_the_sweep_with_it(capsys):
    here = {"rows": {"torch math": graph_row(2.0)}, "sweep": {"64x64": {"error": "no room"}}}
    bench_attention.show(
        {"shapes": {"1x8": here}, "method": {"repeats": 25}, "ratios": {"a over b": 0.5}}
    )
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("torch math", "no room", "repeats: 25", "b: 0.500"))


def test_ropes_promises_are_ratios_of_its_table():
    rows = {
        "copy": {"us": times(80.0)}, "triton in place": {"us": times(84.0)},
        "liger": {"us": times(168.0)},
    }  # fmt: skip
    ratios = bench_rope.verdict({"prefill": rows, "decode": rows})
    assert ratios["prefill: share of the copy's bandwidth"] == 80 / 84
    assert ratios["decode: time over Liger's"] == 0.5


def test_tiles_are_few_and_plausible():
    for head_dim, tiles in bench_contenders.TILES.items():
        assert len(set(tiles)) == len(tiles) <= 12, head_dim
        assert all(m // warps >= 16 for m, _, warps, _ in tiles)


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
@pytest.mark.parametrize("operation", bench.OPERATIONS)
def test_without_a_gpu_it_says_so(operation, capsys):
    assert main(["bench", operation]) == 4
    assert "no CUDA device" in capsys.readouterr().err
