"""What somebody sees who writes a first adapter and gets things wrong."""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest
import torch
from test_plugin import ADAPTER, adapter, run, tightrope

from tightrope.budget import Budget
from tightrope.device import prepare
from tightrope.device import run as launch
from tightrope.implementation import Implementation, resolve
from tightrope.oracles.rope import CONTRACT, RopeCase
from tightrope.subjects import load, under_test
from tightrope.tables import not_applicable
from tightrope.verdict import judge

LIMITS = {"dtype": ("float32",), "interleaved": (False,), "inplace": (False,)}


def acme(fn, **more):
    limits = {**LIMITS, **more.pop("limits", {})}
    return Implementation(
        contract_name="rope", name="acme", fn=fn, limits=limits, source="acme_adapter.py:7", **more
    )


def right(q, k, cos, sin, positions, *, interleaved):
    return q.clone(), k.clone()


def test_a_file_finds_the_modules_beside_it(tmp_path):
    folder = tmp_path / "kernels"
    folder.mkdir()
    (folder / "beside_the_adapter.py").write_text("SIGN = 1\n")
    text = ADAPTER.replace("EXTRA", "pass").replace(
        "import torch", "from beside_the_adapter import SIGN"
    )
    (folder / "an_adapter.py").write_text(text)
    done = tightrope(
        tmp_path, "run", "--impl=kernels/an_adapter.py", "--examples=2", "--workers=1",
        "-k", "matches_oracle",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_missing_import_is_told_with_its_place_and_where_was_looked(tmp_path):
    path = tmp_path / "importing.py"
    path.write_text("import sys\nimport kernels_of_acme\n")
    with pytest.raises(ImportError) as told:
        load(str(path))
    for part in (
        f"({path}:2)", "No module named 'kernels_of_acme'", "PYTHONPATH", "working directory",
    ):  # fmt: skip
        assert part in str(told.value)
    assert "importing" not in sys.modules


def test_a_failing_import_below_the_adapter_is_told_with_both_places(tmp_path, monkeypatch):
    (tmp_path / "lower_one.py").write_text("\nimport nothing_of_that_name\n")
    (tmp_path / "upper_one.py").write_text("import lower_one\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(ImportError, match=r"upper_one.py:1, \S*lower_one.py:2"):
        load(str(tmp_path / "upper_one.py"))


def test_laws_are_not_imported_from_the_package_in_silence():
    with pytest.raises(ImportError, match=r"from tightrope.properties.test_oracle import \*"):
        exec("from tightrope.properties import *", {})


def test_an_unknown_dtype_lists_the_known_ones(tmp_path):
    adapter(tmp_path)
    done = run(tmp_path, "--dtype=bf16")
    assert done.returncode == 4
    assert "unknown dtype 'bf16'; known: float64, float32, float16, bfloat16" in done.stderr


def test_pytest_too_refuses_an_unknown_dtype():
    from tightrope.options import pytest_addoption

    parser = pytest.Parser(_ispytest=True)
    pytest_addoption(parser)
    with pytest.raises(pytest.UsageError, match="unknown dtype 'half'; known: "):
        parser.parse(["--tightrope-dtype=half"])


def test_a_dtype_that_nothing_supports_names_what_is_supported():
    prepare()
    spec = "tightrope.impls.rope_table"
    with pytest.raises(ValueError, match=r"dtype float16: \S+ \(rope_table\) supports float32"):
        under_test([spec], ["float32", "float16"])
    assert under_test([spec], ["float32"])


def test_what_an_adapter_raises_is_told_from_its_own_frame_on(tmp_path):
    adapter(tmp_path, extra="if q.shape[0] > 1: raise KeyError('a block size')")
    done = run(tmp_path, "-k", "matches_oracle")
    assert done.returncode == 1
    story = done.stdout[done.stdout.index("test_matches_oracle does not hold") :]
    story = story[: story.index("replay:")]
    assert "case = RopeCase(tokens=2" in story
    assert story.count("KeyError: 'a block size'") == 1
    assert re.findall(r'File "(?:.*/)?(.*?)", line', story) == ["acme_adapter.py"]
    assert len(story.splitlines()) < 15
    assert done.stdout.count("Traceback") == 1


def test_a_keyword_that_an_adapter_lacks_is_told_with_the_limit_that_avoids_it(tmp_path):
    adapter(tmp_path)
    path = tmp_path / "acme_adapter.py"
    path.write_text(path.read_text().replace("inplace=(False,),", "inplace=(True,),"))
    done = run(tmp_path, "-k", "matches_oracle")
    assert done.returncode == 1
    assert "unexpected keyword argument 'inplace'" in done.stdout
    assert "declare inplace=(False,) in @implements, or accept the keyword 'inplace'" in done.stdout
    assert "Traceback" not in done.stdout
    assert re.search(r"acme_adapter.py:\d+: called as rope\(q, k, cos", done.stdout)


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda q, k, cos, sin, positions, *, interleaved, scale: 0, "missing a required.*'scale'"),
        (lambda q, k, cos, sin: 0, "too many positional arguments"),
        (lambda q, k, cos, sin, positions, more, *, interleaved: 0, "missing a required.*'more'"),
        (lambda q, k, cos, sin, interleaved: 0, "multiple values for argument 'interleaved'"),
    ],
)
def test_a_function_that_cannot_be_called_is_found_before_the_run(fn, message):
    with pytest.raises(ValueError, match=rf"acme_adapter.py:7: implementation 'acme': .*{message}"):
        resolve(acme(fn))


