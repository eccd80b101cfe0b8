"""`rope_backward`: gradients of `rope`'s q and k, given those of its results.

`rope` is linear in q and k: y = J x, J block diagonal with a block [[c, -s], [s, c]] a pair
(RoFormer, arXiv:2104.09864, eq. 34). So the gradient of x is J^T dy, whatever x was:

    dx1 = dy1 cos + dy2 sin        dx2 = dy2 cos - dy1 sin

For cosines and sines of one angle that is the rotation by the opposite angle; here the table may
hold any numbers, and counts as exact in its own dtype. It gets no gradient. Features from
rotary_dim on pass unchanged. dq and dk have the shapes, pairs and layouts of `rope`'s q and k.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tightrope.arithmetic import Arithmetic
from tightrope.budget import Budget
from tightrope.contract import Contract
from tightrope.formats import Array
from tightrope.oracles.rope import CONTRACT as ROPE
from tightrope.oracles.rope_alternatives import Outputs
from tightrope.oracles.rope_backward_cases import RopeBackwardCase, cases
from tightrope.oracles.rope_backward_exact import exact
from tightrope.oracles.rope_backward_inputs import inputs

__all__ = ["CONTRACT", "RopeBackwardCase", "oracle"]

Arrays = Mapping[str, Array]
GRADIENTS = {"q": "dq", "k": "dk"}
# What a mistake of a rotation is called in a gradient; other sentences fit both.
SAID = {
    "a rotation by the opposite angle (sign of sin)": "the rotation itself, not its transpose",
    "the input, not rotated at all": "the given gradient, not rotated at all",
    "q rotated, k not": "dq rotated, dk not",
    "k rotated, q not": "dk rotated, dq not",
}


def forward(inputs: Arrays) -> dict[str, Array]:
    """The call of `rope` that gives J^T dy: the same table with the sines' signs turned."""
    same = {name: inputs[name] for name in ("cos", "positions")}
    return {"q": inputs["dq"], "k": inputs["dk"], "sin": -inputs["sin"], **same}


def named(results: Mapping[str, Any]) -> dict[str, Any]:
    """Results of that call under this contract's names."""
    return {GRADIENTS[name]: result for name, result in results.items()}


def oracle(case: RopeBackwardCase, inputs: Arrays) -> dict[str, Array]:
    """dq and dk in float64."""
    return named(ROPE.oracle(case, forward(inputs)))


def budget(case: RopeBackwardCase, inputs: Arrays, arithmetic: Arithmetic) -> dict[str, Budget]:
    """`rope`'s: the same two products and sum, and no rounding looks at a sign."""
    return named(ROPE.budget(case, forward(inputs), arithmetic))


def nulls(case: RopeBackwardCase, inputs: Arrays) -> dict[str, Outputs]:
    """`rope`'s."""
    return {name: named(y) for name, y in ROPE.nulls(case, forward(inputs)).items()}


def alternatives(case: RopeBackwardCase, inputs: Arrays) -> Iterator[tuple[str, Outputs]]:
    """`rope`'s; its opposite angle is the rotation where its transpose was asked for."""
    for sentence, outputs in ROPE.alternatives(case, forward(inputs)):
        yield SAID.get(sentence, sentence), named(outputs)


def layouts(case: RopeBackwardCase) -> dict[str, str]:
    return {GRADIENTS.get(name, name): layout for name, layout in ROPE.layouts(case).items()}


def in_place(case: RopeBackwardCase) -> dict[str, str]:
    return {name: name for name in GRADIENTS.values()} if case.inplace else {}


SIGNATURE = """\
rope_backward(dq, dk, cos, sin, positions, *, interleaved, inplace=False, out_dtype=None) -> dq, dk\
"""

CONTRACT = Contract(
    **{
        **vars(ROPE),
        **{"name": "rope_backward", "signature": SIGNATURE, "case": RopeBackwardCase},
        **{"outputs": tuple(GRADIENTS.values()), "cases": cases, "inputs": inputs},
        **{"oracle": oracle, "exact": exact, "budget": budget, "nulls": nulls},
        **{"layouts": layouts, "in_place": in_place, "alternatives": alternatives},
    }
)
