"""Merging partial states around a ring: no simulated merge beyond its bound, no term idle."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from simulated_merge import PATTERNS, Kernel

from tightrope.budget import Budget
from tightrope.formats import FORMATS
from tightrope.oracles.ring_attention import CONTRACT, RingAttentionCase
from tightrope.oracles.ring_attention_budget import STAGES, budget
from tightrope.oracles.ring_attention_chain import chained
from tightrope.oracles.ring_attention_merges import Merging, in_any_order
from tightrope.oracles.ring_attention_states import BLOCKS, MERGES, STORED, WEIGHTS, State, merged

HALF = FORMATS["bfloat16"]
# name -> (b, a): what outs and lses of the blocks are off
ERRORS = {
    "none": (0.0, 0.0),
    "of outs": (2.0**-12, 0.0),
    "of lses": (0.0, 2.0**-14),
    "large": (2.0**-4, 0.25),
}
FLOAT64 = 2.0**-48  # of this file's merges, of values near 1
DATA = ("normal", "apart", "far", "ties", "some empty")


def states(kind, count, seed, off):
    """Blocks of 40 rows of 4 features, the exact out and lse of each, and its bounds."""
    rng = np.random.default_rng([seed, count, DATA.index(kind)])
    outs, lses = rng.standard_normal((count, 1, 40, 4)), 2.0 * rng.standard_normal((count, 1, 40))
    if kind == "apart":
        lses *= 20.0
    if kind == "far":
        lses -= rng.choice([0.0, 86.0, 88.0, 100.0], lses.shape)
    if kind == "ties":
        lses = np.round(lses[:1] + 0 * lses)
    if kind == "some empty":
        lses = np.where(rng.random(lses.shape) < 0.4, -np.inf, lses)
    # multiples of 2^-12: what is pushed is a float32 too
    outs, lses = (np.where(x > -np.inf, np.rint(x * 4096.0) / 4096.0, x) for x in (outs, lses))
    b, a = off
    return [
        State(o, l, {BLOCKS: np.full(o.shape, b)}, {BLOCKS: np.where(l > -np.inf, a, 0.0)})
        for o, l in zip(outs, lses, strict=True)
    ]


def exact(given):
    outs, lses = (np.stack([getattr(s, n) for s in given]) for n in ("out", "lse"))
    top = np.where(np.isfinite(lses.max(0)), lses.max(0), 0.0)
    weights = np.exp(lses - top)
    total = weights.sum(0)
    with np.errstate(divide="ignore"):
        lse = top + np.log(total)
    return (weights[..., None] * outs).sum(0) / np.where(total, total, 1.0)[..., None], lse


def pushed(given, pattern, rng):
    """outs and lses as kernels hold them: off by all that their bounds admit."""
    found = []
    for i, s in enumerate(given):
        sides = {"up": (1, 1), "down": (-1, -1), "by split": ((-1) ** i, (-1) ** i)}
        out, lse = sides.get(pattern, (1, (-1) ** i))
        if pattern == "random":
            out, lse = rng.choice([-1.0, 1.0], s.out.shape), rng.choice([-1.0, 1.0], s.lse.shape)
        if pattern == "outward":
            out = np.sign(s.out)
        found.append((s.out + out * s.total(), s.lse + lse * s.total_lse()))
    return found


def around(given, pattern, partial, seed=0):
    """(out, lse before its last rounding) of a ring whose every rounding is pushed."""
    kernel = Kernel(pattern, seed=seed)

    def kept(x):
        step = HALF.half_ulp(np.abs(x)) * (1 if pattern in (None, "up") else -1)
        return x + step if partial else x

    blocks = pushed(given, pattern, np.random.default_rng(seed))
    (out, lse), merged = blocks[0], np.zeros(given[0].lse.shape, bool)
    out, fresh = kept(out), merged
    for more, its in blocks[1:]:
        both = (np.stack([lse, its]) > -np.inf).all(0)
        out = np.where(fresh[..., None], kept(out), out)
        lse = np.where(merged & both, FORMATS["float32"].round(lse), lse)
        pair = np.stack([out, kept(more)]), np.stack([lse, its])
        new, its_lse = kernel.once(*pair, "division")
        first = pair[1][0] > -np.inf
        alone = np.where(first[..., None], pair[0][0], pair[0][1])
        out = np.where(both[..., None], new, alone)
        lse = np.where(both, its_lse, np.where(first, pair[1][0], pair[1][1]))
        merged, fresh = merged | both, both
    return out, lse


def share(found, truth, limit):
    live = np.isfinite(truth)
    off = np.abs(np.where(live, found, 0.0) - np.where(live, truth, 0.0))
    own = FLOAT64 * (1 + np.abs(np.where(live, truth, 0.0)))
    return float((np.maximum(off - own, 0.0) / np.maximum(limit, 1e-300)).max())


def merging(partial=None):
    return Merging.of({**STAGES, "partial": partial or "float32"}, "bfloat16")


def stressed(partial, terms=lambda s: s.total(), lse=lambda s: s.total_lse()):
    """Worst share of out and lse over data, ring lengths, errors and patterns."""
    worst = [0.0, 0.0]
    for kind, count, off in product(DATA, (2, 3, 6), ERRORS.values()):
        given = states(kind, count, 5, off)
        bound, truth = chained(given, merging(partial)), exact(given)
        for pattern in PATTERNS:
            found = around(given, pattern, partial)
            live = (truth[1] > -np.inf)[..., None]
            out = np.where(live, found[0], 0.0)
            worst[0] = max(worst[0], share(out, truth[0], np.where(live, terms(bound), 1.0)))
            worst[1] = max(worst[1], share(found[1], truth[1], lse(bound)))
    return worst


@pytest.mark.parametrize("partial", [None, "bfloat16"])
def test_no_ring_with_every_rounding_pushed_exceeds_its_bound(partial):
    out, lse = stressed(partial)
    assert 0.5 <= out <= 1
    assert 0.25 <= lse <= 1


@pytest.mark.parametrize("name", [BLOCKS, WEIGHTS, MERGES, STORED])
def test_every_term_of_out_is_missed(name):
    def without(state):
        return sum((t for n, t in state.e_out.items() if n != name), np.zeros(state.out.shape))

    assert stressed("bfloat16" if name == STORED else None, terms=without)[0] > 1


@pytest.mark.parametrize("name", [BLOCKS, MERGES])
def test_every_term_of_lse_is_missed(name):
    def without(state):
        return sum((t for n, t in state.e_lse.items() if n != name), np.zeros(state.lse.shape))

    assert stressed(None, lse=without)[1] > 1


@pytest.mark.parametrize("form", ["division", "normalised", "direct"])
@pytest.mark.parametrize("order", ["once", "chain", "tree"])
def test_no_merge_in_any_order_exceeds_what_strangers_are_granted(form, order):
    worst = 0.0
    for kind, count, off in product(DATA, (2, 5), ERRORS.values()):
        given = states(kind, count, 9, off)
        bound, truth = in_any_order(given, merging()), exact(given)
        for pattern in PATTERNS:
            blocks = pushed(given, pattern, np.random.default_rng(1))
            outs, lses = (np.stack(x) for x in zip(*blocks, strict=True))
            out, lse = Kernel(pattern).run(outs[:, 0], lses[:, 0], form, order)
            live = np.isfinite(truth[1][0])
            out = np.where(live[:, None], out, 0.0)
            worst = max(worst, share(out, truth[0][0], bound.total()[0]))
            assert share(lse, truth[1][0], bound.total_lse()[0]) <= 1
    assert 0 < worst <= 1


def turned(given, sign):
    """Worst share of `merged`'s bounds that an exact merge of states pushed to their ends spends.

    Lses go up where an element's own out is above the merged one and down where it is below, or
    the other way: what moves that element most. Each element has a row of its own for that.
    """
    bound, truth = merged(given), exact(given)
    found = np.zeros(truth[0].shape)
    for feature in range(found.shape[-1]):
        sides = [sign * np.sign(s.out[..., feature] - truth[0][..., feature]) for s in given]
        ends = [
            replace(s, out=s.out + sign * s.total(), lse=s.lse + side * s.total_lse())
            for s, side in zip(given, sides, strict=True)
        ]
        found[..., feature] = exact(ends)[0][..., feature]
    together = [replace(s, lse=s.lse + sign * s.total_lse()) for s in given]
    live = np.isfinite(truth[1])[..., None]
    off = np.abs(np.where(live, found - truth[0], 0.0)) - FLOAT64
    limit = np.where(live, bound.total(), 1.0)
    out = np.maximum(off, 0.0)[limit > 2.0**-40] / limit[limit > 2.0**-40]
    assert (off <= limit).all()
    return out, share(exact(together)[1], truth[1], bound.total_lse())


@pytest.mark.parametrize("off", [(2.0**-12, 2.0**-14), (0.0, 2.0**-14), (0.0, 0.25), (0.1, 2.0)])
@pytest.mark.parametrize("count", [2, 3, 8, 16])
def test_blocks_that_are_off_move_their_exact_merge_by_the_bound_and_no_more(count, off):
    for kind, sign in product(DATA, (1.0, -1.0)):
        out, lse = turned(states(kind, count, 3, off), sign)
        assert lse <= 1
        if off[1] < 0.01 and kind != "far":
            assert np.median(out) > 0.99
            assert lse > 0.99


def test_a_row_with_keys_of_one_block_is_that_block():
    one, none = states("normal", 2, 1, ERRORS["of outs"])
    none = State(none.out, np.full(none.lse.shape, -np.inf), none.e_out, none.e_lse)
    for given in ([one, none], [none, one], [none, one, none]):
        found = chained(given, merging())
        assert (found.out == one.out).all()
        assert (found.total() == one.total()).all()
        assert (found.lse == one.lse).all()


def test_states_in_sixteen_bits_grow_with_the_ring():
    """Keys seen alike: P is exact, and what is left is the merging."""
    case = {"dtype": "bfloat16", "out_dtype": "float32", "seqlen_q": 8, "seqlen_k": 64,
            "head_dim": 16, "data": "repeated_keys", "data_v": "normal"}  # fmt: skip
    shares = {}
    for partial, ranks in product(("float32", "bfloat16"), (2, 4, 8)):
        each = RingAttentionCase(**case, ranks=ranks)
        arithmetic = {**STAGES, "merge_order": "ring", "block_k": 16, "partial": partial}
        spent: Budget = budget(each, CONTRACT.inputs(each), arithmetic)["out"]
        shares[partial, ranks] = float(np.median(spent.bound))
    wide = [shares["bfloat16", n] for n in (2, 4, 8)]
    assert wide == sorted(wide)
    assert wide[2] > 1.5 * wide[0]
    single = [shares["float32", n] for n in (2, 8)]
    assert single[1] - single[0] < (wide[2] - wide[0]) / 64


@pytest.mark.parametrize(
    ("stage", "value"), [("merge_order", "tree"), ("partial", "tf32"), ("exp_ulp", 0.1)]
)
def test_a_stage_that_means_nothing_is_refused(stage, value):
    case = RingAttentionCase()
    with pytest.raises(ValueError, match=stage):
        budget(case, CONTRACT.inputs(case), {**STAGES, stage: value})
