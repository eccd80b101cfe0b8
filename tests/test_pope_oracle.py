"""`pope_attention`: its three oracles against one another, the paper and torch."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import cycle

import mpmath
import numpy as np
import pytest
import torch
from attention_limits import OUTPUTS, apart, flat, mpmath_limits_of, rational

from tightrope import Arithmetic
from tightrope.oracles import pope_attention_exact, pope_attention_mpmath
from tightrope.oracles.pope_attention import CONTRACT, PopeAttentionCase
from tightrope.oracles.pope_attention_cases import DATA, DELTAS, POSITIONS
from tightrope.oracles.pope_attention_problem import polar, right

U = 2.0**-53
# The budget's term of the oracle's own error does not depend on stages, but where all is infinite.
FINE = {"angle": "exact", "features": "float32", "trig_ulp": 0.5, "softplus_error": 0.0}
FINE = Arithmetic(**FINE).over(CONTRACT.stages)
SIZE = {
    **{"batch": 2, "num_heads": 4, "num_kv_heads": 2, "seqlen_q": 2, "seqlen_k": 5},
    **{"head_dim": 7, "head_dim_v": 3, "rotary_dim": 5, "out_dtype": "float32"},
}
STARTS = {"range": 0, "offset": -77, "random": 0, "per_batch": 1 << 20, "long": (1 << 40) - 3}


def case(**fields):
    given = {**SIZE, **fields}
    kept = "input" if given.get("dtype") == "float32" else given["out_dtype"]
    start = STARTS[given.get("positions", "range")]
    return PopeAttentionCase(**{"start": start, **given, "out_dtype": kept})


def every(c, inputs, output):
    """Every element of an output in ball arithmetic."""
    size = c.batch * c.num_heads * c.seqlen_q * (c.head_dim_v if output == "out" else 1)
    return pope_attention_exact.exact(c, inputs, output, range(size))


def check_layers(c, inputs=None):
    """Ball arithmetic, mpmath and float64 agree on every element."""
    inputs = CONTRACT.inputs(c) if inputs is None else inputs
    found, truth = CONTRACT.oracle(c, inputs), pope_attention_mpmath.pope_attention(c, inputs)
    budgets = CONTRACT.budget(c, inputs, FINE)
    limits = mpmath_limits_of(right(c, inputs))
    for name in OUTPUTS:
        exact = every(c, inputs, name)
        assert apart(truth[name], exact, limits[name]) == []
        assert np.isfinite(budgets[name].bound).all()
        own = np.broadcast_to(budgets[name].oracle, found[name].shape)
        assert apart(flat(found[name]), exact, own) == []


VARIED = list(zip(DATA, cycle(POSITIONS), cycle(DELTAS), cycle((1, -1)), strict=False))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(("data", "positions", "delta", "sign"), VARIED)
def test_the_three_layers_agree(dtype, data, positions, delta, sign):
    check_layers(
        case(
            dtype=dtype, data=data, positions=positions, delta=delta, exponent_sign=sign,
            delta_data="wide", inv_freq_dtype=("float64", "float32")[sign], seed=3,
        )
    )  # fmt: skip


@pytest.mark.parametrize(
    "settings",
    [
        {"causal": True, "q_offset": 1, "hidden": "nan"},
        {"window_left": 1, "window_right": 0, "q_offset": 2, "hidden": "inf", "sink": True},
        {"softcap": 2.0, "softmax_scale": 1.0, "delta": "heads"},
        {"offsets": "tensor", "causal": True, "q_offset": 1, "positions": "per_batch"},
        {"causal": True, "q_offset": -1, "empty_rows": True, "delta": "kv_heads"},
        {"rotary_dim": 7}, {"rotary_dim": 1}, {"num_kv_heads": 1, "delta": "heads"},
    ],
)  # fmt: skip
def test_the_layers_agree_under_every_option(settings):
    check_layers(case(**settings, dtype="bfloat16"))


def test_the_layers_agree_on_a_delta_of_any_size():
    c = case(delta="heads", positions="long")
    x = CONTRACT.inputs(c)
    x["delta"][:] *= np.float32(2.0) ** np.array([120, 60, -100, -149], np.float32)[:, None]
    check_layers(c, x)


@pytest.mark.parametrize("delta", DELTAS)
def test_a_score_is_the_sum_over_features_that_the_paper_prints(delta):
    """Eq. 6: mu_q mu_k cos((s - t) theta_c + delta_c); plain features add q k."""
    c = case(delta=delta, positions="per_batch", delta_data="wide")
    x, p = CONTRACT.inputs(c), right(c, CONTRACT.inputs(c))
    own = {n: polar(c, x, n).own.reshape(p.q.shape[0], -1, p.q.shape[2]) for n in ("q", "k")}
    size = np.abs(p.q) @ np.abs(p.k).swapaxes(1, 2)
    bound = np.abs(p.q) @ own["k"].swapaxes(1, 2) + own["q"] @ (np.abs(p.k) + own["k"]).swapaxes(
        1, 2
    )
    bound = bound + p.q.shape[2] * U * (1 + 2.0**-30) * size
    found = p.q @ p.k.swapaxes(1, 2)
    with mpmath.workdps(80):
        for g in range(len(found)):
            b, h = divmod(g, c.num_heads)
            for i, j in np.ndindex(*found.shape[1:]):
                exact = eq_6(c, x, b, h, i, j)
                assert abs(Fraction(found[g, i, j]) - rational(exact)) <= Fraction(bound[g, i, j])


def eq_6(c, x, b, h, i, j):
    """One score, by the closed form."""
    kv = h // (c.num_heads // c.num_kv_heads)
    q, k = ([mpmath.mpf(float(f)) for f in y] for y in (x["q"][b, h, i], x["k"][b, kv, j]))
    apart = int(x["k_positions"][b, j]) - int(x["q_positions"][b, i])
    total = mpmath.fdot(q[c.rotary_dim :], k[c.rotary_dim :])
    for f, frequency in enumerate(x["inv_freq"].tolist()):
        delta = x["delta"][h if c.delta == "heads" else kv, f] if "delta" in x else 0.0
        angle = apart * mpmath.mpf(frequency) + mpmath.mpf(float(delta))
        sizes = mpmath.log(1 + mpmath.exp(q[f])) * mpmath.log(1 + mpmath.exp(k[f]))
        total += sizes * mpmath.cos(angle)
    return total


def test_the_expanded_features_are_those_of_torch():
    """The naive way in float64: its angles are off by half an ulp of product and sum, its softplus
    by two ulps, its cos and sin by one, of at most 1; so much again for ours."""
    c = case(delta="kv_heads", num_kv_heads=4, rotary_dim=7, data="normal", positions="offset")
    x = CONTRACT.inputs(c)
    f = torch.from_numpy(x["inv_freq"]).double()
    delta = torch.from_numpy(x["delta"]).double()
    for name in ("q", "k"):
        tensor = torch.from_numpy(x[name].astype(np.float64))
        angle = torch.outer(torch.from_numpy(x[f"{name}_positions"]).double(), f)
        if name == "k":
            angle = angle + delta[:, None]
        mu = torch.log1p(torch.exp(tensor))
        naive = torch.cat([mu * torch.cos(angle), mu * torch.sin(angle)], -1).numpy()
        mine = polar(c, x, name)
        size = np.abs(x[f"{name}_positions"])[:, None] * x["inv_freq"].astype(np.float64)
        theirs = 2 * (size + 2 * np.pi) * U + 8 * U
        bound = mine.own + np.concatenate([mine.mu * theirs] * 2, -1)
        assert (np.abs(naive - mine.features) <= bound).all()


@pytest.mark.parametrize("data", ["normal", "delicate", "thresholds"])
def test_features_are_within_their_own_error(data):
    c = case(dtype="float32", data=data, delta="heads", positions="long", exponent_sign=1)
    x = CONTRACT.inputs(c)
    mine = polar(c, x, "k")
    features, own = mine.features, mine.own
    for b, h in np.ndindex(c.batch, c.num_heads):
        rows, phase = x["k"][b, h // 2].astype(np.float64), x["delta"][h].astype(np.float64)
        angles = [
            [(m, float(f), d) for f, d in zip(x["inv_freq"], phase.tolist(), strict=True)]
            for m in x["k_positions"].tolist()
        ]
        true = pope_attention_exact.points_of(rows, angles)
        for at in np.ndindex(true.mantissas.shape):
            exact = Fraction(int(true.mantissas[at])) * Fraction(2) ** true.exponent
            off = abs(Fraction(features[b, h][at]) - exact)
            assert off <= Fraction(own[b, h][at]) + Fraction(1, 2**700)


def same(c, x, y, **others):
    """Two sets of inputs have one result; `others` are fields of the second's case."""
    for name in OUTPUTS:
        pairs = zip(every(c, x, name), every(replace(c, **others), y, name), strict=True)
        assert all(abs(a - b) <= abs(a) / 2**98 for a, b in pairs)


