"""`tightrope bench gradients`: what runs computes its gradients, what cannot says why."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from bench_result import times

from tightrope import bench_gradients, bench_inputs, bench_rows
from tightrope.bench import Wanted
from tightrope.bench_inputs import Shape, draw
from tightrope.device import prepare

SMALL = Shape(1, 2, 33, 16)
LONGER = Shape(1, 2, 65, 16)


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels run on the interpreter; the clock and memory are made up."""
    if torch.cuda.is_available():
        pytest.skip("kernels are compiled here; the command itself runs them")
    prepare()
    monkeypatch.setattr(bench_gradients, "SHAPES", (SMALL,))
    monkeypatch.setattr(bench_gradients, "LENGTHS", (LONGER,))
    monkeypatch.setattr(bench_inputs, "draw", lambda s, n: draw(s, n, "cpu"))
    monkeypatch.setattr(bench_rows, "memory", lambda c, i: len(c.run(i, 0)) * 2**20)

    def prefill(calls: Any, size: int) -> Any:
        return {n: {"us": times(10.0 + i), "TB/s": 1.0} for i, n in enumerate(calls)}

    monkeypatch.setattr(bench_gradients, "prefill", prefill)


def test_gradients_are_right_and_memory_is_of_one_call() -> None:
    found = bench_gradients.measure(Wanted("gradients"))
    rows = found["shapes"][SMALL.name]["rows"]
    assert list(rows) == [*bench_gradients.OURS, *bench_gradients.BASES, "pope-pytorch"]
    ran = {name: row for name, row in rows.items() if "error" not in row}
    assert {*bench_gradients.OURS} <= set(ran)
    for name, row in ran.items():
        assert row["max error"] < 2**-6, name  # float16: of another position it is above 2^-3
        assert row["extra MiB"] == (4 if "pope" in name else 3)
    assert set(found["memory"][LONGER.name]) == {"dq, dk and dv", *rows}
    names = {name for name in found["ratios"] if name.startswith(SMALL.name)}
    assert len(names) == len(found["ratios"])
    bench_gradients.show(found)


def test_the_error_knows_gradients_of_other_positions() -> None:
    inputs = draw(SMALL, 1, "cpu")
    dout = torch.randn_like(inputs.q[0])
    for name, (contract, position) in bench_gradients.OURS.items():
        grads = bench_gradients.of_ours(contract, inputs, 0, dout)()
        for other in {"none", "pope", "pope with delta"} - {position}:
            assert bench_gradients.error(inputs, other, dout, grads) > 2**-3, name
        spoilt = (grads[0] * torch.nan, *grads[1:])
        assert not bench_gradients.error(inputs, position, dout, spoilt) < 1


def test_what_it_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="no sweep"):
        bench_gradients.measure(Wanted("gradients", sweep=True))
    assert not hasattr(bench_gradients, "draw")  # so that a picture is refused
    with pytest.raises(ValueError, match="no shape starts with '7x'"):
        bench_gradients.measure(Wanted("gradients", only="7x"))
