"""Masks: a hidden key has no influence, a visible one has; indices alone decide which is which."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from tightrope import holds_for
from tightrope.budget import Violation
from tightrope.compare import budgets, part, reach, same_value
from tightrope.formats import stored, widen
from tightrope.oracles.attention_inputs import stated

PLAIN = {
    "layout_k": ("contiguous",), "layout_v": ("contiguous",), "hidden": ("finite",),
}  # fmt: skip
HUGE = {"float16": 3e4, "bfloat16": 1e6, "float32": 1e6}


def _key(case):
    """A key, as often as not at the edge of what some row sees."""
    keys = st.integers(0, max(case.seqlen_k - 1, 0))
    edges = {n + case.q_offset for n in (0, 1, case.seqlen_q - 2, case.seqlen_q - 1)}
    ends = {case.seqlen_k - 1, case.seqlen_k - 2, 0, 15, 16}
    reaches = [r for r in (0, case.window_left, case.window_right) if r is not None]
    near = {e + s * r + d for e in edges for r in reaches for s in (-1, 1) for d in (-1, 0, 1)}
    inside = sorted(n for n in near | ends if 0 <= n < case.seqlen_k)
    return st.sampled_from(inside) | keys if inside else keys


def seen_by(case, inputs):
    """(batch, num_heads, seqlen_q, seqlen_k) bool."""
    shape = (case.batch, case.num_heads, case.seqlen_q, case.seqlen_k)
    return stated(case, inputs).visible.reshape(shape)


@holds_for("attention", "pope_attention", limits=PLAIN, key=_key)
def test_a_hidden_key_has_no_influence(impl, case, key):
    """Demands (bitwise): rows that do not see a key are the same whatever finite numbers it holds.

    Kills: masks off by one, aligned to the wrong corner, applied by a finite number; scores that
    are masked after the maximum was taken.
    """
    if not case.seqlen_k:
        return
    inputs = impl.contract.inputs(case)
    loud = changed(inputs, key, np.random.default_rng([case.seed, key]))
    before, after = impl(case, inputs), impl(case, loud)
    blind = ~seen_by(case, inputs)[..., key]
    for name in impl.outputs:
        rows = blind[..., None] if name == "out" else blind
        differ = np.argwhere(rows & (_bits(before[name]) != _bits(after[name])))
        if len(differ):
            at = tuple(int(i) for i in differ[0])
            raise Violation(
                f"{name}{list(at)} does not see key {key}, but changes with it, from "
                f"{widen(before[name])[at]:.9g} to {widen(after[name])[at]:.9g}; "
                f"{len(differ)} elements do"
            )


def changed(inputs, key, rng):
    """The inputs with k and v of one key replaced by large numbers."""
    loud = dict(inputs)
    for name in ("k", "v"):
        array = inputs[name].copy()
        size = HUGE[array.dtype.name] if name == "v" else 100.0
        noise = size * rng.choice([-1.0, 1.0], array[:, :, key].shape)
        array[:, :, key] = stored(noise, array.dtype.name)
        loud[name] = array
    return loud


def _bits(array):
    return array.view(np.dtype(f"u{array.dtype.itemsize}"))


@holds_for("attention", "pope_attention", limits=PLAIN, returns=("out",), key=_key)
def test_a_visible_key_has_influence(impl, case, key):
    """Demands: where a key's value moves the exact result by more than both budgets, out moves.

    Kills: keys that no tile reads (the last partial one, a window one too short), a first path for
    one query that forgets part of the mask.
    """
    if not case.seqlen_k:
        return
    inputs = impl.contract.inputs(case)
    v = widen(inputs["v"]).copy()
    v[:, :, key] += np.where(v[:, :, key] < 0, -4.0, 4.0)
    moved = {**inputs, "v": stored(v, case.dtype)}
    before, after = impl(case, inputs)["out"], impl(case, moved)["out"]
    first, second = budgets(impl, case, inputs)["out"], budgets(impl, case, moved)["out"]
    apart = np.abs(first.expected - second.expected)
    must = apart > 2 * (reach(first) + reach(second))
    same = np.argwhere(must & (widen(before) == widen(after)))
    if len(same):
        at = tuple(int(i) for i in same[0])
        raise Violation(
            f"out{list(at)} sees key {key}, whose value moves it by {apart[at]:.3g}, but does not "
            f"change; {len(same)} elements do not"
        )


def _row(case):
    return st.integers(0, max(case.seqlen_q - 1, 0))


CAUSAL = {**PLAIN, "causal": (True,), "offsets": ("int",), "bias": ("none", "key", "alibi")}
CAUSAL |= {"layout_q": ("contiguous",), "layout_bias": ("contiguous",)}


ANY_LENGTH = {"seqlen_q": (1, 2, 5, 17), "seqlen_k": (0, 1, 2, 5, 17, 33)}


@holds_for("attention", limits=CAUSAL, needs={**ANY_LENGTH, "empty_rows": (True,)}, row=_row)
def test_a_causal_row_is_the_last_row_of_its_prefix(impl, case, row):
    """Demands: rows up to one, with the keys up to its last, equal those rows of the whole call.

    Kills: a causal mask aligned to the wrong corner, results that depend on later tokens.
    """
    if not case.seqlen_q:
        return
    inputs = impl.contract.inputs(case)
    keys = min(max(row + 1 + case.q_offset, 0), case.seqlen_k)
    short = replace(case, seqlen_q=row + 1, seqlen_k=keys, empty_rows=True)
    prefix = {**inputs, "q": np.ascontiguousarray(inputs["q"][:, :, : row + 1])}
    prefix |= {n: np.ascontiguousarray(inputs[n][:, :, :keys]) for n in ("k", "v")}
    if "bias" in inputs:
        prefix["bias"] = np.ascontiguousarray(inputs["bias"][..., :keys])
    whole, alone = impl(case, inputs), impl(short, prefix)
    first, second = budgets(impl, case, inputs), budgets(impl, short, prefix)
    story = "a causal row must not see later tokens"
    for name in impl.outputs:
        at = np.s_[:, :, : row + 1]
        rows = part(first[name], at)
        same_value(name, whole[name][at], alone[name], rows, story, second[name])
