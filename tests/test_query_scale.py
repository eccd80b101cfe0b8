"""query_scale: three oracles against each other, its cases, bad input, wrong temperatures."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from test_plugin import tightrope
from test_wrong_kernels import rejected, run

from tightrope.arithmetic import Arithmetic
from tightrope.device import current
from tightrope.diagnosis import diagnose
from tightrope.oracles import query_scale_mpmath
from tightrope.oracles.query_scale import CONTRACT, HUGE, KINDS, QueryScaleCase

HOME = current().kind
WRONG = Path(__file__).with_name("wrong_query_scale.py")

from tightrope.impls.query_scale import query_scale  # noqa: E402  (Triton after `current`)

QUIET = settings(
    max_examples=300, derandomize=True, database=None, deadline=None,
    suppress_health_check=list(HealthCheck), phases=[Phase.generate],
)  # fmt: skip
EVERYTHING = CONTRACT.limits({"positions": (*KINDS, HUGE)})
EXACT = Arithmetic(position="exact", quotient="exact", log="float64").over(CONTRACT.stages)
HERE = Path(__file__).parent


@given(case=CONTRACT.cases(EVERYTHING))
@QUIET
def test_three_layers_agree(case: QueryScaleCase) -> None:
    inputs = CONTRACT.inputs(case)
    budget = CONTRACT.budget(case, inputs, EXACT)["scale"]
    exact = CONTRACT.exact(case, inputs, "scale", range(case.tokens))
    second = query_scale_mpmath.scale(
        inputs["positions"].tolist(), case.attn_scale, case.floor_scale, case.shift
    )
    plain = CONTRACT.oracle(case, inputs)["scale"]
    for i, (a, b) in enumerate(zip(exact, second, strict=True)):
        assert abs(a - b) <= b / 2**99
        assert abs(Fraction(float(budget.expected[i])) - b) <= Fraction(float(budget.oracle[i]))
        assert abs(Fraction(float(plain[i])) - b) <= b / 2**49


def test_the_models_own_values() -> None:
    """Llama 4's first step begins at position 8191, Ministral 3's at 8192; 1 + 0.1 ln 2."""
    positions = torch.tensor([0, 8190, 8191, 8192, 2**63 - 1], device=HOME)
    usual = {"attn_scale": 0.1, "floor_scale": 8192}
    second, last = (np.float32(1 + 0.1 * np.log(n)) for n in (2.0, 2.0**50 + 1))
    llama = query_scale(positions, **usual, shift=1).tolist()
    assert llama == [1.0, 1.0, second, second, last]
    assert query_scale(positions, **usual, shift=0).tolist()[:4] == [1.0, 1.0, 1.0, second]


@given(case=CONTRACT.cases(EVERYTHING))
@QUIET
def test_cases_are_what_they_say(case: QueryScaleCase) -> None:
    positions = CONTRACT.inputs(case)["positions"]
    assert positions.shape == (case.tokens,)
    assert positions.dtype.name == case.position_dtype
    assert CONTRACT.from_json(CONTRACT.to_json(case)) == case
    if case.tokens:
        assert positions.min() >= 0
        assert (positions.max() >= 2**24 - 1) == (case.positions == HUGE)


def test_cases_show_a_temperature_and_where_it_steps() -> None:
    seen: Counter[str] = Counter()

    @given(case=CONTRACT.cases(CONTRACT.limits({})))
    @QUIET
    def draw(case: QueryScaleCase) -> None:
        if case.tokens:
            inputs = CONTRACT.inputs(case)
            stranger = Arithmetic().over(CONTRACT.stages)
            budget = CONTRACT.budget(case, inputs, stranger)["scale"]
            useless = CONTRACT.nulls(case, inputs)["no temperature"]["scale"]
            late = dict(CONTRACT.alternatives(case, inputs))["every step one position late"]
            seen.update(all=1, told=not budget.accepts(useless))
            seen.update(steps=not budget.accepts(late["scale"]))

    draw()
    assert seen["told"] == seen["all"]
    assert seen["steps"] > seen["all"] / 3


CASE = QueryScaleCase(tokens=64, positions="steps", floor_scale=100, seed=3)


@pytest.mark.parametrize("sentence", dict(CONTRACT.alternatives(CASE, CONTRACT.inputs(CASE))))
def test_every_known_mistake_is_rejected_and_named(sentence: str) -> None:
    mistakes = dict(CONTRACT.alternatives(CASE, CONTRACT.inputs(CASE)))
    budgets = CONTRACT.budget(CASE, CONTRACT.inputs(CASE), EXACT)
    assert not budgets["scale"].accepts(mistakes[sentence]["scale"])
    assert sentence in diagnose(mistakes.items(), mistakes[sentence], budgets)


@pytest.mark.parametrize(
    ("changes", "error", "argument"),
    [
        ({"positions": torch.zeros(3)}, TypeError, "positions.dtype"),
        ({"positions": torch.zeros(3, 2, dtype=torch.int64)}, ValueError, "positions.shape"),
        ({"positions": torch.tensor([3, -1])}, ValueError, "positions"),
        ({"attn_scale": 0.0}, ValueError, "attn_scale"),
        ({"attn_scale": float("nan")}, ValueError, "attn_scale"),
        ({"attn_scale": "0.1"}, TypeError, "attn_scale"),
        ({"floor_scale": 0}, ValueError, "floor_scale"),
        ({"floor_scale": 8192.0}, TypeError, "floor_scale"),
        ({"shift": -1}, ValueError, "shift"),
        ({"shift": True}, TypeError, "shift"),
    ],
)
def test_bad_input_is_refused(changes: dict, error: type[Exception], argument: str) -> None:
    usual = {"positions": torch.arange(3), "attn_scale": 0.1, "floor_scale": 8192, "shift": 1}
    with pytest.raises(error, match=rf"^{re.escape(argument)}: expected .+, got .+"):
        query_scale(**{**usual, **changes})


def test_every_wrong_temperature_is_rejected_and_right_ones_are_not(tmp_path: Path) -> None:
    laws = "matches_oracle or test_query_scale"
    words = ("--profile=ci", "--examples=30", "--no-shrink", "-k", laws)
    results = run(tmp_path, *words, module="wrong_query_scale.py")
    told = [r for r in results.values() if r.get("outcome") in ("passed", "failed")]
    found = {(r["implementation"], r["law"]) for r in told if rejected(r)}
    names = {r["implementation"] for r in told}
    assert len(names) == 9
    assert {name for name, _ in found} == {n for n in names if not n.startswith("right")}
    laws = {r["law"] for key, r in results.items() if key.startswith("test_query_scale::")}
    assert {law for _, law in found} >= laws
    assert len(laws) == 5


@pytest.mark.parametrize(("name", "status"), [("right_float32", 0), ("floor_left_out", 1)])
def test_a_step_that_float32_rounds_into_the_next_is_not_asked_for(
    tmp_path: Path, name: str, status: int
) -> None:
    """33000098 / 1000003 is 32.999999, in float32 33; of steps below 2^24 all is asked for."""
    start = 32_500_000 if status == 0 else 2_500_000
    case = QueryScaleCase(floor_scale=1_000_003, shift=0, positions="long", start=start)
    law = "test_query_scale::test_a_step_lasts_floor_scale_positions"
    key = f"{law}[query_scale-{name}-float32]"
    failure = {
        "kind": "Violation",
        "message": "",
        "detail": {},
        "drawn": {"case": {"case": asdict(case)}},
    }
    told = {
        "key": key, "home": "properties.test_query_scale", "law": law.partition("::")[2],
        "contract": "query_scale", "implementation": name, "dtype": "float32", "cases": 1,
        "module": str(WRONG), "source": f"{WRONG}:1", "outcome": "failed", "failure": failure,
    }  # fmt: skip
    (tmp_path / "r.json").write_text(json.dumps({"schema": 1, "results": {key: told}}))
    done = tightrope(tmp_path, "replay", "r.json", f"--impl={WRONG}:{name}")
    assert done.returncode == status, done.stdout + done.stderr