@pytest.mark.parametrize(
    "fn", [right, lambda *tensors, **options: 0, lambda q, k, cos, sin, positions, *rest: 0]
)
def test_a_function_that_can_be_called_is_left_alone(fn):
    assert resolve(acme(fn)).fn is fn


@pytest.mark.parametrize(
    ("contract", "stage", "message"),
    [
        ("rope", {"product": "f32"}, "product='f32'"),
        ("rope", {"contraction": "fma"}, "'none' or 'any', not 'fma'"),
        ("rope_table", {"inv_freq": "double"}, "inv_freq='double'"),
    ],
)
def test_wrong_values_of_an_arithmetic_are_found_before_the_run(contract, stage, message):
    from tightrope import Arithmetic

    impl = Implementation(
        contract_name=contract, name="acme", fn=lambda *a, **k: 0, limits={"dtype": ("float32",)},
        arithmetic=Arithmetic(**stage), source="acme_adapter.py:7",
    )  # fmt: skip
    with pytest.raises(ValueError, match=rf"acme_adapter.py:7: implementation 'acme': .*{message}"):
        resolve(impl)


def test_an_error_where_none_is_allowed_is_told_in_ulps():
    budget = Budget(np.array([1.0, 2.0]), {}, "float32")
    told = judge("q", np.array([1.0, 2.0 + 3 * 2.0**-22], np.float32), budget).message
    assert "q[1] = 2" in told
    assert "is exact here: only 2 is right, the output is off by 3 ulp of float32" in told
    assert "inf" not in told
    lost = np.array([1.0, np.nan], np.float32)
    assert "only 2 is right\n" in judge("q", lost, budget).message
    wide = Budget(budget.expected, {"a term": 0.5}, "float32")
    assert "not a number, outside the budget of 5.000e-01" in judge("q", lost, wide).message


def test_a_scalar_has_no_index():
    told = judge("score", np.array(2.0, np.float32), Budget(np.array(1.0), {"t": 0.5}, "float32"))
    assert told.message.startswith("score = 2 (float32)")


def test_the_first_unwritten_element_is_named():
    def half(q, k, cos, sin, positions, *, interleaved):
        out = torch.empty_like(q)
        out[..., : q.shape[-1] // 2] = 0
        return out, k.clone()

    prepare()
    case = RopeCase(tokens=2, num_heads=3, head_dim=16)
    with pytest.raises(AssertionError, match=r"48 of 96 elements of q .* first is q\[0, 0, 8\]"):
        launch(acme(half), case, CONTRACT.inputs(case))


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda q: q.clone(), "returned one tensor, expected 2: q, k"),
        (lambda q: (q.clone(),) * 3, "returned 3 tensors, expected 2: q, k"),
        (lambda q: (q.clone(), None), r"returned \(Tensor, None\), expected 2: q, k"),
        (lambda q: None, "returned None, expected 2: q, k"),
    ],
)
def test_what_is_returned_is_counted(returned, message):
    prepare()
    fn = lambda q, k, cos, sin, positions, *, interleaved: returned(q)  # noqa: E731
    with pytest.raises(AssertionError, match=message):
        launch(acme(fn), RopeCase(), CONTRACT.inputs(RopeCase()))


def test_the_list_gives_places_that_can_be_copied(tmp_path):
    adapter(tmp_path)
    done = tightrope(tmp_path, "list", "--impl=acme_adapter", COLUMNS="60")
    assert re.search(r"^acme: acme_adapter.py:\d+$", done.stdout, re.MULTILINE)


def test_help_explains_what_a_newcomer_needs(tmp_path):
    text = " ".join(tightrope(tmp_path, "run", "--help").stdout.split())
    for part in ("MODULE (", "FILE.py (", "MODULE:NAME", "--dtype DTYPE only", "nightly 2000",
                 "pytest go behind `--`"):  # fmt: skip
        assert part in text, part


def test_laws_that_do_not_apply_are_named():
    ran = {"law": "test_b", "contract": "rope", "implementation": "[x] a-b", "outcome": "passed"}
    results = {
        "test_x::test_in_place[rope-[x] a-b-float32]": {"outcome": "not applicable"},
        "test_x::test_b[rope-[x] a-b-float16]": {"outcome": "not applicable"},
        "test_x::test_b[rope-[x] a-b-float32]": ran,
    }
    assert not_applicable(results) == ["rope: not applicable to [x] a-b: in place, b (float16)"]
