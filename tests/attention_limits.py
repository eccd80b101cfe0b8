"""Small attention calls, and how far two right evaluations of one may lie apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np

from tightrope.formats import Array, stored, widen
from tightrope.oracles import attention_exact, attention_mpmath
from tightrope.oracles.attention_cases import AttentionCase
from tightrope.oracles.attention_problem import Problem, attend, logits, problem, visible

OUTPUTS = ("out", "lse")
U = 2.0**-53
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"dtype": "float32"},
    "wide": {"causal": True, "seqlen_q": 3, "seqlen_k": 9, "q_offset": 6, "dtype": "bfloat16"},
    "tall": {"causal": True, "seqlen_q": 9, "seqlen_k": 4, "q_offset": -5},
    "behind": {"seqlen_q": 3, "window_left": 2, "q_offset": 5, "dtype": "float32"},
    "window": {"window_left": 2, "window_right": 1, "seqlen_q": 9, "seqlen_k": 5},
    "self": {"window_left": 0, "window_right": 0, "q_offset": 1, "hidden": "nan"},
    "far": {"causal": True, "q_offset": 40, "window_left": 36, "hidden": "inf"},
    "softcap": {"softcap": 1.5, "softmax_scale": 0.7, "dtype": "bfloat16"},
    "bias": {"bias": "full", "num_heads": 2, "causal": True, "q_offset": 2},
    "capped bias": {"bias": "query", "softcap": 2.0, "bias_dtype": "input", "dtype": "bfloat16"},
    "sink": {"sink": True, "causal": True, "q_offset": -2, "num_heads": 2},
    "groups": {"batch": 2, "num_heads": 4, "num_kv_heads": 2, "seqlen_q": 3, "dtype": "float32"},
    "offsets": {"batch": 3, "offsets": "tensor", "causal": True, "q_offset": 1, "hidden": "nan"},
    "no keys": {"seqlen_k": 0, "sink": True},
    "no queries": {"seqlen_q": 0},
    "everything": {
        **{"batch": 2, "num_heads": 4, "num_kv_heads": 2, "causal": True, "q_offset": 1},
        **{"window_left": 3, "softcap": 3.0, "bias": "full", "sink": True, "offsets": "tensor"},
    },
}


def call(**settings: Any) -> tuple[AttentionCase, dict[str, Array]]:
    """A case and its inputs; six queries, seven keys and normal values if not said otherwise."""
    sizes = {"seqlen_q": 6, "seqlen_k": 7, "head_dim": 8, "head_dim_v": 5}
    case = AttentionCase(**{**sizes, **settings})
    rng = np.random.default_rng(case.seed)
    keys = (case.batch, case.num_kv_heads, case.seqlen_k)
    shapes = {"q": (case.batch, case.num_heads, case.seqlen_q, case.head_dim)}
    shapes |= {"k": (*keys, case.head_dim), "v": (*keys, case.head_dim_v)}
    found = {name: stored(1.5 * rng.standard_normal(s), case.dtype) for name, s in shapes.items()}
    dtype = case.dtype if case.bias_dtype == "input" else case.bias_dtype
    if case.bias != "none":
        wide = {"full": case.seqlen_k, "query": 1}[case.bias]
        bias = rng.standard_normal((case.batch, 1, case.seqlen_q, wide))
        found["bias"] = stored(np.where(rng.random(bias.shape) < 0.3, -np.inf, bias), dtype)
    if case.sink:
        found["sink"] = stored(rng.standard_normal(case.num_heads), dtype)
    if case.offsets == "tensor":
        found["q_offset"] = np.int32(case.q_offset - 2 * np.arange(case.batch))
    if case.hidden != "finite":
        nobody = ~by_index(case, found).any(axis=-2)
        for x in (found["k"], found["v"]):
            x[np.broadcast_to(nobody[..., None], x.shape)] = float(case.hidden)
    return case, found


def by_index(case: AttentionCase, inputs: Mapping[str, Array]) -> Array:
    """(batch, 1, seqlen_q, seqlen_k): what rows see by their index."""
    rule = case.causal, case.window_left, case.window_right
    offsets = np.broadcast_to(inputs.get("q_offset", case.q_offset), (case.batch,)).tolist()
    return np.stack([visible(case.seqlen_q, case.seqlen_k, o, *rule) for o in offsets])[:, None]


def problem_of(case: AttentionCase, inputs: Mapping[str, Array]) -> Problem:
    return problem(
        *(inputs[name] for name in "qkv"), by_index(case, inputs), dtype=case.dtype,
        out_dtype="float32", softmax_scale=case.softmax_scale, softcap=case.softcap,
        bias=inputs.get("bias"), sink=inputs.get("sink"),
    )  # fmt: skip


def with_sink(p: Problem) -> tuple[Array, Array]:
    """Logits and values where the sink is one more key, with a value of 0."""
    t, v = logits(p), p.v
    if p.sink is not None:
        t = np.concatenate([t, np.broadcast_to(p.sink[:, None, None], (*t.shape[:2], 1))], axis=-1)
        v = np.concatenate([v, np.zeros((len(v), 1, v.shape[2]))], axis=1)
    return t, v


def float64_limits(p: Problem, blocks: int = 1) -> dict[str, Array]:
    """How far a float64 evaluation, in any order and in `blocks` blocks, may be off.

    A first-order running bound (Higham, Accuracy and Stability, chapters 3 and 4). u = 2**-53,
    e_t: products and sum in any order, scale, softcap with a tanh within 2 ulp (its slope is at
    most 1), bias. A weight e^(t - M): the argument's rounding, exp within 1 ulp, and for every
    block a rescale (exp and product; its arguments' roundings telescope). Errors of the weights
    enter the output through |v - out|; n + 4 covers the sums, and dividing before or after them.
    """
    t, v = with_sink(p)
    width, n = p.q.shape[-1], t.shape[-1]
    score = p.softmax_scale * np.abs(p.q) @ np.abs(p.k).swapaxes(-1, -2)
    bias = 0.0 if p.bias is None else np.abs(p.bias)
    e_t = U * ((width + 9) * score + 2 * bias)
    e_t = np.concatenate([e_t, np.zeros((*t.shape[:2], n - e_t.shape[-1]))], axis=-1)
    top = t.max(axis=-1, initial=-np.inf, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    x = np.where(np.isfinite(t), t - top, 0.0)
    weight = np.where(np.isfinite(t), np.exp(x), 0.0)
    total = weight.sum(axis=-1, keepdims=True)
    weight = weight / np.where(total == 0, 1.0, total)
    eps = np.where(np.isfinite(t), np.expm1(e_t + U * (2 * np.abs(x) + 3 * blocks + 3)), 0.0)
    sums, wrong = (n + 4 + blocks) * U, (weight * eps).sum(axis=-1, keepdims=True)
    out = weight @ v
    spread = np.abs(v[:, None] - out[:, :, None])
    e_out = np.einsum("gij,gijf->gif", weight * eps, spread)
    e_out = e_out + sums * (weight @ np.abs(v) + np.abs(out))
    e_out = (
        e_out / (1 - wrong - sums) + 2 * U * np.abs(out) + n * 2.0**-1074 * np.abs(v).max(initial=0)
    )
    large = np.abs(top) + 2 * np.abs(np.log(np.where(total == 0, 1.0, total)))
    e_lse = -np.log1p(-wrong - sums) + 4 * U * large
    return {
        "out": e_out,
        "lse": e_lse[..., 0],
    }  # second order: below 2**-30 of it, and of no weight


def mpmath_limits(largest: float, keys: int, value: float) -> dict[str, Fraction]:
    """How far mpmath with 60 digits may be off; largest bounds sum |scale q k| + |bias| + |sink|
    over any key, value any |v|.

    With e one ulp of 60 digits: a logit by 12 e largest (rotated features, fdot, scale and bias
    round once each, tanh and its neighbours less than ten times), a weight by another 2 e largest
    and 5 e a key, a quotient by twice as much.
    """
    with mpmath.workdps(attention_mpmath.DIGITS):
        ulp = Fraction(1, 1 << (mpmath.mp.prec - 1))
    weights = 3 * (14 * Fraction(largest) + 5 * keys + 20) * ulp
    return {"out": weights * Fraction(value), "lse": weights}


def mpmath_limits_of(p: Problem) -> dict[str, Fraction]:
    bias, sink = (np.zeros(1) if x is None else np.abs(x) for x in (p.bias, p.sink))
    score = p.softmax_scale * np.abs(p.q) @ np.abs(p.k).swapaxes(-1, -2)
    largest = sum(float(x.max(initial=0.0)) for x in (score, bias, sink))
    return mpmath_limits(largest, p.k.shape[1] + 1, float(np.abs(p.v).max(initial=0.0)))


def rational(x: Any) -> Fraction | None:
    """An mpf as it is; None for -inf."""
    if x == -mpmath.inf:
        return None
    sign, mantissa, exponent, _ = x._mpf_
    return (-1) ** sign * int(mantissa) * Fraction(2) ** exponent


def apart(
    found: Sequence[Any], truth: Sequence[Fraction | None], limits: Array | Fraction
) -> list[int]:
    """Flat indices where `found`, floats or mpf, is further from `truth` than its limit."""
    assert len(found) == len(truth)
    each = [limits] * len(truth) if isinstance(limits, Fraction) else limits.ravel().tolist()
    return [
        i
        for i, (x, value, limit) in enumerate(zip(found, truth, each, strict=True))
        if not _near(x, value, Fraction(limit))
    ]


def _near(x: Any, value: Fraction | None, limit: Fraction) -> bool:
    if value is None or not mpmath.isfinite(x):
        return value is None and x == -mpmath.inf
    mine = Fraction(x) if isinstance(x, float) else rational(x)
    assert mine is not None
    return abs(mine - value) <= limit + abs(value) / 2**100  # what ball arithmetic leaves open


def tiled(
    q: Array, k: Array, v: Array, seen: Array, scale: float, block: int, rescale: bool = True
) -> tuple[Array, Array]:
    """The algorithm itself in float64, one head: a running maximum, sum and output over blocks.

    q (seqlen_q, head_dim), k, v (seqlen_k, ...), seen (seqlen_q, seqlen_k). rescale=False leaves
    out what makes it right.
    """
    top, total = np.full(len(q), -np.inf), np.zeros(len(q))
    out = np.zeros((len(q), v.shape[1]))
    for start in range(0, len(k), block):
        keys = slice(start, start + block)
        t = np.where(seen[:, keys], q @ k[keys].T * scale, -np.inf)
        new = np.maximum(top, t.max(axis=1))
        shift = np.where(np.isfinite(new), new, 0.0)
        fade = np.exp(top - shift) if rescale else np.ones(len(q))
        weights = np.exp(t - shift[:, None])
        total = fade * total + weights.sum(axis=1)
        out = fade[:, None] * out + weights @ v[keys]
        top = new
    with np.errstate(divide="ignore"):
        return out / np.where(total == 0, 1.0, total)[:, None], top + np.log(total)


def flat(x: Array | Iterable[Any]) -> list[float]:
    return widen(np.asarray(x)).ravel().tolist()


def exact(case: AttentionCase, inputs: Mapping[str, Array], output: str) -> list[Fraction | None]:
    """Every element of an output in ball arithmetic."""
    size = case.batch * case.num_heads * case.seqlen_q
    count = size * (case.head_dim_v if output == "out" else 1)
    return attention_exact.exact(case, inputs, output, range(count))


def disagreements(
    case: AttentionCase, inputs: Mapping[str, Array], found: Mapping[str, Any],
    limits: Mapping[str, Any],
) -> list[tuple[str, int]]:  # fmt: skip
    """(output, flat index) of all elements of `found` that are not the exact ones."""
    return [
        (output, i)
        for output in OUTPUTS
        for i in apart(found[output], exact(case, inputs, output), limits[output])
    ]


def float64(p: Problem) -> dict[str, list[float]]:
    return {name: flat(x) for name, x in zip(OUTPUTS, attend(p), strict=True)}


def check_layers(case: AttentionCase, inputs: Mapping[str, Array]) -> None:
    """Ball arithmetic, mpmath and float64 agree on every element."""
    recurrence, p = attention_mpmath.attention(case, inputs), problem_of(case, inputs)
    assert disagreements(case, inputs, recurrence, mpmath_limits_of(p)) == []
    assert disagreements(case, inputs, float64(p), float64_limits(p)) == []
