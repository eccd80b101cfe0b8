"""Ministral 3's own query temperature, within the budget of its float32.

(Llama 4's is written into its attention; test_query_scale_budget.py has the same three lines.)
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tightrope.arithmetic import Arithmetic
from tightrope.oracles.query_scale import CONTRACT, QueryScaleCase
from tightrope.verdict import judge

pytest.importorskip("transformers", reason="the peer is Hugging Face's model code")

from transformers.models.ministral3.modeling_ministral3 import get_llama_4_attn_scale

KINDS = [
    ("range", 8160, 8192), ("steps", 1, 8192), ("range", 16352, 16384), ("steps", 1, 16384),
    ("random", 2**19, 8192), ("long", 2**20 - 32, 16384), ("range", 2**24 - 80, 8192),
]  # fmt: skip


def right(case: QueryScaleCase, shift: int) -> bool:
    """Whether Ministral's temperatures are those of this shift."""
    asked, inputs = replace(case, shift=shift), CONTRACT.inputs(case)
    given = torch.from_numpy(inputs["positions"])[None]
    found = get_llama_4_attn_scale(given, case.attn_scale, case.floor_scale)[0, 0, :, 0].numpy()
    budget = CONTRACT.budget(asked, inputs, Arithmetic().over(CONTRACT.stages))["scale"]
    return judge("scale", found, budget, lambda at: CONTRACT.exact(asked, inputs, "scale", at)).ok


@pytest.mark.parametrize(("kind", "start", "floor_scale"), KINDS)
def test_ministral_has_shift_0(kind: str, start: int, floor_scale: int) -> None:
    case = QueryScaleCase(
        tokens=64, positions=kind, start=start, floor_scale=floor_scale, shift=0, span=2**20
    )
    before_a_step = (CONTRACT.inputs(case)["positions"] + 1) % floor_scale == 0
    assert right(case, shift=0)
    assert right(case, shift=1) != before_a_step.any()
