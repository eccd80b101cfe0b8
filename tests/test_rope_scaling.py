"""Scaled frequencies: mappings that are read and refused, three oracles against each other."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tightrope.oracles import rope_scaling, rope_scaling_exact, rope_scaling_mpmath
from tightrope.oracles.rope_table import CONTRACT, HUGE, KINDS, RopeTableCase, oracle_error
from tightrope.oracles.rope_table_exact import fraction
from tightrope.oracles.rope_table_mpmath import fraction as of_mpf
from tightrope.oracles.rope_table_scaling import VARIANTS, mapping, scaling_of
from tightrope.rope_scaling import read
from tightrope.rope_scaling_keys import TYPES

QUIET = settings(
    max_examples=150, derandomize=True, database=None, deadline=None,
    suppress_health_check=list(HealthCheck), phases=[Phase.generate],
)  # fmt: skip
EVERYTHING = {"rope_scaling": tuple(VARIANTS), "axes": ("one", "sections", "interleaved")}
CONFIGS = sorted((Path(__file__).parent / "configs").glob("*.json"))
L, MAXIMUM = "original_max_position_embeddings", "max_position_embeddings"
YARN = {"rope_type": "yarn", "factor": 4.0, L: 4096}
LONG = {
    "rope_type": "longrope",
    "factor": 4.0,
    L: 64,
    "short_factor": [1, 1],
    "long_factor": [2, 3],
}
LLAMA = {"rope_type": "llama3", "factor": 8, L: 8192, "low_freq_factor": 1, "high_freq_factor": 4}


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"rope_type": "nope"}, "rope_type"),
        ({"rope_type": ["yarn"]}, "rope_type"),
        ({"type": "yarm"}, "type"),
        ({**YARN, "type": "linear"}, "type"),
        ({"factor": 4.0}, "factor"),
        ({"rope_type": "linear"}, "factor"),
        ({"rope_type": "linear", "factor": None}, "factor"),
        ({"rope_type": "linear", "factor": 0.5}, "factor"),
        ({"rope_type": "linear", "factor": float("inf")}, "factor"),
        ({"rope_type": "linear", "factor": "4"}, "factor"),
        ({"rope_type": "linear", "factor": True}, "factor"),
        ({"rope_type": "linear", "factor": 4.0, "beta_fast": 32}, "beta_fast"),
        ({"rope_type": "dynamic", "factor": 2.0}, MAXIMUM),
        ({"rope_type": "dynamic", "factor": 2.0, MAXIMUM: 64, L: 32}, L),
        ({"rope_type": "yarn", "factor": 4.0}, L),
        ({"rope_type": "yarn", L: 4096}, "factor"),
        ({"rope_type": "yarn", L: 4096, MAXIMUM: 2048}, MAXIMUM),
        ({**YARN, MAXIMUM: 8192}, MAXIMUM),
        ({**YARN, L: 4096.0}, L),
        ({**YARN, L: 1}, L),
        ({**YARN, "mscale": 1.0}, "mscale_all_dim"),
        ({**YARN, "mscale_all_dim": 1.0}, "mscale"),
        ({**YARN, "mscale": 0.0, "mscale_all_dim": 1.0}, "mscale"),
        ({**YARN, "beta_fast": 0.5}, "beta_fast"),
        ({**YARN, "truncate": 0}, "truncate"),
        ({**YARN, "attention_factor": 0.0}, "attention_factor"),
        ({**YARN, "rope_theta": 5e5}, "rope_theta"),
        ({**LONG, "long_factor": [2, 3, 4]}, "long_factor"),
        ({**LONG, "short_factor": 1.0}, "short_factor"),
        ({**LONG, "short_factor": [1, 0]}, "short_factor"),
        ({k: v for k, v in LONG.items() if k != "long_factor"}, "long_factor"),
        ({**LLAMA, "high_freq_factor": 1}, "high_freq_factor"),
        ({k: v for k, v in LLAMA.items() if k != "low_freq_factor"}, "low_freq_factor"),
        ({"rope_type": "proportional", "partial_rotary_factor": 1.5}, "partial_rotary_factor"),
        ({"mrope_section": [1, 1]}, "mrope_section"),
        ({"mrope_section": [1, 1, 1]}, "mrope_section"),
        ({"mrope_section": [0, 0, 2], "mrope_interleaved": True}, "mrope_section"),
        ({"mrope_section": [0, 1, 1], "mrope_interleaved": 1}, "mrope_interleaved"),
        ({"mrope_interleaved": True}, "mrope_section"),
        ({"type": "mrope"}, "mrope_section"),
    ],
)
def test_a_mapping_is_refused_by_the_name_of_its_key(given: dict[str, Any], key: str) -> None:
    expected = rf"^rope_scaling\['{re.escape(key)}'\]: expected .+, got .+"
    with pytest.raises((ValueError, TypeError), match=expected):
        read(given, rotary_dim=4, rope_theta=1e4)


@pytest.mark.parametrize(
    ("given", "changes", "argument"),
    [
        (YARN, {"seq_len": -1}, "seq_len"),
        (YARN, {"seq_len": 4.0}, "seq_len"),
        (YARN, {"rope_theta": 1.0}, "rope_theta"),
        ({"rope_type": "ntk", "factor": 2}, {"rotary_dim": 2}, "rotary_dim"),
        ([("rope_type", "yarn")], {}, "rope_scaling"),
    ],
)
def test_other_arguments_are_refused(given: Any, changes: dict[str, Any], argument: str) -> None:
    with pytest.raises((ValueError, TypeError), match=rf"^{argument}: expected .+, got .+"):
        read(given, **{"rotary_dim": 4, "rope_theta": 1e4, **changes})


def test_old_names_and_quotients_are_read() -> None:
    usual = {"rotary_dim": 4, "rope_theta": 1e4}
    old = {**{k: v for k, v in LONG.items() if k != "factor"}, "type": "su", MAXIMUM: 288}
    del old["rope_type"]
    assert read(old, **usual).rope_type == "longrope"
    assert read(old, **usual).factor == Fraction(9, 2)
    assert read({**YARN, MAXIMUM: 4096}, **usual).factor == 4  # not extended yet
    assert read({"type": "mrope", "mrope_section": [0, 1, 1]}, **usual).rope_type == "default"
    third = {"rope_type": "proportional", "partial_rotary_factor": 0.3}
    assert read(third, rotary_dim=20, rope_theta=1e4).turning == 3


def test_a_config_of_every_type_but_the_static_one_is_read() -> None:
    found = {of_config(path)[1].rope_type for path in CONFIGS}
    assert found == set(TYPES) - {"ntk"}


def of_config(path: Path) -> tuple[dict[str, Any], Any]:
    """A model's config, and its mapping read."""
    config = json.loads(path.read_text())
    given = config["rope_parameters"]
    part = given.get("partial_rotary_factor", 1.0) if given["rope_type"] != "proportional" else 1
    config["rotary_dim"] = int(config["head_dim"] * part)
    theta = given["rope_theta"]
    return config, read(given, rotary_dim=config["rotary_dim"], rope_theta=theta)


