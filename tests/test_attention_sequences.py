"""Packed, paged, merged and rotated attention: ball arithmetic against mpmath and by hand."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import scipy.special
from attention_limits import OUTPUTS, apart, call, exact, mpmath_limits

from tightrope.formats import stored
from tightrope.oracles import (
    attention_paged_exact,
    attention_paged_mpmath,
    attention_varlen_exact,
    attention_varlen_mpmath,
    merge_attention_exact,
    merge_attention_mpmath,
    rope_attention_exact,
    rope_attention_mpmath,
)

ENDS_Q, ENDS_K = np.int32([1, 4, 4, 8, 9]), np.int32([0, 5, 7, 7, 14])
RULES = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window_left": 2, "window_right": 0},
    "softcap and scale": {"softcap": 1.0, "softmax_scale": 0.7},
}


def rule(**fields):
    nothing = dict.fromkeys(("window_left", "window_right", "softcap", "softmax_scale"))
    return SimpleNamespace(**{**nothing, "causal": False, "interleaved": False, **fields})


def packed(dtype="float16", **optional):
    """Four sequences: 3 queries of 5 keys, none of 2, 4 of none, 1 of 7; the buffers go on."""
    rng = np.random.default_rng(0)
    shapes = {"q": (11, 4, 6), "k": (16, 2, 6), "v": (16, 2, 3)}
    found = {name: stored(rng.standard_normal(shape), dtype) for name, shape in shapes.items()}
    for x, end in (("q", 9), ("k", 14), ("v", 14)):
        found[x][end:] = np.nan
    return {**found, "cu_seqlens_q": ENDS_Q, "cu_seqlens_k": ENDS_K, **optional}


def paged(inputs, page_size=3):
    """The same keys and values, in pages in another order; what is not used holds NaN or points
    nowhere."""
    lengths = np.diff(inputs["cu_seqlens_k"])
    order = iter(np.random.default_rng(1).permutation(12).tolist())
    table = np.full((len(lengths), 4), 2**30, np.int32)
    found = {}
    for name in ("k", "v"):
        shape = (12, page_size, *inputs[name].shape[1:])
        found[f"{name}_cache"] = np.full(shape, np.nan, inputs[name].dtype)
    for s, length in enumerate(lengths):
        for j in range(length):
            if j % page_size == 0:
                table[s, j // page_size] = next(order)
            for name in ("k", "v"):
                page = found[f"{name}_cache"][table[s, j // page_size]]
                page[j % page_size] = inputs[name][inputs["cu_seqlens_k"][s] + j]
    kept = {name: x for name, x in inputs.items() if name not in ("k", "v", "cu_seqlens_k")}
    return {**kept, **found, "block_table": table, "cache_seqlens": lengths.astype(np.int32)}


OPTIONAL = {
    "bottom right": {},
    "offsets": {"q_offset": np.int32([1, 0, 0, 9])},
    "sink": {"sink": np.float32([0.5, -1.0, 2.0, 0.0])},
}


def wrong(layer, case, inputs, found, limits):
    """(output, flat index) where `found`, of mpmath, is not what ball arithmetic says."""
    return [
        (output, i)
        for output in OUTPUTS
        for i in apart(
            found[output],
            layer.exact(case, inputs, output, range(len(found[output]))),
            limits[output],
        )
    ]


def bounds(inputs, rotation=1.0):
    """mpmath's limits, from the largest values there are; no scale here is above 1."""
    at = {n: np.nan_to_num(x.astype(np.float64)) for n, x in inputs.items()}
    q, k, v = (
        np.abs(next(at[n] for n in (x, f"{x}_cache") if n in at)).max() for x in ("q", "k", "v")
    )
    score = inputs["q"].shape[-1] * q * k * rotation**2
    return mpmath_limits(score + np.abs(at.get("sink", np.zeros(1))).max(), 16, v)


