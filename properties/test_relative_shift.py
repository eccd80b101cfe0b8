"""Scores of rotated queries and keys depend on the difference of positions only.

A second opinion, not the main check: every consistent mistake (wrong theta, both signs flipped,
both layouts swapped) passes it. It sees a position that is wrong for q or k alone.
"""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from tightrope import holds_for
from tightrope.compare import budgets, reach, within
from tightrope.formats import stored, widen
from tightrope.rotary import join, split, table_of

THETA = 10000.0


LIMITS = {
    "inplace": (False,),
    "size": ("small",),  # the scores of all pairs are looked at
    "layout_q": ("contiguous",), "layout_k": ("contiguous",), "layout_table": ("contiguous",),
}  # fmt: skip


SHIFTS = st.sampled_from([23, 1, 1024, 65521])


@holds_for("rope", limits=LIMITS, needs={"table_rows": (2, 66)}, shift=SHIFTS)
def test_scores_depend_on_relative_position_only(impl, case, shift):
    """Demands: q_i(p_i + t) . k_j(p_j + t) = q_i(p_i) . k_j(p_j) for all pairs, within budgets.

    Positions are unequal and unordered; tables hold their exact angles, rounded to the table's
    dtype. Kills: k one position late, the token's index used for its position in one of q and k.
    """
    inputs = impl.contract.inputs(case)
    tokens, half = case.tokens, inputs["cos"].shape[1]
    rng = np.random.default_rng(case.seed)
    at = rng.permutation(2**16)[:tokens]
    inv_freq = THETA ** (-np.arange(half) / max(half, 1))
    rows = np.concatenate([at, at + shift])[:, None] * inv_freq
    inputs["cos"], inputs["sin"], table_error = table_of(rows, case.table_dtype)
    table_error += 2.0**-51 * float(2**16 + shift)
    here = _scores(impl, case, inputs, np.arange(tokens), table_error)
    there = _scores(impl, case, inputs, np.arange(tokens) + tokens, table_error)
    within(
        "score", there[0] - here[0], here[1] + there[1], "a common shift must not change a score"
    )


def _scores(impl, case, inputs, rows, table_error):
    """Scores (query heads, i, j) of one call, and a bound on their error."""
    given = {**inputs, "positions": rows.astype(inputs["positions"].dtype)}
    outputs, spent = impl(case, given), budgets(impl, case, given)
    group = case.num_heads // case.num_kv_heads
    vectors, errors = {}, {}
    for name in ("q", "k"):
        first, second = split(np.abs(widen(given[name])), case)
        table = join(*2 * (table_error * (first + second),), np.zeros(given[name].shape), case)
        vectors[name], errors[name] = widen(outputs[name]), reach(spent[name]) + table
    for store in (vectors, errors):
        store["k"] = np.repeat(store["k"], group, axis=1)

    def dot(a, b):
        return np.einsum("ihd,jhd->hij", a, b)

    q, k = np.abs(vectors["q"]), np.abs(vectors["k"])
    with np.errstate(invalid="ignore"):
        limit = dot(q, errors["k"]) + dot(errors["q"], k) + dot(errors["q"], errors["k"])
        rounding = 2.0**-52 * q.shape[-1] * dot(q, k)
        score = dot(vectors["q"], vectors["k"])
    return score, np.where(np.isnan(limit), np.inf, limit + rounding)


@holds_for(
    "rope",
    where=("out_dtype=input",),
    limits={
        **LIMITS, "tokens": (2,), "num_heads": (1,), "num_kv_heads": (1,), "data": ("normal",),
    },
    needs={"table_rows": (64,)},
)  # fmt: skip
def test_the_textbook_pair_scores_cos_3(impl, case):
    """Demands: q = k = (1, 0), theta = 1, m = 2, n = 5 scores cos 3; shifting both by 10 or 23
    leaves it; shifting the key alone by 10 gives cos 13.

    Kills: positions that are ignored, a key that is rotated with the query's position.
    """
    inputs = impl.contract.inputs(case)
    unit = np.zeros((2, 1, case.head_dim))
    unit[:, :, 0] = 1.0
    inputs["q"] = inputs["k"] = stored(unit, case.dtype)
    angles = np.zeros((64, inputs["cos"].shape[1]))
    angles[:, 0] = np.arange(64)
    inputs["cos"], inputs["sin"], table_error = table_of(angles, case.table_dtype)
    for m, n, expected in ((2, 5, 3), (12, 15, 3), (25, 28, 3), (2, 15, 13)):
        score, limit = _scores(impl, case, inputs, np.array([m, n]), table_error + 2.0**-45)
        story = f"the score of positions {m} and {n} must be cos {expected}"
        within("score", score[0, 0, 1] - np.cos(float(expected)), limit[0, 0, 1] + 2.0**-50, story)
