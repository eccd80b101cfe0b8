"""The command `tightrope audit`: JSON, tables, one page; bad options refused before measuring."""

from __future__ import annotations

import json
import re

import pytest

from tightrope import audit_device, audit_page, audit_tables
from tightrope.audit import keep
from tightrope.audit_pictures import Picture, svg
from tightrope.cli import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("audit")


@pytest.fixture(scope="module")
def files(folder):
    """What `audit` writes of each subject, in a short form where it has one."""
    short = {
        "rope": ["--max-position=3000", "--dtype=bfloat16"],
        "attention": ["--dtype=bfloat16"],
        "pope": ["--max-position=3000", "--dtype=bfloat16"],
        "device": ["--probe=exp2", "--probe=dots"],
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tightrope.audit_attention.SWEEPS", {"seqlen_k": (64, 128)})
        patch.setattr("tightrope.audit_attention.SIZES", (1.0, 512.0, 4096.0))
        patch.setattr("tightrope.audit_rope.DIMS", (16,))
        patch.setattr("tightrope.audit_papers.LENGTHS", (64, 128))
        for subject, options in short.items():
            names = [f"--json={folder / subject}.json", f"--html={folder / subject}.html"]
            assert main(["audit", subject, *options, *names]) == 0
    return folder


SUBJECTS = ("rope", "attention", "pope", "device")


@pytest.mark.parametrize("subject", SUBJECTS)
def test_tables_and_page_are_functions_of_the_json(files, subject, capsys):
    source = files / f"{subject}.json"
    again = files / f"{subject}-again.html"
    assert main(["audit", subject, f"--from={source}", f"--html={again}"]) == 0
    assert again.read_text() == (files / f"{subject}.html").read_text()
    shown = capsys.readouterr().out
    for table in audit_tables.tables(json.loads(source.read_text())):
        assert table.title[:30] in shown


@pytest.mark.parametrize("subject", SUBJECTS)
def test_the_page_needs_no_network_and_says_what_is_searched(files, subject):
    text = (files / f"{subject}.html").read_text()
    assert not re.search(r"(?:src|href)=[\"']?(?:https?:)?//", text)
    assert "<script" not in text
    assert ("searched" in text) or ("sampled" in text)
    assert text.count("data:image/svg+xml") >= (2 if subject != "device" else 4)
    assert "prefers-color-scheme" in text


def test_a_page_of_pictures_has_dark_ones_too(files):
    found = json.loads((files / "rope.json").read_text())
    picture, caption = audit_page.import_module("tightrope.audit_rope_view").pictures(found)[0]
    light, dark = svg(picture, "light"), svg(picture, "dark")
    assert light != dark
    assert "#1a1a1a" in light
    assert "#e8e8e8" in dark
    assert caption


def test_pictures_are_files_of_two_themes(files, tmp_path):
    assert main(["audit", "pope", f"--from={files / 'pope.json'}", f"--pictures={tmp_path}"]) == 0
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == 2
    assert names[0].endswith("-dark.svg")
    assert all(path.read_text().startswith("<?xml") for path in tmp_path.iterdir())


def test_the_same_picture_is_the_same_text():
    picture = Picture("t", "x", "y", {"a": [(1, 1.0), (4, 0.1)]}, {"half": 0.5})
    assert svg(picture, "light") == svg(picture, "light")


def test_only_ways_that_use_the_dtype_are_audited(files):
    found = json.loads((files / "rope.json").read_text())
    assert {r["way"] for r in found["limits"]} == {
        "Hugging Face, bfloat16 table", "bfloat16 throughout", "bfloat16 inv_freq",
        "bfloat16 positions", "bfloat16 angles",
    }  # fmt: skip


def test_a_builder_of_the_user_is_audited(tmp_path, monkeypatch):
    adapter = tmp_path / "own_builder.py"
    adapter.write_text(
        "import torch\n"
        "from tightrope import implements\n\n\n"
        '@implements("rope_table", name="own", rope_theta=(10000.0,))\n'
        "def own(positions, *, rotary_dim, rope_theta, rope_scaling=None, seq_len=None):\n"
        "    e = torch.arange(0, rotary_dim, 2, device=positions.device) / rotary_dim\n"
        "    a = positions.bfloat16().float()[:, None] / rope_theta**e\n"
        "    return a.cos(), a.sin()\n"
    )
    monkeypatch.setattr("tightrope.audit_rope.DIMS", (128,))
    out = tmp_path / "own.json"
    words = ["audit", "rope", f"--impl={adapter}", "--max-position=600", "--dtype=bfloat16"]
    monkeypatch.setattr("tightrope.audit_papers.LENGTHS", (64,))
    assert main([*words, f"--json={out}"]) == 0
    found = json.loads(out.read_text())
    assert [(r["way"], r["table"]["-8"]["limit"]) for r in found["builders"]] == [("own", 256)]
    assert "own" in found["curves"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["rope", "--probe=exp2"], "--probe: expected with device, got rope"),
        (["rope", "--max-position=0"], "--max-position: expected 1 to 2^30, got 0"),
        (["rope", f"--max-position={1 << 27}"], "below 2^26"),
        (["rope", "--dtype=float8"], "unknown dtype 'float8'"),
        (["rope", "--impl=tightrope.impls.attention"], "expected an implementation of rope_table"),
        (["attention", "--dtype=float32"], "expected bfloat16 or float16"),
        (["pope", "--dtype=float64"], "expected one of float32"),
        (["device", "--probe=exp3"], "expected one of exp2"),
        (["rope", "--from=nothing.json"], "nothing.json"),
    ],
)
def test_bad_options_are_refused_with_what_was_expected(words, told, capsys):
    assert main(["audit", *words]) == 4
    assert told in capsys.readouterr().err


