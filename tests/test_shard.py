"""Shards run every law once between them, wherever they run and whatever else is collected."""

from __future__ import annotations

import json

import pytest
from test_plugin import adapter, run

from tightrope.report import load, together
from tightrope.shard import inside, shard

KEYS = [f"test_{f}::test_{n}[rope-acme-float{b}]" for f in "abc" for n in range(40) for b in (16, 32)]  # noqa: E501  # fmt: skip


@pytest.mark.parametrize("parts", [1, 2, 3, 8])
def test_every_law_is_in_one_part(parts):
    for key in KEYS:
        assert [inside(key, (i, parts)) for i in range(1, parts + 1)].count(True) == 1
        assert inside(key, None)


def test_parts_are_alike_in_size_and_the_same_on_every_machine():
    sizes = [sum(inside(k, (i, 4)) for k in KEYS) for i in range(1, 5)]
    assert sizes == [49, 61, 68, 62]  # of a digest: as they are here, they are anywhere


@pytest.mark.parametrize("text", ["", "1", "0/2", "3/2", "a/b", "1/0", "-1/2"])
def test_what_is_no_shard_is_refused(text):
    with pytest.raises(ValueError, match=r".*"):
        shard(text)


def test_two_shards_make_the_report_of_one_run(tmp_path):
    adapter(tmp_path)
    words = ("--profile=ci", "--examples=2", "-k", "matches_oracle or memory or rotation")
    for name, more in (("all", ()), ("1", ("--shard=1/2",)), ("2", ("--shard=2/2",))):
        done = run(tmp_path, *words, *more, f"--report={name}.json")
        assert done.returncode == 0, done.stdout
    whole, *parts = (load(tmp_path / f"{name}.json") for name in ("all", "1", "2"))
    assert all(0 < len(p["results"]) < len(whole["results"]) for p in parts)
    assert parts[0]["run"]["shard"] == "1/2"
    merged = together(parts)
    for results in (whole["results"], merged["results"]):
        for r in results.values():
            r.pop("compiles", None)
    assert json.dumps(merged["results"], sort_keys=True) == json.dumps(whole["results"], sort_keys=True)  # noqa: E501  # fmt: skip
    with pytest.raises(ValueError, match="was run by two of the reports"):
        together([whole, parts[0]])
