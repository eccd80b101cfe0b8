"""Bundled variants of polar attention agree on every call that both of them take: each is within
its own budget of the exact result, so that they are within the sum of one another.
"""

from __future__ import annotations

from importlib.util import find_spec
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tightrope.budget import Violation
from tightrope.implementation import Implementation, registered, resolve
from tightrope.law import strategy
from tightrope.parts import agree, called
from tightrope.subjects import load

STEM = "tightrope.impls.pope_attention"
for found in sorted(Path(str(find_spec(STEM).origin)).parent.glob("pope_attention*.py")):
    load(f"tightrope.impls.{found.stem}")
VARIANTS = [
    resolve(i) for i in registered()
    if i.module.startswith(STEM) and i.contract_name == "pope_attention"
]  # fmt: skip
PAIRS = list(combinations(VARIANTS, 2))
DTYPES = ("float16", "bfloat16", "float32")
patient = settings(
    max_examples=12, derandomize=True, database=None, deadline=None,
    suppress_health_check=list(HealthCheck), phases=[Phase.generate],
)  # fmt: skip


def both(one: Implementation, other: Implementation, dtype: str) -> Implementation | None:
    """The first on cases that the second takes too."""
    own = {"dtype": (dtype,), "size": ("small",)}
    left = one.narrow(dict(other.limits), {*one.where, *other.where})
    return left and left.narrow(own, left.where)


COMMON = [
    pytest.param(*pair, common, id=f"{pair[0].name} {pair[1].name} {dtype}")
    for pair in PAIRS
    for dtype in DTYPES
    if (common := both(*pair, dtype))
]


@pytest.mark.parametrize(("one", "other", "common"), COMMON)
def test_variants_agree_within_the_sum_of_their_budgets(one, other, common):
    @patient
    @given(strategy(common))
    def compare(case):
        inputs = one.contract.inputs(case)
        calls = (called(impl, case, inputs) for impl in (one, other))
        with np.errstate(all="ignore"):  # as laws run: rows without a key have an lse of -inf
            agree(one.contract.outputs, *calls, f"{one.name} and {other.name} must agree")

    compare()


def test_a_variant_that_is_one_position_off_does_not_agree():
    one, other = PAIRS[0]
    case = one.contract.case(seqlen_q=5, seqlen_k=17, num_heads=2, head_dim_v=8)
    inputs = one.contract.inputs(case)
    off = {**inputs, "k_positions": inputs["k_positions"] + 1}
    exact = called(one, case, inputs)
    agree(exact[0], exact, called(other, case, inputs), "these agree")
    with pytest.raises(Violation, match="allowed"):
        agree(exact[0], exact, (other(case, off), exact[1]), "these do not")


def test_there_is_a_pair():
    assert {"triton", "triton-expanded"} <= {i.name for i in VARIANTS}