@pytest.mark.parametrize("optional", OPTIONAL)
@pytest.mark.parametrize("name", RULES)
def test_packed_and_paged_agree_with_mpmath_and_with_each_other(name, optional):
    case, inputs = rule(**RULES[name]), packed(**OPTIONAL[optional])
    cached, limits = paged(inputs), bounds(inputs)
    found = attention_varlen_mpmath.attention_varlen(case, inputs)
    assert wrong(attention_varlen_exact, case, inputs, found, limits) == []
    assert wrong(attention_paged_exact, case, cached, found, limits) == []
    found = attention_paged_mpmath.attention_paged(case, cached)
    assert wrong(attention_paged_exact, case, cached, found, limits) == []


def test_tokens_of_no_sequence_and_sequences_without_keys_are_empty():
    inputs = packed()
    out = attention_varlen_exact.exact(rule(), inputs, "out", range(11 * 12))
    lse = attention_varlen_exact.exact(rule(), inputs, "lse", range(4 * 11))
    live = np.isin(np.arange(11), [1, 2, 3, 8])
    assert [x is not None for x in lse] == np.tile(live, 4).tolist()
    assert [x != 0 for x in out] == np.repeat(live, 12).tolist()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_packed_sequence_is_that_sequence_alone(dtype):
    inputs = packed(dtype)
    alone = {
        "q": inputs["q"][None, 1:4].swapaxes(1, 2),
        "k": inputs["k"][None, :5].swapaxes(1, 2), "v": inputs["v"][None, :5].swapaxes(1, 2),
    }  # fmt: skip
    case, _ = call(
        num_heads=4, num_kv_heads=2, seqlen_q=3, seqlen_k=5, head_dim=6, head_dim_v=3,
        causal=True, q_offset=2, dtype=dtype,
    )  # fmt: skip
    out = attention_varlen_exact.exact(rule(causal=True), inputs, "out", range(12, 48))
    heads = np.array(exact(case, alone, "out"), object).reshape(4, 3, 3)
    assert out == heads.swapaxes(0, 1).ravel().tolist()


