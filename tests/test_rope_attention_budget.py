"""The rotation in the budget of `rope_attention`: never exceeded, needed, and replayed."""

from __future__ import annotations

import numpy as np
import pytest

from tightrope import Arithmetic
from tightrope.formats import FORMATS, stored, widen
from tightrope.oracles.rope_attention import CONTRACT, RopeAttentionCase
from tightrope.oracles.rope_attention_alternatives import right
from tightrope.oracles.rope_attention_budget import STAGES, rotated_scores
from tightrope.oracles.rope_attention_inputs import finite_keys
from tightrope.verdict import judge

FLOAT32 = FORMATS["float32"]
BLOCK = 64
LOG2E, LN2 = (float(np.float32(x)) for x in (1 / np.log(2.0), np.log(2.0)))
STRANGER = Arithmetic().over(STAGES)
DECLARED = {"logits": "scaled", "block_k": BLOCK, "lse": "base2", "contraction": "none"}
SIZE = {
    **{"batch": 2, "num_heads": 4, "num_kv_heads": 2, "seqlen_q": 5, "seqlen_k": 40},
    **{"head_dim": 40, "head_dim_v": 16, "rotary_dim": 32, "out_dtype": "float32"},
    **{"table_rows": 1024, "positions": "per_batch", "causal": True, "q_offset": 35},
}


def case(seed=0, **fields):
    given = {**SIZE, "interleaved": bool(seed % 2), **fields}
    out_dtype = "input" if given.get("dtype") == "float32" else given["out_dtype"]
    return RopeAttentionCase(**{**given, "out_dtype": out_dtype}, seed=seed)


def nearest(x, rng=None):
    return FLOAT32.round(x)


def pushed(x, rng):
    """A full half ulp away, unless the result is exact."""
    sign = rng.choice([-1.0, 1.0], x.shape)
    return np.where(FLOAT32.round(x) == x, x, x + sign * FLOAT32.half_ulp(x))


def turned(c, inputs, name, kept, step, fused=False, seed=0):
    """Rotated q or k as a kernel holds it, (batch, heads, length, head_dim)."""
    rng = np.random.default_rng(seed)
    x = widen(inputs["q"] if name == "q" else finite_keys(c, inputs))
    rows = np.broadcast_to(inputs[f"{name}_positions"], (c.batch, x.shape[2]))
    cos, sin = (widen(inputs[t])[rows][:, None] for t in ("cos", "sin"))
    half, y = c.rotary_dim // 2, x.copy()
    one = np.arange(half) * 2 if c.interleaved else np.arange(half)
    two = one + (1 if c.interleaved else half)
    a, b = x[..., one], x[..., two]
    first, second = (lambda z: z) if fused else (lambda z: step(z, rng)), lambda z: step(z, rng)
    y[..., one] = step(first(a * cos) - second(b * sin), rng)
    y[..., two] = step(first(b * cos) + second(a * sin), rng)
    return FORMATS[kept].round(y)