def test_what_was_measured_is_shown_even_if_it_cannot_be_written(capsys):
    words = ["audit", "pope", "--max-position=64", "--dtype=float16", "--json=/dev/full"]
    assert main(words) == 4
    found = capsys.readouterr()
    assert "Magnitudes ln(1 + e^x)" in found.out
    assert "No space left" in found.err


def test_a_probe_that_fails_is_named_and_the_next_one_runs(monkeypatch, capsys, tmp_path):
    def broken():
        raise RuntimeError("no such instruction")
        yield

    fine = audit_device.probes()["log2"]
    monkeypatch.setattr(audit_device, "probes", lambda: {"exp2": broken, "log2": fine})
    monkeypatch.setattr("tightrope.audit_device_scan.SAMPLE", 4)
    out = tmp_path / "device.json"
    assert main(["audit", "device", f"--json={out}"]) == 1
    assert "RuntimeError: no such instruction" in capsys.readouterr().out
    records = json.loads(out.read_text())["records"]
    assert "error" in records["exp2"][0]
    assert records["log2"][0]["function"] == "log2"


def test_the_json_of_another_audit_is_refused(files, capsys):
    assert main(["audit", "pope", f"--from={files / 'rope.json'}"]) == 4
    assert "expected an audit of pope, got one of rope" in capsys.readouterr().err


def test_without_matplotlib_a_page_is_refused_before_measuring(monkeypatch, capsys):
    import builtins

    real = builtins.__import__

    def without(name, *rest, **more):
        if name == "matplotlib":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    assert main(["audit", "attention", "--html=x.html"]) == 4
    assert "pip install 'tightrope[bench]'" in capsys.readouterr().err


def test_lists_of_numbers_take_one_line(tmp_path):
    found = {"audit": "x", "pairs": [[1, 2.5], [3, None]], "names": ["a, b", "c\n[d]"], "none": []}
    keep(found, str(tmp_path / "x.json"))
    text = (tmp_path / "x.json").read_text()
    assert json.loads(text) == found
    assert "[1, 2.5]" in text
