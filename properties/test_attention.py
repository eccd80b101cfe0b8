"""What attention is, whatever the weights: an average of values, each head and batch on its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tightrope import holds_for
from tightrope.compare import budgets, part, same_value, within
from tightrope.formats import widen
from tightrope.oracles.attention_inputs import stated


@holds_for("attention", "pope_attention", limits={"hidden": ("finite",)}, returns=("out",))
def test_out_lies_in_the_hull_of_visible_values(impl, case):
    """Demands: out is between the smallest and the largest visible v (and 0 with a sink), within
    its budget; a constant v is returned.

    Kills: weights that do not sum to 1 (denominators not rescaled, a dropped tile, lse for l).
    """
    inputs = impl.contract.inputs(case)
    problem = stated(case, inputs)
    seen = problem.visible[..., None]
    v = problem.v[:, None]
    low = np.where(seen, v, np.inf).min(axis=2, initial=np.inf)
    high = np.where(seen, v, -np.inf).max(axis=2, initial=-np.inf)
    nothing = np.logical_not(problem.visible.any(axis=-1))[..., None]
    nothing = nothing | (problem.sink is not None)
    low, high = (
        np.where(nothing, np.minimum(low, 0), low),
        np.where(nothing, np.maximum(high, 0), high),
    )
    budget = budgets(impl, case, inputs)["out"]
    out = widen(impl(case, inputs)["out"])
    low, high = low.reshape(out.shape), high.reshape(out.shape)
    least = budget.format.round(low - budget.bound)
    most = budget.format.round(high + budget.bound)
    beyond = np.maximum(np.maximum(least - out, out - most), 0.0)
    beyond = np.where(np.isnan(out), np.inf, beyond)
    within(
        "out",
        beyond,
        np.where(np.isinf(budget.bound), np.inf, 0.0),
        "out must lie among the values it averages",
    )


GROUPED = {f"layout_{x}": ("contiguous",) for x in ("q", "k", "v")}
ALL = ("attention", "rope_attention", "pope_attention")


@holds_for(*ALL, limits=GROUPED, needs={"num_kv_heads": (1, 2, 3, 4, 6)})
def test_grouped_heads_equal_repeated_heads(impl, case):
    """Demands: kv heads repeated for their query heads give the same outputs.

    Kills: kv heads read interleaved instead of in blocks, one stride used for another.
    """
    inputs = impl.contract.inputs(case)
    group = case.num_heads // case.num_kv_heads
    repeated = {**inputs, **{n: np.repeat(inputs[n], group, axis=1) for n in ("k", "v")}}
    if len(inputs.get("delta", ())) == case.num_kv_heads:
        repeated["delta"] = np.repeat(inputs["delta"], group, axis=0)
    many = replace(case, num_kv_heads=case.num_heads)
    a, b = impl(case, inputs), impl(many, repeated)
    first, second = budgets(impl, case, inputs), budgets(impl, many, repeated)
    story = "grouped and repeated heads must agree"
    for name in impl.outputs:
        same_value(name, a[name], b[name], first[name], story, second[name])


@holds_for(*ALL, limits={**GROUPED, "batch": (2, 3)})
def test_a_sequence_is_the_same_alone_and_in_a_batch(impl, case):
    """Demands: each sequence alone gives what it gives in any slot of the batch.

    Kills: batch strides that are wrong, results that depend on the slot or on the batch's size.
    """
    inputs = impl.contract.inputs(case)
    whole, spent = impl(case, inputs), budgets(impl, case, inputs)
    for slot in range(case.batch):
        alone = {name: _slot(name, array, slot) for name, array in inputs.items()}
        one, at = replace(case, batch=1), np.s_[slot : slot + 1]
        single, its = impl(one, alone), budgets(impl, one, alone)
        for name in impl.outputs:
            same_value(
                name, whole[name][at], single[name], part(spent[name], at),
                "a sequence must be the same alone and in a batch", its[name],
            )  # fmt: skip


def _slot(name, array, slot):
    """One sequence's part of an input; what all share stays."""
    own = name in ("q", "k", "v", "q_offset") or (name == "bias" and len(array) > 1)
    if own or ("positions" in name and array.ndim == 2):
        return np.ascontiguousarray(array[slot : slot + 1])
    return array