def dots(c, q, k, step, seed=0):
    """S in float32, feature after feature; (groups, seqlen_q, seqlen_k)."""
    rng = np.random.default_rng(seed)
    k = np.repeat(k, c.num_heads // c.num_kv_heads, 1)
    q, k = (x.reshape(-1, *x.shape[2:]) for x in (q, k))
    total = q[..., :, None, 0] * k[..., None, :, 0]
    for d in range(1, q.shape[-1]):
        total = step(total + q[..., :, None, d] * k[..., None, :, d], rng)
    return step(total, rng)


def kernel(c, inputs, q, k):
    """out and lse of one block of keys from rotated q and k, roundings to nearest."""
    p = right(c, inputs)
    s = dots(c, q, k, nearest)
    factor = float(np.float32(p.softmax_scale / np.log(2.0)))
    s = np.where(p.visible, s, -np.inf)
    top = FLOAT32.round(s.max(-1, keepdims=True) * factor)
    weights = FLOAT32.round(np.exp2(np.where(p.visible, FLOAT32.round(s * factor - top), -np.inf)))
    total = FLOAT32.round(weights.sum(-1))
    acc = FLOAT32.round(FORMATS[c.dtype].round(weights) @ p.v)
    out = FLOAT32.round(acc / total[..., None])
    lse = FLOAT32.round((top[..., 0] + FLOAT32.round(np.log2(total))) * LN2)
    shape = (c.batch, c.num_heads, c.seqlen_q)
    return {
        "out": stored(out.reshape(*shape, -1), p.out_dtype),
        "lse": stored(lse.reshape(shape), "float32"),
    }


def exceeded(found, scores, p):
    """(worst |S - centre| / error, the same for T1) over visible keys."""
    shares = []
    for centre, error in (
        (scores.centre, scores.error), (scores.replay_centre, scores.replay_error),
    ):  # fmt: skip
        if centre is not None:
            off = np.maximum(np.abs(found - centre) - scores.own, 0.0)
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = np.where(off == 0, 0.0, off / error)
            shares.append(float(ratio[p.visible].max(initial=0.0)))
    return shares


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("rotated", ["input", "float32"])
@pytest.mark.parametrize("data", ["normal", "mixed_scales", "cancellation", "few_bits"])
def test_no_rotation_exceeds_its_bound(dtype, rotated, data):
    kept = "float32" if rotated == "float32" else dtype
    for seed in range(4):
        c = case(seed, dtype=dtype, data=data, table_dtype=("float32", "input")[seed // 2])
        inputs = CONTRACT.inputs(c)
        p = right(c, inputs)
        for step, fused in ((nearest, False), (nearest, True), (pushed, False), (pushed, True)):
            given = {**STAGES, "rotated": rotated, "contraction": "any"}
            q, k = (turned(c, inputs, n, kept, step, fused, seed) for n in ("q", "k"))
            scores = rotated_scores(c, inputs, p, given)
            assert max(exceeded(dots(c, q, k, step, seed), scores, p)) <= 1
        q, k = (turned(c, inputs, n, kept, nearest) for n in ("q", "k"))
        scores = rotated_scores(c, inputs, p, {**given, "contraction": "none"})
        assert max(exceeded(dots(c, q, k, pushed, seed), scores, p)) <= 1


@pytest.mark.parametrize(("dtype", "rotated"), [("bfloat16", "input"), ("float16", "input")])
def test_the_bound_without_the_rotation_is_exceeded(dtype, rotated):
    c = case(dtype=dtype)
    inputs = CONTRACT.inputs(c)
    p = right(c, inputs)
    q, k = (turned(c, inputs, n, dtype, nearest) for n in ("q", "k"))
    scores = rotated_scores(c, inputs, p, {**STAGES, "rotated": rotated})
    plain = rotated_scores(c, inputs, p, {**STAGES, "rotated": "float32"})
    off = np.abs(dots(c, q, k, nearest) - scores.centre)
    assert (off > plain.error)[p.visible].any()


def test_replayed_scores_are_far_tighter_than_the_worst_case():
    """Within the rounding of a dot product of 40 features; the worst case adds two of bfloat16."""
    for contraction in ("none", "any"):
        c = case(dtype="bfloat16", seed=3)
        inputs = CONTRACT.inputs(c)
        p = right(c, inputs)
        found = rotated_scores(c, inputs, p, {**STAGES, "contraction": contraction})
        ratio = (found.error / found.replay_error)[p.visible]
        assert np.median(ratio) > 50


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_right_kernels_pass_and_other_roundings_do_not(dtype):
    told = {"rotated in float32": 0, "k not rounded": 0}
    for seed in range(6):
        c = case(seed, dtype=dtype)
        inputs = CONTRACT.inputs(c)
        declared = CONTRACT.budget(c, inputs, Arithmetic(**DECLARED).over(STAGES))
        stranger = CONTRACT.budget(c, inputs, STRANGER)
        held = {kept: [turned(c, inputs, n, kept, nearest) for n in ("q", "k")]
                for kept in (dtype, "float32")}  # fmt: skip
        outputs = kernel(c, inputs, *held[dtype])
        for name, actual in outputs.items():
            assert judge(name, actual, declared[name]).ok, name
            assert judge(name, actual, stranger[name]).ok, name
        wrong = {
            "rotated in float32": held["float32"],
            "k not rounded": (held[dtype][0], held["float32"][1]),
        }
        for mistake, (q, k) in wrong.items():
            outputs = kernel(c, inputs, q, k)
            assert judge("out", outputs["out"], stranger["out"]).ok
            told[mistake] += not declared["out"].accepts(outputs["out"])
    expected = 0 if dtype == "float32" else 6  # float32 has nothing to round
    assert set(told.values()) == {expected}


@pytest.mark.parametrize(
    ("stage", "value"), [("rotated", "float16"), ("contraction", "some"), ("dot", "exact")]
)
def test_an_unknown_stage_value_is_refused(stage, value):
    c = case()
    with pytest.raises(ValueError, match=stage):
        CONTRACT.budget(c, CONTRACT.inputs(c), Arithmetic(**{stage: value}).over(STAGES))
