"""Gradients of polar attention with one mistake each, and their right twins.

`tightrope run --impl=tests/wrong_pope_backward.py` must reject all but the right ones;
tests/test_wrong_pope_backward.py demands it.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from right_pope import Parts, blocked, exact_angles, single_angles, softplus
from right_pope_backward import UNSCALED, Way, declared, pope_backward, turning
from tiled_attention import BLOCK, DTYPES, visible
from wrong_attention_arithmetic import truncated

from tightrope import implements

EVERY = (*DTYPES, "float32")
PHASED = {"delta": ("kv_heads", "heads")}
SEQUENCES = {"batch": (2, 3)}


def register(name, arithmetic, way, **limits):
    """Put a `Way` under test."""
    add = implements("pope_attention_backward", name=name, arithmetic=arithmetic, **limits)
    add(lambda *args, **options: pope_backward(*args, **options, way=way))


register("right", None, Way(points=Parts(angles=single_angles)), dtype=EVERY)
register("right_exact", turning, Way(), dtype=EVERY)
register("right_declared", declared, Way(), dtype=EVERY)


NAMES = []


def wrong(name, arithmetic=turning, limits=None, **parts):
    """Register a mistake. limits: the family of cases that shows it, where plain ones seldom do."""
    one = DTYPES[len(NAMES) % 2]  # of two dtypes in turn: no mistake but of formats knows its own
    NAMES.append(name)
    register(name, arithmetic, Way(**parts), **{"dtype": (one,), **(limits or {})})


def steps(**parts):
    return replace(UNSCALED, **parts)


wrong("no_sigmoid", derivative=torch.ones_like)
wrong("relu_derivative", derivative=lambda x: (x > 0).float())
wrong("sigmoid_of_softplus", derivative=lambda x: torch.sigmoid(softplus(x)))
wrong("softplus_for_sigmoid", derivative=softplus)
wrong("sine_dropped_on_the_way_back", sine=0.0)
wrong("cosine_dropped_on_the_way_back", cosine=0.0)
wrong("sine_negated_on_the_way_back", sine=-1.0)
PLAIN = {"head_dim": (24, 64), "rotary_dim": (7, 32)}
wrong("plain_features_dropped", limits=PLAIN, plain=lambda grad, x: torch.zeros_like(grad))
wrong("plain_features_through_sigmoid", limits=PLAIN,
      plain=lambda grad, x: grad * torch.sigmoid(x.float()))  # fmt: skip

wrong("no_rowsum", steps=steps(d=lambda dout, out: torch.zeros_like(dout[..., 0])))
wrong("scale_twice", scales=lambda s: (s * s, s * s, s * s))
wrong("no_scale", scales=lambda s: (1.0, 1.0, 1.0))
wrong("dk_without_scale", scales=lambda s: (s, 1.0, s))
wrong("scale_of_the_doubled_width", limits={"softmax_scale": (None,)},
      width=lambda q, inv_freq: q.shape[-1] + len(inv_freq))  # fmt: skip
wrong("lse_in_base_2", steps=steps(base=lambda lse: lse))
wrong("no_softcap_derivative", limits={"softcap": (5.0, 20.0)}, steps=steps(slope=lambda tanh: 1.0))

CAUSAL, LEFT = {"causal": (True,)}, {"window_left": (2, 7, 16)}


def mask(change):
    """Another mask than the forward pass had; change: of causal, q_offset, window_size."""
    return steps(mask=lambda q, k, *rule: visible(q, k, *change(q, k, *rule)))


wrong("no_causal_mask", limits=CAUSAL, steps=mask(lambda q, k, c, o, w: (False, o, w)))
wrong("top_left", limits=CAUSAL, steps=mask(lambda q, k, c, o, w: (c, 0, w)))
wrong("no_window", limits=LEFT, steps=mask(lambda q, k, c, o, w: (c, o, (None, w[1]))))
wrong("empty_rows_nan", limits={"empty_rows": (True,), **CAUSAL},
      steps=steps(empty=lambda lse: lse, hide=lambda p, seen: p * seen))  # fmt: skip


def padded(k, v, positions):
    """Keys of zeros up to a multiple of the block, which nothing masks."""
    more = -k.shape[2] % BLOCK
    k, v = (torch.nn.functional.pad(x, (0, 0, 0, more)) for x in (k, v))
    return k, v, torch.nn.functional.pad(positions, (0, more))


OPEN = {"causal": (False,), "window_right": (None,)}
ROWS = {"seqlen_q": range(17, 80)}
wrong("padding_to_a_block_seen", limits=OPEN, keys=padded)
wrong("last_partial_rows_dropped", limits=ROWS,
      steps=steps(rows=lambda n: range(0, n - n % BLOCK, BLOCK)))  # fmt: skip
wrong("last_partial_keys_dropped",
      steps=steps(keys=lambda n: range(0, max(n - n % BLOCK, 1), BLOCK)))  # fmt: skip
wrong("accumulator_not_emptied", limits=ROWS, steps=steps(emptied=False))

KV = {"delta": ("none", "kv_heads")}
wrong("last_head_of_the_group", limits={"delta": ("heads",)},
      reduce=lambda x, n: x[:, n - 1 :: n])  # fmt: skip
wrong("mean_over_the_group", limits={"delta": ("heads",)},
      reduce=lambda x, n: x.unflatten(1, (-1, n)).mean(2))  # fmt: skip
wrong("last_head_of_the_group_of_points", limits=KV,
      steps=steps(reduce=lambda x, n: x[:, n - 1 :: n]))  # fmt: skip

wrong("ddelta_negated", limits=PHASED, phase_of=lambda mu, c, s, x, y: mu * (s * x - c * y))
wrong("ddelta_without_magnitudes", limits=PHASED, phase_of=lambda mu, c, s, x, y: c * y - s * x)
wrong("ddelta_by_sigmoid", limits=PHASED,
      phase_of=lambda mu, c, s, x, y: (1 - torch.exp(-mu)) * (c * y - s * x))  # fmt: skip
wrong("ddelta_of_the_last_sequence", limits={**PHASED, **SEQUENCES},
      over_sequences=lambda turned: turned[-1])  # fmt: skip
wrong("ddelta_averaged_over_sequences", limits={**PHASED, **SEQUENCES},
      over_sequences=lambda turned: turned.mean(0))  # fmt: skip
wrong("phase_left_out_of_the_points", limits=PHASED, points=Parts(k_phase=lambda phase: None))
wrong("phase_left_out_of_the_way_back", limits=PHASED, back=Parts(k_phase=lambda phase: None))
wrong("phase_negated", limits=PHASED, points=Parts(phase=lambda d, heads: -blocked(d, heads)))
wrong("phase_clamped", limits={**PHASED, "delta_data": ("wide",)},
      points=Parts(phase=lambda d, heads: blocked(d, heads).clamp(-2 * torch.pi, 0)))  # fmt: skip

wrong("exponent_of_the_other_sign", points=Parts(frequencies=torch.reciprocal))
wrong("q_one_position_late", points=Parts(q_positions=lambda p: p + 1))
wrong("k_one_position_late", points=Parts(k_positions=lambda p: p + 1))
wrong("keys_turned_again", points=Parts(k_positions=lambda p: 2 * p))
wrong("relu_for_softplus", points=Parts(softplus=torch.relu))
FAR = {"positions": ("random",), "position_dtype": ("int64",)}
for name, dtype in (("int32", torch.int32), ("float32", torch.float32)):
    wrong(f"positions_in_{name}", limits=FAR, points=Parts(
        angles=lambda p, *rest, dtype=dtype: exact_angles(p.to(dtype).long(), *rest)))  # fmt: skip

for short, dtype in (("bfloat16", torch.bfloat16), ("float16", torch.float16)):

    def through(x, *_, dtype=dtype):
        return x.to(dtype).float()

    OTHER = {"dtype": (short,)}
    wrong(f"dq_of_points_kept_in_{short}", declared, OTHER, points_kept=through)
    wrong(f"sigmoid_in_{short}", declared, OTHER,
          derivative=lambda x, through=through: through(torch.sigmoid(x)))  # fmt: skip
    wrong(f"table_in_{short}", declared, OTHER, points=Parts(table=through))
    wrong(f"table_of_the_way_back_in_{short}", declared, OTHER, back=Parts(table=through))
    wrong(f"rowsum_in_{short}", declared, OTHER, steps=steps(
        d=lambda dout, out, through=through: through((dout * out).sum(-1))))  # fmt: skip
wrong("p_not_rounded", declared, steps=steps(weights=lambda p, dtype: p))
wrong("ds_not_rounded", declared, steps=steps(ds=lambda ds, dtype: ds))
wrong("ds_truncated", declared, steps=steps(ds=truncated))
