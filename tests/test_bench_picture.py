"""The picture of `tightrope bench`: which shapes it joins, and what it draws of them."""

from __future__ import annotations

import pytest
from bench_result import result

pytest.importorskip("matplotlib", reason="the extra 'bench' brings it")
from matplotlib.figure import Figure

from tightrope import bench_picture


def test_a_series_differs_in_length_alone_and_is_sorted():
    assert bench_picture.longest_series(result()) == ["1x8x512x64", "1x8x1024x64"]
    assert bench_picture.longest_series({"shapes": {}}) == []


def test_runtime_and_memory_are_drawn_on_logarithmic_axes():
    figure = Figure()
    bench_picture.against_length(result(), figure)
    runtime, memory = figure.axes
    for axes in figure.axes:
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    drawn = {line.get_label(): line for line in runtime.lines}
    assert set(drawn) == {"flash", "simple_pope", "torch math", "torch cudnn"}
    assert list(drawn["flash"].get_xdata()) == [512, 1024]
    assert list(drawn["flash"].get_ydata()) == [18.0, 12.0]
    assert "pope-pytorch" in {line.get_label() for line in memory.lines}
    looks = {(line.get_color(), line.get_marker()) for line in runtime.lines}
    assert len(looks) == len(drawn)


def test_ratios_are_drawn_but_for_the_yardsticks_own():
    figure = Figure()
    bench_picture.over_yardstick(result(), figure)
    (axes,) = figure.axes
    marks = {line.get_label(): line for line in axes.lines if line.get_marker() != "None"}
    assert set(marks) == {"flash", "simple_pope", "torch math"}
    assert list(marks["torch math"].get_xdata()) == [8.0, 8.0]
    assert list(marks["torch math"].get_ydata()) == [0, 1]
    assert [t.get_text() for t in axes.get_yticklabels()] == list(result()["shapes"])


@pytest.mark.parametrize("suffix", bench_picture.SUFFIXES)
def test_a_file_is_written(suffix, tmp_path):
    path = tmp_path / f"picture{suffix}"
    bench_picture.save(result(), str(path))
    assert path.stat().st_size > 1000


def test_another_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"--picture: expected a name that ends in \.png"):
        bench_picture.save(result(), str(tmp_path / "picture.txt"))