MISTAKES = {
    "keys of the neighbour": lambda i: {**i, "cu_seqlens_k": ENDS_K + np.int32([0, 0, 0, 0, 1])},
    "a query too many": lambda i: {**i, "cu_seqlens_q": ENDS_Q + np.int32([0, 1, 1, 0, 0])},
    "upper left corner": lambda i: {**i, "q_offset": np.zeros(4, np.int32)},
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_packing_is_noticed(mistake):
    case, inputs = rule(causal=True), packed()
    inputs["k"][14:], inputs["v"][14:] = 1, 1
    found = attention_varlen_mpmath.attention_varlen(case, MISTAKES[mistake](inputs))
    assert wrong(attention_varlen_exact, case, inputs, found, bounds(inputs))


def test_pages_in_another_order_or_one_key_too_few_are_noticed():
    case, cached = rule(causal=True, window_left=3), paged(packed())
    limits = bounds(cached)
    swapped = {**cached, "block_table": cached["block_table"].copy()}
    swapped["block_table"][3, :2] = cached["block_table"][3, 1::-1]
    short = {**cached, "cache_seqlens": cached["cache_seqlens"] - np.int32([0, 0, 0, 1])}
    for mistaken in (swapped, short):
        found = attention_paged_mpmath.attention_paged(case, mistaken)
        assert wrong(attention_paged_exact, case, cached, found, limits)


def states(splits=4):
    """All live, and low; one empty; one live; none live."""
    rng = np.random.default_rng(2)
    lses = np.float32(20 * rng.standard_normal((splits, 2, 2)))
    outs = np.float32(rng.standard_normal((splits, 2, 2, 3)))
    lses[:, 0, 0] -= 100
    lses[1:, 1, 0], lses[:, 1, 1], lses[0, 0, 1] = -np.inf, -np.inf, -np.inf
    outs[np.isneginf(lses)] = np.nan
    return {"outs": outs, "lses": lses}


def test_merged_states_agree_with_mpmath_and_scipy():
    inputs = states()
    limits = mpmath_limits(200.0, 4, 9.0)
    found = merge_attention_mpmath.merge_attention(None, inputs)
    assert wrong(merge_attention_exact, None, inputs, found, limits) == []
    lses = inputs["lses"].astype(np.float64)[:, :, :1]  # without the column that has no live state
    expected = scipy.special.logsumexp(lses, axis=0).ravel()
    exactly = merge_attention_exact.exact(None, inputs, "lse", [0, 2])
    error = np.abs(expected - [float(x) for x in exactly])
    # exp, four sums, log and the shift of one magnitude at most: below 16 roundings of it
    assert (error <= 16 * 2.0**-53 * np.abs(lses[np.isfinite(lses)]).max()).all()


def test_an_empty_state_is_the_identity_and_no_state_is_empty():
    inputs = states()
    out, lse = inputs["outs"][0, 1, 0].tolist(), float(inputs["lses"][0, 1, 0])
    assert merge_attention_exact.exact(None, inputs, "out", range(6, 12)) == [*out, 0, 0, 0]
    assert merge_attention_exact.exact(None, inputs, "lse", [2, 3]) == [lse, None]


def test_a_merge_that_counts_an_empty_state_or_averages_is_noticed():
    inputs = states()
    counted = {**inputs, "lses": np.where(np.isneginf(inputs["lses"]), -14, inputs["lses"])}
    counted["outs"] = np.nan_to_num(inputs["outs"])
    averaged = {**inputs, "lses": np.where(np.isneginf(inputs["lses"]), -np.inf, 0)}
    for mistaken in (counted, averaged):
        found = merge_attention_mpmath.merge_attention(None, mistaken)
        assert wrong(merge_attention_exact, None, inputs, found, mpmath_limits(200.0, 4, 9.0))


def rotated(each=False, **settings):
    """A call of `rope_attention` with a table whose cos and sin have nothing to do with another."""
    settings = {"batch": 2, "num_heads": 2, "causal": True, "q_offset": 2, **settings}
    case, inputs = call(seqlen_q=3, seqlen_k=5, head_dim=8, **settings)
    rng = np.random.default_rng(3)
    table = {x: np.float32(rng.uniform(-1, 1, (16, 3))) for x in ("cos", "sin")}
    batch = (case.batch,) if each else ()
    positions = {
        f"{x}_positions": rng.integers(0, 16, (*batch, n)) for x, n in (("q", 3), ("k", 5))
    }
    fields = rule(causal=True, q_offset=2, softcap=case.softcap, softmax_scale=case.softmax_scale)
    return fields, {**inputs, **table, **positions}


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize(
    "settings", [{}, {"softcap": 2.0}, {"sink": True, "bias": "full"}, {"dtype": "bfloat16"}]
)
def test_rotated_attention_agrees_with_mpmath(interleaved, each, settings):
    case, inputs = rotated(each, **settings)
    case.interleaved = interleaved
    limits = bounds(inputs, rotation=2.0)
    found = rope_attention_mpmath.rope_attention(case, inputs)
    assert wrong(rope_attention_exact, case, inputs, found, limits) == []
    late = {**inputs, "k_positions": (inputs["k_positions"] + 1) % 16}
    other = SimpleNamespace(**vars(case) | {"interleaved": not interleaved})
    for mistaken in ((case, late), (other, inputs)):
        found = rope_attention_mpmath.rope_attention(*mistaken)
        assert wrong(rope_attention_exact, case, inputs, found, limits)


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_quarter_turn_swaps_the_features_of_a_pair(interleaved):
    case, inputs = rotated()
    case.interleaved = interleaved
    inputs["cos"][...], inputs["sin"][...] = 0, 1
    first, second = (slice(0, 6, 2), slice(1, 6, 2)) if interleaved else (slice(3), slice(3, 6))
    turned = {name: inputs[name].copy() for name in ("q", "k")}
    for name, x in turned.items():
        x[..., first], x[..., second] = -inputs[name][..., second], inputs[name][..., first]
    plain, _ = call(
        batch=2, num_heads=2, causal=True, q_offset=2, seqlen_q=3, seqlen_k=5, head_dim=8
    )
    for output in OUTPUTS:
        expected = exact(plain, {**inputs, **turned}, output)
        found = rope_attention_exact.exact(case, inputs, output, range(len(expected)))
        assert found == expected
