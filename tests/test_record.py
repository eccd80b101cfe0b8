"""A device's record as the source of constants: where it counts, where it is refused or told."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_plugin import tightrope

from tightrope import audit_device, plugin, record
from tightrope.arithmetic import EXP2, LOG2, SIN_COS, Arithmetic, Device, Ulps
from tightrope.baseline import compare
from tightrope.compare import part
from tightrope.contract import contract
from tightrope.device import current
from tightrope.environment import installed
from tightrope.frozen import freeze
from tightrope.implementation import Implementation, bundled
from tightrope.law import check
from tightrope.report import terms_text, together
from tightrope.session import State

H200 = Path(__file__).parents[1] / "docs/measurements/2026-11-30-h200-audit-device.json"
PROVED = {"exp2": 1.75, "log2": 0.75, "sin": 0.5, "cos": 0.625}


def proved(ulps, **more):
    return [{"exhaustive": True, "reference_proved": True, "none_above_ulps": ulps} | more]


def here():
    device = current()
    capability = {"capability": ".".join(map(str, device.capability))} if device.capability else {}
    return {"name": device.name, **capability}


def written(folder, device=None, packages=None, **records):
    """A record as the audit writes it, of this device unless said."""
    found = {
        "audit": "device", "device": here() | (device or {}),
        "packages": {n: installed(n) for n in ("torch", "triton")} | (packages or {}),
        "records": {n: proved(u) for n, u in PROVED.items()} | records,
    }  # fmt: skip
    found["id"] = audit_device.identity(found)
    path = folder / f"{found['id']}.json"
    path.write_text(json.dumps(found))
    return str(path)


@pytest.fixture
def in_use(tmp_path):
    """Puts records in use here; afterwards there is none."""

    def begin(**records):
        found = record.read(written(tmp_path, **records))
        record.use(found, current())
        return found

    yield begin
    record.use(None, current())


SIZES = {"attention": {"seqlen_q": 8, "seqlen_k": 8}, "merge_attention": {"splits": 3}}


def budgets(of="attention"):
    impl, spec = bundled(of, "triton"), contract(of)
    case = spec.case(**SIZES[of])
    return impl.budgets(case, spec.inputs(case), current())


@pytest.mark.parametrize("of", SIZES)
def test_budgets_are_made_of_the_record_and_say_so(in_use, of):
    before, used, after = budgets(of), in_use(), budgets(of)
    for name, budget in after.items():
        was = before[name].terms
        assert all((terms <= was[term]).all() for term, terms in budget.terms.items())
        assert (budget.bound < before[name].bound).all()
        made = [budget, budget.without("sum"), budget.scaled("sum", 2.0), part(budget, ...)]
        assert {b.record for b in [*made, budget.reshape((-1,))]} == {used.id}
        assert before[name].record == ""


def test_a_failure_prints_whose_constants_it_had(in_use):
    used = in_use()
    budget = budgets()["out"]
    wrong = budget.format.round(budget.expected + 1.0).astype(budget.format.dtype)
    with pytest.raises(AssertionError, match=f"constants of record {used.id}"):
        check("out", wrong, budget)


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        ({"exp_ulp": EXP2, "log_ulp": LOG2}, {"exp_ulp": 1.75, "log_ulp": 0.75}),
        ({"trig_ulp": SIN_COS}, {"trig_ulp": 0.625}),  # the worse of the two
        ({"exp_ulp": 2.5, "log_ulp": 1.5}, {}),  # whose they are is not said: libm's, float64's
        ({"division_ulp": Ulps(2.5, "x / w")}, {}),  # only searched
        ({"exp_ulp": Ulps(2.5, "exp")}, {}),  # another function than the stage's
        ({"exp_ulp": Ulps(1.5, "exp2")}, {}),  # better than what is recorded
    ],
)
def test_only_named_constants_are_replaced_by_smaller_ones(in_use, stages, expected):
    used, given = in_use(), Arithmetic(**stages)
    assert (found := record.over(given, current())) == {**given, **expected}
    assert record.used(found) == (used.id if expected else "")
    assert record.over(given, Device("cuda", "another")) is given


def test_a_stranger_keeps_what_it_is_granted(in_use):
    in_use()
    spec = contract("attention")
    impl = Implementation(contract_name="attention", name="stranger", fn=print)
    assert dict(impl.promise(spec.case(), current())) == dict(spec.stages)


@pytest.mark.parametrize(
    "records",
    [{"exp2": proved(1.75, exhaustive=False)}, {"exp2": proved(1.75, reference_proved=False)}],
)
def test_what_is_not_proved_replaces_nothing(in_use, records):
    in_use(**records, log2=[])
    assert budgets()["out"].record == ""


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"device": {"name": "another"}}, "name: expected 'another' as in the record"),
        ({"device": {"capability": "0.1"}}, "capability: expected '0.1'"),
        ({"packages": {"triton": "0.1"}}, "triton: expected '0.1'"),
        ({"packages": {"torch": "0.1"}}, "torch: expected '0.1'"),
    ],
)
def test_a_record_of_another_device_is_refused_and_none_used(tmp_path, in_use, changed, message):
    in_use()
    other = record.read(written(tmp_path, **changed))
    with pytest.raises(ValueError, match=message):
        record.use(other, current())
    assert budgets()["out"].record == ""


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda r: r.update(id="0" * 12), "expected the id"),
        (lambda r: r["records"]["exp2"][0].update(none_above_ulps=0.6), "expected the id"),
        (lambda r: r.pop("records"), "is no record of a device"),
    ],
)
def test_what_is_no_record_is_refused(tmp_path, edit, message):
    path = Path(written(tmp_path))
    edit(found := json.loads(path.read_text()))
    path.write_text(json.dumps(found))
    with pytest.raises(ValueError, match=message):
        record.read(str(path))
    with pytest.raises(ValueError, match="expected ulps of at least"):
        record.read(written(tmp_path, exp2=proved(0.25)))


def test_the_record_that_is_kept_can_be_used():
    """What the measurements of an H200 hold replaces all three constants."""
    kept = record.read(str(H200))
    for stage, named in (("exp_ulp", EXP2), ("log_ulp", LOG2), ("trig_ulp", SIN_COS)):
        assert 0.5 <= kept.replaced(stage, named) < named


def test_runs_under_different_records_are_not_compared():
    runs = [{"run": r, "results": {}} for r in ({}, {"record": "a" * 12}, {"record": "b" * 12})]
    for was in runs:
        for now in runs:
            found = [(c.what, c.worse) for c in compare(was, now, 2.0)]
            assert found == ([] if was is now else [("other record", True)])
    with pytest.raises(ValueError, match="under one record"):
        together(runs[1:])


ADAPTER = """
import torch
from tightrope import Arithmetic, implements
from tightrope.arithmetic import SIN_COS

