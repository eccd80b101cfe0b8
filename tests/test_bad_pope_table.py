"""Bad input of pope_table's builders is refused before anything is launched, in one wording."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_bad_table import WORDING, like

from tightrope.impls import pope_table
from tightrope.polar import EXPONENT_AS_CODED, EXPONENT_AS_PRINTED
from tightrope.validate import check_pope_table

USUAL = {"rotary_dim": 7, "rope_theta": 1e4, "exponent_sign": EXPONENT_AS_PRINTED}


def usual(**changes: Any) -> dict[str, Any]:
    return {"positions": like(3, dtype="int64"), **USUAL, **changes}


REFUSED = [
    ("rotary_dim", 0, ValueError),
    ("rotary_dim", -3, ValueError),
    ("rotary_dim", 8.0, TypeError),
    ("rotary_dim", True, TypeError),
    ("rope_theta", 0.0, ValueError),
    ("rope_theta", float("inf"), ValueError),
    ("rope_theta", torch.tensor(1e4), TypeError),
    ("exponent_sign", 0, ValueError),
    ("exponent_sign", 2, ValueError),
    ("exponent_sign", -1.0, TypeError),
    ("exponent_sign", True, TypeError),
    ("exponent_sign", "+", TypeError),
    ("positions", [0, 1, 2], TypeError),
    ("positions", like(2, 3, dtype="int64"), ValueError),
    ("positions", like(3, dtype="float32"), TypeError),
]


@pytest.mark.parametrize(("argument", "value", "error"), REFUSED)
@pytest.mark.parametrize("build", [pope_table.exact, pope_table.float32])
def test_a_table_is_refused(
    build: Callable[..., Any], argument: str, value: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match=WORDING) as raised:
        build(**usual(**{argument: value}))
    assert str(raised.value).startswith(argument)


def test_the_sign_has_no_default() -> None:
    """Both conventions are in use, so that neither goes without saying."""
    with pytest.raises(TypeError, match="exponent_sign"):
        pope_table.exact(like(3, dtype="int64"), rotary_dim=8, rope_theta=1e4)


@pytest.mark.parametrize(
    ("build", "rope_theta", "sign"),
    [
        (pope_table.float32, 1e60, EXPONENT_AS_PRINTED),
        (pope_table.float32, 1e-60, EXPONENT_AS_CODED),
        (pope_table.exact, 5e-324, EXPONENT_AS_CODED),
    ],
)
def test_frequencies_beyond_their_format_are_refused(
    build: Callable[..., Any], rope_theta: float, sign: int
) -> None:
    with pytest.raises(ValueError, match=r"^rope_theta: expected one whose frequencies are finite"):
        build(**usual(rotary_dim=64, rope_theta=rope_theta, exponent_sign=sign))


def test_no_positions_still_have_frequencies() -> None:
    for build in (pope_table.exact, pope_table.float32):
        inv_freq, cos, sin = build(**usual(positions=like(0, dtype="int32")))
        assert cos.shape == sin.shape == (0, 7)
        assert inv_freq[0] == 1
        assert inv_freq.isfinite().all()


def test_what_is_returned_is_the_callers_own() -> None:
    first = pope_table.exact(**usual())
    expected = [t.clone() for t in first]
    for t in first:
        t.fill_(7)
    assert all(map(torch.equal, pope_table.exact(**usual()), expected))


def test_checks_read_no_element() -> None:
    positions = like(3, dtype="int64", device="meta")
    check_pope_table(positions, **USUAL)
    with pytest.raises(ValueError, match=r"^device: expected"):
        pope_table.exact(positions, **USUAL)
