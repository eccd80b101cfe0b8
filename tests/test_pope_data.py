"""What q and k of `pope_attention` cases hold."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from tightrope.formats import FORMATS
from tightrope.oracles.pope_attention import CONTRACT, PopeAttentionCase
from tightrope.oracles.pope_attention_problem import scale_of


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_delicate_features_lie_where_softplus_is_small_and_still_matter(dtype, seed):
    case = PopeAttentionCase(
        seqlen_k=33, seqlen_q=5, head_dim=64, rotary_dim=64, data="delicate", dtype=dtype, seed=seed
    )
    x = CONTRACT.inputs(case)
    q, k = (x[n].astype(np.float64)[0, 0] for n in ("q", "k"))
    low = [((y >= -41) & (y <= -7)).all(0) for y in (q, k)]
    assert (low[0] | low[1]).sum() > 32
    assert not (low[0] & low[1]).any()
    size = np.logaddexp(0, q)[:, None] * np.logaddexp(0, k)
    assert (size.mean((0, 1))[low[0] | low[1]] > 2.0**-7).sum() > 24


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_thresholds_are_met_from_both_sides(dtype):
    met = Counter()
    for seed in range(8):
        case = PopeAttentionCase(
            seqlen_k=33, seqlen_q=5, head_dim=64, rotary_dim=64, data="thresholds", dtype=dtype,
            seed=seed,
        )  # fmt: skip
        x = CONTRACT.inputs(case)
        for level in (0.0, 5.0, -5.0, 8.0, -8.0, 20.0, -20.0):
            ulp = float(FORMATS[dtype].ulp(level))
            for name in "qk":
                steps = np.rint((x[name].astype(np.float64) - level) / ulp)
                for step in (-1, 0, 1):
                    met[level, step] += int((steps == step).sum())
    assert min(met.values()) > 0


@pytest.mark.parametrize("data", ["rising", "falling", "spiking", "far_groups"])
def test_polar_logits_of_the_last_query_follow_the_curve(data):
    """Rising: late keys outweigh early ones, and so on; the oracle's own weights say so."""
    spread = []
    for seed in range(6):
        case = PopeAttentionCase(
            seqlen_q=3, seqlen_k=64, head_dim=64, rotary_dim=64, dtype="float32", data=data,
            q_offset=61, positions="offset", start=1000, delta="heads", seed=seed,
        )  # fmt: skip
        x = CONTRACT.inputs(case)
        found = logits(case, x)
        spread.append(float(found.max() - found.min()))
        if data in ("rising", "falling"):
            slope = np.polyfit(np.arange(64), found, 1)[0]
            assert (slope > 0) == (data == "rising")
    assert max(spread) > {"rising": 16, "falling": 16, "spiking": 8, "far_groups": 60}[data]


def logits(case, x):
    """Of the last row of the first head, by the definition."""
    q, k = (x[n].astype(np.float64)[0, 0] for n in ("q", "k"))
    apart = x["k_positions"] - x["q_positions"][-1]
    angle = apart[:, None] * x["inv_freq"].astype(np.float64) + x["delta"][0]
    return (np.logaddexp(0, q[-1]) * np.logaddexp(0, k) * np.cos(angle)).sum(1) * scale_of(case)
