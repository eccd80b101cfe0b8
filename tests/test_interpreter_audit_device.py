"""The record of a device: what it says of the interpreter, and that wrong devices are noticed."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from tightrope import audit_device, audit_device_division, audit_device_scan, audit_exact
from tightrope.formats import FORMATS


@pytest.fixture(scope="module")
def record():
    return audit_device.measure()


def by_name(record, name):
    return record["records"][name]


def test_every_probe_leaves_a_record_without_an_error(record):
    assert record["not_run"] == []
    assert set(record["records"]) == set(audit_device.probes())
    assert not [r for rs in record["records"].values() for r in rs if "error" in r]


def test_samples_are_said_to_be_samples(record):
    whole = [r for rs in record["records"].values() for r in rs if r.get("exhaustive")]
    assert whole == []
    assert by_name(record, "exp2")[0]["arguments"] == 512 * audit_device_scan.SAMPLE


def test_correctly_rounded_functions_are_found_to_be(record):
    for name in ("exp2", "log2", "sin", "cos", "log", "sqrt", "rsqrt"):
        found = by_name(record, name)[0]
        assert found["not_nearest"] == found["undecided"] == 0
        assert 0.4 < found["worst_ulps"] <= 0.5


def test_exp_by_a_product_and_exp2_loses_tens_of_ulps(record):
    found = by_name(record, "exp")[0]
    assert 30 < found["worst_ulps"] < 64
    assert found["worst_ulps"] <= found["none_above_ulps"] < found["worst_ulps"] + 1e-5
    x = float.fromhex(found["worst_at"])
    y = float(audit_device_scan.apply("exp", torch.full((1024,), x))[0][0])
    assert found["worst_ulps"] == audit_exact.ulps("exp", x, y)


def test_results_that_are_flushed_are_counted(record):
    found = by_name(record, "exp2")[0]
    assert found["tiny_results_that_are_0"] == found["tiny_results"] > 0
    assert 2.0**-150 < float.fromhex(found["largest_that_became_0"]) < 2.0**-126


def test_casts_divisions_and_dots_agree_with_their_models(record):
    for name in ("cast to bfloat16", "cast to float16", "dots"):
        assert all(r["mismatches"] == 0 for r in by_name(record, name))
    for r in by_name(record, "div_rn"):
        assert r["not_nearest"] == 0
        assert 0.49 < r["worst_ulps"] <= 0.5


def off_at(argument, by):
    """A device whose results are `by` ulps off, for one argument."""
    right = audit_device_scan.apply

    def apply(name, x, dtype=torch.float32):
        y, launched = right(name, x, dtype)
        hit = x == argument
        bits = y.view(torch.int32 if dtype == torch.float32 else torch.int16)
        return torch.where(hit, (bits + by).view(dtype), y), launched

    return apply


@pytest.mark.parametrize("name", ["exp2", "sin", "softplus", "sqrt"])
def test_one_wrong_result_is_found_and_where(monkeypatch, name):
    argument = float(np.float32(1 + 2.0**-23))
    before = audit_device_scan.scan(name)
    monkeypatch.setattr(audit_device_scan, "apply", off_at(argument, 4))
    found = audit_device_scan.scan(name)
    assert found["not_nearest"] - before["not_nearest"] in (0, 1)
    assert found["worst_ulps"] > 3
    assert float.fromhex(found["worst_at"]) == argument


def test_one_wrong_cast_is_found_and_where(monkeypatch):
    monkeypatch.setattr(audit_device_scan, "apply", off_at(1 + 2.0**-23, 1))
    found = audit_device_scan.cast("bfloat16")
    assert found["mismatches"] == 1
    assert float.fromhex(found["first_mismatch"]) == 1 + 2.0**-23


def test_a_wrong_quotient_is_found(monkeypatch):
    right = audit_device_division.binary_kernel

    class Wrong:
        def __getitem__(self, grid):
            def launch(x, w, y, name, block):
                right[grid](x, w, y, name, block)
                y.copy_(torch.where((w == 1.5) & (x == 1.25), y * (1 + 2.0**-22), y))

            return launch

    monkeypatch.setattr(audit_device_division, "binary_kernel", Wrong())
    found = next(audit_device_division.divisions("div_rn"))
    assert found["not_nearest"] == 2  # as a significand over a partner and as a partner over one
    assert [float.fromhex(v) for v in found["worst_at"]] == [1.25, 1.5]


def test_what_float64_leaves_open_is_settled_exactly():
    """Two results a float64 cannot judge where its error is taken to be as wide as an ulp."""
    x = torch.tensor([[0.5, 0.25, 1.5, 2.5]])
    right = torch.tensor([[audit_exact.nearest("exp", v) for v in x[0].tolist()]])
    tally = audit_device_scan.Tally("exp")
    e = torch.exp(x.double())
    tally.see(x, right, e, e * 2.0**-24)
    assert tally.counts["undecided"] > 0
    assert tally.settle() == 0
    wrong = audit_device_scan.Tally("exp")
    wrong.see(x, torch.nextafter(right, torch.tensor(9.0)), e, e * 2.0**-23)
    wrong.settle()
    assert wrong.counts["not_nearest"] == 4
    assert wrong.counts["undecided"] == 0


def test_all_significands_of_a_binade_are_arguments(monkeypatch):
    monkeypatch.setattr(audit_device_scan, "ROWS", 1)
    places = audit_device_scan.arguments(None)
    first, x = next(places)
    assert (first, x.shape) == (0, (1, 1 << 23))
    assert np.array_equal(x.view(torch.int32)[0].numpy(), np.arange(1 << 23))


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_rounding_in_torch_is_that_of_the_formats(name):
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 20000, dtype=np.uint64).astype(np.uint32)
    ties = (np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)) | np.uint32(0x8000)
    x = np.concatenate([bits, ties]).view(np.float32)
    x = x[~np.isnan(x)].astype(np.float64)
    ours = audit_device_scan.rounded(torch.from_numpy(x), name).numpy()
    assert np.array_equal(ours, FORMATS[name].round(x))


def test_a_record_is_built_over_several_runs_and_keeps_its_id(tmp_path):
    first = audit_device.measure(["log2"])
    both = audit_device.measure(["sqrt"], earlier=first)
    at_once = audit_device.measure(["log2", "sqrt"])
    assert set(both["records"]) == {"log2", "sqrt"}
    assert both["id"] == at_once["id"] != first["id"]
    file = tmp_path / "record.json"
    file.write_text(json.dumps(both))
    assert audit_device.read(str(file))["id"] == both["id"]


def test_records_of_other_devices_and_changed_ones_are_refused(tmp_path):
    found = audit_device.measure(["log2"])
    other = {**found, "packages": {**found["packages"], "triton": "0.0"}}
    with pytest.raises(ValueError, match="a record is of one device"):
        audit_device.measure(["sqrt"], earlier=other)
    found["records"]["log2"][0]["worst_ulps"] = 0.5
    (tmp_path / "changed.json").write_text(json.dumps(found))
    with pytest.raises(ValueError, match="expected the id"):
        audit_device.read(str(tmp_path / "changed.json"))
    (tmp_path / "none.json").write_text("[]")
    with pytest.raises(ValueError, match="no record"):
        audit_device.read(str(tmp_path / "none.json"))


def test_a_run_out_of_time_says_what_it_left_and_keeps_the_rest():
    kept = []
    found = audit_device.measure(["log2", "sqrt"], seconds=-1.0, keep=kept.append)
    assert found["not_run"] == ["log2", "sqrt"]
    audit_device.measure(["log2", "sqrt"], keep=lambda r: kept.append(dict(r["records"])))
    assert [list(k) for k in kept] == [["log2"], ["log2", "sqrt"]]


def test_only_what_was_exhaustive_proves_a_constant(record):
    assert audit_device.constants(record) == {}
    all_tried = {
        name: [{**r, "exhaustive": True} for r in by_name(record, name)] for name in ("exp2", "sin")
    }
    found = audit_device.constants({"records": all_tried})
    assert found == {"exp_ulp": by_name(record, "exp2")[0]["none_above_ulps"]}


def test_an_unknown_probe_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"exp2.*got 'exp3'"):
        audit_device.measure(["exp3"])