def different(c, x, y):
    return any(every(c, x, name) != every(c, y, name) for name in OUTPUTS)


def test_only_differences_of_positions_matter():
    c = case(delta="heads", positions="random", exponent_sign=1)
    x = CONTRACT.inputs(c)
    moved = {n: x[n] + 2**45 + 1 for n in ("q_positions", "k_positions")}
    same(c, x, {**x, **moved})
    assert different(c, x, {**x, "k_positions": moved["k_positions"]})


def test_delta_of_minus_so_many_steps_is_a_shift_of_the_keys():
    c = case(delta="kv_heads", delta_data="zero", positions="offset")
    x = CONTRACT.inputs(c)
    x["inv_freq"] = np.float32([2.0, 0.75, 0.5, 2.0**-4, 1.0])
    shifted = np.broadcast_to(-9 * x["inv_freq"], x["delta"].shape)
    same(c, {**x, "delta": shifted}, {**x, "k_positions": x["k_positions"] - 9})
    assert different(c, {**x, "delta": -shifted}, {**x, "k_positions": x["k_positions"] - 9})


def test_delta_goes_by_query_head_or_by_kv_head():
    c = case(delta="kv_heads")
    x = CONTRACT.inputs(c)
    same(c, x, {**x, "delta": x["delta"][[0, 0, 1, 1]]}, delta="heads")
    assert different(c, x, {**x, "delta": x["delta"][[0, 1, 0, 1]]})
    whole = {n: np.repeat(x[n], 2, axis=1) for n in ("k", "v")}
    same(c, x, {**x, **whole, "delta": x["delta"][[0, 0, 1, 1]]}, num_kv_heads=4)


def test_zero_is_no_padding():
    """A key of 0 has magnitudes of ln 2: seen, it takes weight from the others."""
    c = case(num_heads=1, num_kv_heads=1, batch=1)
    x = CONTRACT.inputs(c)
    longer = {n: np.pad(x[n], ((0, 0), (0, 0), (0, 1), (0, 0))) for n in ("k", "v")}
    longer["k_positions"] = np.append(x["k_positions"], 0)
    more = replace(c, seqlen_k=c.seqlen_k + 1)
    for short, long in zip(every(c, x, "lse"), every(more, {**x, **longer}, "lse"), strict=True):
        assert long - short > Fraction(1, 100)


def test_exact_refuses_what_is_not_finite_only_where_a_row_looks():
    c = case(causal=True, q_offset=1, batch=1)
    x = CONTRACT.inputs(c)
    x["k"][..., 3:, :] = np.nan
    check_layers(c, x)
    x["k"][..., 2, :] = np.inf
    pope_attention_exact.exact(c, x, "out", [0])
    with pytest.raises(ArithmeticError, match="infinite or NaN"):
        pope_attention_exact.exact(c, x, "out", [c.head_dim_v])