@implements("rope_table", name="acme", rope_scaling=("default",), axes=("one",),
            arithmetic=Arithmetic(position="exact", inv_freq="float64", inv_freq_ulp=4,
                                  angle="float64", trig_ulp=SIN_COS))
def acme(positions, *, rotary_dim, rope_theta):
    c = torch.arange(rotary_dim // 2, dtype=torch.float64, device=positions.device)
    angle = positions.double()[:, None] * rope_theta ** (-2 * c / rotary_dim)
    # One ulp off: what SIN_COS allows, and no function within 0.625 ulp does
    right = [f(angle).float() for f in (torch.cos, torch.sin)]
    return tuple(torch.where(angle == 0, r, r.nextafter(torch.zeros_like(r))) for r in right)
"""


def run(folder, *words):
    verb = ("run", "--impl=acme_adapter", "--examples=5", "-k=matches_oracle")
    where = current().kind
    return tightrope(folder, *verb, "--workers=0", *words, TIGHTROPE_DEVICE=where)


def test_a_run_under_a_record(tmp_path):
    """Its id is in header, failure and report; the same run without it is as ever."""
    (tmp_path / "acme_adapter.py").write_text(ADAPTER)
    path = written(tmp_path)
    name = record.read(path).id
    plain = run(tmp_path, "--report=plain.json")
    assert plain.returncode == 0, plain.stdout
    report = json.loads((tmp_path / "plain.json").read_text())
    assert "record" not in report["run"]
    assert {r.get("record") for r in report["results"].values()} == {None}
    tight = run(tmp_path, f"--record={path}", "--report=tight.json", "--", "-v")
    assert tight.returncode == 1, tight.stdout
    assert f"tightrope: record {name} of {current().name}: exp_ulp 1.75" in tight.stdout
    assert f"  constants of record {name}\n" in tight.stdout
    report = json.loads((tmp_path / "tight.json").read_text())
    assert report["run"]["record"] == name
    assert [r["record"] for r in report["results"].values() if "record" in r] == [name]
    told = terms_text({"sum": 1.0}, name).splitlines()
    assert told == ["  1.000e+00  sum", f"  constants of record {name}"]


def test_a_record_of_another_device_is_wrong_usage(tmp_path):
    (tmp_path / "acme_adapter.py").write_text(ADAPTER)
    done = run(tmp_path, f"--record={written(tmp_path, {'name': 'another'})}")
    assert done.returncode == 4, done.stdout
    assert "name: expected 'another' as in the record" in done.stdout + done.stderr


@pytest.mark.parametrize(("was", "now"), [("a", None), (None, "b"), ("a", "b")])
def test_a_baseline_under_another_record_is_wrong_usage(was, now):
    run = {"base": {"run": {"record": was}}, "record": now and SimpleNamespace(id=now)}
    with pytest.raises(pytest.UsageError, match=f"expected {was or 'none'} as in the baseline"):
        State._prove_comparable(SimpleNamespace(**run))
    run["base"]["run"]["record"] = now
    State._prove_comparable(SimpleNamespace(**run))


def test_a_failure_is_replayed_under_its_record_alone():
    spec = contract("rope_table")
    impl = Implementation(contract_name=spec.name, name="acme", fn=print)
    function, spec_of = SimpleNamespace(tightrope_law=SimpleNamespace(drawn={})), {"impl": impl}
    item = SimpleNamespace(function=function, callspec=SimpleNamespace(params=spec_of))
    failed = {"a": {"record": "a" * 12, "failure": {"drawn": {"case": freeze(spec.case())}}}}
    for other in (None, SimpleNamespace(id="b" * 12)):
        with pytest.raises(pytest.UsageError, match="judged under record aaaaaaaaaaaa"):
            plugin._check_recorded(failed, {"a": item}, other)
    plugin._check_recorded(failed, {"a": item}, SimpleNamespace(id="a" * 12))
