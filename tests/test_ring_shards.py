"""Who holds what: shards partition the sequence, masks and rotations go by the whole."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from tightrope.device import current
from tightrope.implementation import bundled
from tightrope.oracles import attention_mpmath, merge_attention_mpmath, ring_attention_mpmath
from tightrope.oracles.attention_problem import visible
from tightrope.oracles.ring_attention import CONTRACT, RingAttentionCase
from tightrope.parts import of_keys
from tightrope.ring_pool import gathered, shard
from tightrope.ring_shards import SCHEMES, held, owners, rows, spans, touches


@pytest.mark.parametrize("scheme", SCHEMES)
def test_shards_are_a_partition_in_runs_of_like_length(scheme):
    for length, ranks in product((0, 1, 2, 3, 7, 16, 33), (1, 2, 3, 4, 5)):
        mine = [rows(length, ranks, scheme, rank) for rank in range(ranks)]
        assert sorted(row for each in mine for row in each) == list(range(length))
        assert [len(each) for each in mine] == [held(length, ranks, scheme, r)
                                                for r in range(ranks)]  # fmt: skip
        sizes = [b - a for r in range(ranks) for a, b in spans(length, ranks, scheme, r)]
        assert max(sizes) - min(sizes) <= 1


def test_a_zigzag_rank_holds_a_run_of_each_half():
    assert spans(16, 2, "zigzag", 0) == ((0, 4), (12, 16))
    assert spans(16, 2, "zigzag", 1) == ((4, 8), (8, 12))
    with pytest.raises(ValueError, match=r"scheme: expected 'contiguous' or 'zigzag', got 'brick'"):
        spans(16, 2, "brick", 0)


def test_a_rank_sees_its_own_keys_first_and_each_once():
    assert list(owners(4, 1)) == [1, 0, 3, 2]
    assert all(sorted(owners(5, r)) == list(range(5)) for r in range(5))


def test_touches_is_whether_any_row_sees_a_key():
    masks = [(c, w) for c in (False, True) for w in ((None, None), (0, 0), (2, None), (None, 1))]
    for (causal, window), offset in product(masks, range(-6, 7)):
        seen = visible(5, 6, offset, causal, *window)
        for a, b, c, d in product(range(0, 6, 2), range(1, 6, 2), range(0, 6, 3), range(0, 7, 2)):
            found = touches((a, b), (c, d), offset, causal, window)
            assert found == bool(seen[a:b, c:d].any()), (a, b, c, d, causal, window, offset)


@pytest.mark.parametrize(("ranks", "scheme"), [(3, "contiguous"), (2, "zigzag"), (4, "zigzag")])
def test_shards_rotated_by_their_global_positions_are_the_whole_rotated(ranks, scheme):
    rope = bundled("rope", "triton").fn
    rng = torch.Generator().manual_seed(ranks)
    home = torch.device(current().kind)
    q = torch.randn(23, 2, 16, generator=rng).half().to(home)
    angles = torch.randn(23, 8, generator=rng).to(home)
    cos, sin = angles.cos(), angles.sin()
    whole, _ = rope(q, q, cos, sin, torch.arange(23, device=home), interleaved=False)

    def rotated(positions):
        shards = [q[rows(23, ranks, scheme, r)] for r in range(ranks)]
        turned = [rope(x, x, cos, sin, positions(r, len(x)).to(home), interleaved=False)[0]
                  for r, x in enumerate(shards)]  # fmt: skip
        return gathered([x.transpose(0, 1)[None] for x in turned], scheme)[0].transpose(0, 1)

    right = rotated(lambda r, n: torch.tensor(rows(23, ranks, scheme, r)))
    assert torch.equal(right, whole)
    assert not torch.equal(rotated(lambda r, n: torch.arange(n)), whole)


def test_gathering_undoes_sharding():
    x = torch.arange(2 * 3 * 11 * 2).reshape(2, 3, 11, 2)
    for ranks, scheme in product((1, 2, 3, 4), SCHEMES):
        assert torch.equal(gathered([shard(x, ranks, scheme, r) for r in range(ranks)], scheme), x)


CASE = RingAttentionCase(
    ranks=3, scheme="zigzag", num_heads=2, seqlen_q=4, seqlen_k=13, head_dim=8, head_dim_v=8,
    causal=True, q_offset=7, window_left=9, dtype="bfloat16", softcap=5.0,
)  # fmt: skip


def test_the_whole_is_what_its_runs_of_keys_merge_to_in_mpmath():
    inputs = CONTRACT.inputs(CASE)
    whole = ring_attention_mpmath.ring_attention(CASE, inputs)
    runs = [s for r in range(CASE.ranks) for s in spans(13, CASE.ranks, CASE.scheme, r)]
    outs, lses = [], []
    for start, stop in runs:
        part = RingAttentionCase(**{
            **CONTRACT.to_json(CASE), "seqlen_k": stop - start, "q_offset": 7 - start,
            "empty_rows": True,
        })  # fmt: skip
        found = attention_mpmath.attention(part, of_keys(inputs, np.s_[start:stop]))
        outs.append(np.array(found["out"], np.float64).reshape(2, 4, 8))
        lses.append(np.array(found["lse"], np.float64).reshape(2, 4))
    states = {"outs": np.stack(outs), "lses": np.stack(lses)}
    merged = merge_attention_mpmath.merge_attention(None, states)
    oracle = CONTRACT.oracle(CASE, inputs)
    for name in ("out", "lse"):
        a, b = (np.array(x[name], np.float64) for x in (whole, merged))
        assert np.abs(a - b).max() < 2.0**-48  # states rounded to float64
        assert np.abs(a - oracle[name].ravel()).max() < 2.0**-48