@given(case=CONTRACT.cases(CONTRACT.limits({**EVERYTHING, "positions": (*KINDS, HUGE)})))
@QUIET
def test_three_derivations_agree(case: RopeTableCase) -> None:
    scaling = scaling_of(case)
    if scaling is None:
        return
    given = (case.rotary_dim, case.rope_theta, scaling)
    first = [
        *rope_scaling_exact.balls(*given, 192),
        rope_scaling_exact.attention_factor(scaling, 192),
    ]
    with mpmath.workprec(320):
        second = [*rope_scaling_mpmath.frequencies(*given)]
        second.append(rope_scaling_mpmath.attention_factor(scaling))
        second = [of_mpf(x) for x in second]
    plain = [*rope_scaling.frequencies(*given), rope_scaling.attention_factor(scaling)]
    for a, exact, c in zip(first, second, plain, strict=True):
        assert abs(fraction(a) - exact) <= exact / 2**150
        assert abs(Fraction(float(c)) - exact) <= exact / 2**44
    columns = case.rotary_dim // 2
    if scaling.mrope_section:
        axes = rope_scaling.axes(columns, scaling).tolist()
        assert axes == [rope_scaling_exact.axis_of(c, scaling) for c in range(columns)]
        assert axes == rope_scaling_mpmath.axes(scaling)
        assert np.bincount(axes, minlength=3).tolist() == list(scaling.mrope_section)


@given(case=CONTRACT.cases(CONTRACT.limits({**EVERYTHING, "positions": (*KINDS, HUGE)})))
@QUIET
def test_float64_and_expected_values_are_within_their_bounds(case: RopeTableCase) -> None:
    from tightrope.arithmetic import Arithmetic

    inputs, bound = CONTRACT.inputs(case), oracle_error(case, CONTRACT.inputs(case))
    budgets = CONTRACT.budget(case, inputs, Arithmetic().over(CONTRACT.stages))
    for name, budget in budgets.items():
        off = np.abs(CONTRACT.oracle(case, inputs)[name] - budget.expected)
        assert (off <= bound + budget.oracle).all()
        flat = list({0, budget.expected.size - 1}) if budget.expected.size else []
        for at, exact in zip(flat, CONTRACT.exact(case, inputs, name, flat), strict=True):
            error = abs(Fraction(float(budget.expected.ravel()[at])) - exact)
            assert error <= Fraction(float(np.ravel(budget.oracle)[at]))


@given(case=CONTRACT.cases(CONTRACT.limits(EVERYTHING)))
@QUIET
def test_cases_are_what_they_say(case: RopeTableCase) -> None:
    assert CONTRACT.from_json(json.loads(json.dumps(CONTRACT.to_json(case)))) == case
    asked = mapping(case) or {}
    assert asked.get("rope_type", "default") == case.rope_scaling
    shape = (case.tokens,) if case.axes == "one" else (3, case.tokens)
    assert CONTRACT.inputs(case)["positions"].shape == shape


def test_scalings_are_drawn_only_for_those_that_name_them() -> None:
    @given(case=CONTRACT.cases(CONTRACT.limits({})))
    @QUIET
    def draw(case: RopeTableCase) -> None:
        assert (case.rope_scaling, case.axes, case.seq_len) == ("default", "one", None)
        assert mapping(case) is None

    draw()
