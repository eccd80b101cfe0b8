"""`attention`: its oracles against one another, against SciPy and PyTorch, and against mistakes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import scipy.special
import torch
from attention_limits import (
    OUTPUTS,
    SETTINGS,
    call,
    check_layers,
    disagreements,
    flat,
    float64,
    float64_limits,
    mpmath_limits_of,
    problem_of,
    tiled,
    with_sink,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tightrope.oracles import attention_mpmath

BLOCKS = (1, 2, 3, 20)
NAMED = pytest.mark.parametrize("name", SETTINGS)


@NAMED
def test_arb_mpmath_and_float64_agree(name):
    check_layers(*call(**SETTINGS[name]))


@st.composite
def calls(draw):
    heads = draw(st.sampled_from([(1, 1), (2, 1), (4, 2)]))
    end = st.none() | st.integers(0, 4)
    return call(
        dtype=draw(st.sampled_from(["float16", "bfloat16", "float32"])),
        seqlen_q=draw(st.integers(0, 5)), seqlen_k=draw(st.integers(0, 6)),
        num_heads=heads[0], num_kv_heads=heads[1],
        head_dim=draw(st.sampled_from([1, 2, 6])), head_dim_v=draw(st.sampled_from([1, 2, 3])),
        causal=draw(st.booleans()), q_offset=draw(st.integers(-4, 8)),
        window_left=draw(end), window_right=draw(end),
        softmax_scale=draw(st.sampled_from([None, 0.3, 1.0, 25.0])),
        softcap=draw(st.sampled_from([None, 0.5, 4.0])),
        bias=draw(st.sampled_from(["none", "full", "query"])), sink=draw(st.booleans()),
        hidden=draw(st.sampled_from(["finite", "nan", "inf"])),
        seed=draw(st.integers(0, 2**16)),
    )  # fmt: skip


@settings(
    max_examples=150, deadline=None, database=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
@given(calls())
def test_arb_mpmath_and_float64_agree_on_every_combination(drawn):
    check_layers(*drawn)


@NAMED
@pytest.mark.parametrize("block", BLOCKS[1:])
def test_the_recurrence_does_not_depend_on_its_block(name, block):
    case, inputs = call(**SETTINGS[name])
    found = attention_mpmath.attention(case, inputs, block)
    assert disagreements(case, inputs, found, mpmath_limits_of(problem_of(case, inputs))) == []


def tiles(name, block, rescale):
    case, inputs = call(**SETTINGS[name])
    p = problem_of(case, inputs)
    pair = tiled(p.q[0], p.k[0], p.v[0], p.visible[0], p.softmax_scale, block, rescale)
    found = {output: flat(x) for output, x in zip(OUTPUTS, pair, strict=True)}
    return disagreements(case, inputs, found, float64_limits(p, blocks=case.seqlen_k))


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("name", ["plain", "wide", "tall", "behind", "window"])
def test_the_tiled_algorithm_in_float64_is_attention(name, block):
    assert tiles(name, block, rescale=True) == []


@pytest.mark.parametrize("block", BLOCKS)
def test_tiles_whose_sums_are_not_rescaled_are_noticed(block):
    assert bool(tiles("plain", block, rescale=False)) == (
        block < 7
    )  # one tile has nothing to rescale


@pytest.mark.parametrize("library", ["scipy", "torch"])
@NAMED
def test_scipy_and_torch_agree(library, name):
    case, inputs = call(**SETTINGS[name])
    p = problem_of(case, inputs)
    limits = float64_limits(p)
    t, v = with_sink(p)
    with np.errstate(all="ignore"):
        if library == "scipy":
            out = scipy.special.softmax(t, axis=-1) @ v
            lse = scipy.special.logsumexp(t, axis=-1)
        else:
            out = (torch.softmax(torch.from_numpy(t), -1) @ torch.from_numpy(v)).numpy()
            lse = torch.logsumexp(torch.from_numpy(t), -1).numpy()
    empty = np.isneginf(lse)[..., None]  # there both say NaN, and this contract 0
    found = {"out": flat(np.where(empty, 0.0, out)), "lse": flat(lse)}
    assert disagreements(case, inputs, found, limits) == []


def _heads_dealt_in_turn(case, inputs):
    order = np.arange(case.num_heads) % case.num_kv_heads
    wrong = {name: inputs[name][:, order] for name in ("k", "v")}
    return dataclasses.replace(case, num_kv_heads=case.num_heads), {**inputs, **wrong}


def _without_sink(case, inputs):
    return case, {name: x for name, x in inputs.items() if name != "sink"}


def _bias_of_the_next_key(case, inputs):
    return case, {**inputs, "bias": np.roll(inputs["bias"], 1, axis=-1)}


def _all_offsets_the_first(case, inputs):
    return case, {**inputs, "q_offset": np.full_like(inputs["q_offset"], inputs["q_offset"][0])}


def _fields(**changes):
    return lambda case, inputs: (dataclasses.replace(case, **changes), inputs)


MISTAKES = {
    "causal mask one key late": ("wide", _fields(q_offset=7)),
    "causal mask one key early": ("tall", _fields(q_offset=-6)),
    "causal mask in the upper left corner": ("wide", _fields(q_offset=0)),
    "window without its left end": ("window", _fields(window_left=1)),
    "window past its left end": ("behind", _fields(window_left=3)),
    "window without its right end": ("window", _fields(window_right=0)),
    "no softcap": ("softcap", _fields(softcap=None)),
    "softcap on the unscaled score": ("softcap", _fields(softcap=1.5 / 0.7, softmax_scale=1.0)),
    "scale 1 / head_dim": ("plain", _fields(softmax_scale=0.125)),
    "scale off by one float64": ("plain", _fields(softmax_scale=np.nextafter(8**-0.5, 1))),
    "key heads dealt in turn": ("groups", _heads_dealt_in_turn),
    "sink left out": ("sink", _without_sink),
    "bias of the next key": ("bias", _bias_of_the_next_key),
    "one offset for all sequences": ("offsets", _all_offsets_the_first),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_noticed(mistake):
    name, change = MISTAKES[mistake]
    case, inputs = call(**SETTINGS[name] | {"hidden": "finite"})
    found = attention_mpmath.attention(*change(case, inputs))
    assert disagreements(case, inputs, found, mpmath_limits_of(problem_of(case, inputs)))
    if "float64" not in mistake:  # which float64 itself cannot tell
        wrong = float64(problem_of(*change(case, inputs)))
        assert disagreements(case, inputs, wrong, float64_limits(problem_of(case, inputs)))


@pytest.mark.parametrize("output", OUTPUTS)
def test_the_float64_limit_notices_an_error_of_one_part_in_2_to_the_43(output):
    case, inputs = call(**SETTINGS["plain"])
    p = problem_of(case, inputs)
    for index in range(6):
        found = float64(p)
        found[output][index] *= 1 + 2.0**-43
        assert disagreements(case, inputs, found, float64_limits(p)) == [(output, index)]
