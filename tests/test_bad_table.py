"""Bad input of the table builders is refused before anything is launched, in one wording."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tightrope.device import current
from tightrope.validate import check_rope_table

HOME = current().kind

from tightrope.impls import rope_table  # noqa: E402  (Triton after `current`)

WORDING = re.compile(r"^[^:]+: expected .+, got .+$", re.DOTALL)


def like(*shape: int, dtype: str = "float16", device: str = HOME) -> torch.Tensor:
    return torch.zeros(shape, dtype=getattr(torch, dtype), device=device)


@pytest.mark.parametrize(
    ("changes", "error", "argument"),
    [
        ({"rotary_dim": 7}, ValueError, "rotary_dim"),
        ({"rotary_dim": 0}, ValueError, "rotary_dim"),
        ({"rotary_dim": 8.0}, TypeError, "rotary_dim"),
        ({"rope_theta": 0.0}, ValueError, "rope_theta"),
        ({"rope_theta": -1e4}, ValueError, "rope_theta"),
        ({"rope_theta": float("nan")}, ValueError, "rope_theta"),
        ({"rope_theta": 10**400}, ValueError, "rope_theta"),
        ({"rope_theta": "1e4"}, TypeError, "rope_theta"),
        ({"positions": like(2, 3, dtype="int64")}, ValueError, "positions.shape"),
        ({"positions": like(3)}, TypeError, "positions.dtype"),
        ({"rope_scaling": {"rope_type": "yarm"}}, ValueError, "rope_scaling['rope_type']"),
        ({"rope_scaling": {"factor": 8.0}}, ValueError, "rope_scaling['factor']"),
        ({"rope_scaling": 8.0}, TypeError, "rope_scaling"),
        ({"seq_len": -1}, ValueError, "seq_len"),
        (
            {"positions": like(2, 3, dtype="int64"), "rope_scaling": {"mrope_section": [2, 1, 1]}},
            ValueError,
            "positions.shape",
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("build", [rope_table.exact, rope_table.float32], ids=["exact", "float32"])
def test_a_table_is_refused(
    build: Callable[..., Any], changes: dict[str, Any], error: type[Exception], argument: str
) -> None:
    usual = {"positions": like(3, dtype="int64"), "rotary_dim": 8, "rope_theta": 1e4}
    with pytest.raises(error) as raised:
        build(**{**usual, **changes})
    assert WORDING.match(str(raised.value)), raised.value
    assert str(raised.value).startswith(argument), raised.value


def test_frequencies_beyond_float32_are_refused_by_its_builder() -> None:
    arguments = {"positions": like(3, dtype="int64"), "rotary_dim": 8, "rope_theta": 1e-300}
    with pytest.raises(ValueError, match=r"^rope_theta: expected"):
        rope_table.float32(**arguments)
    assert rope_table.exact(**arguments)[0].isfinite().all()


def test_checks_read_no_element() -> None:
    positions = like(3, dtype="int64", device="meta")
    check_rope_table(positions, rotary_dim=8, rope_theta=1e4, rope_scaling={"rope_type": "default"})
    with pytest.raises(ValueError, match=r"^device: expected"):
        rope_table.exact(positions, rotary_dim=8, rope_theta=1e4)
