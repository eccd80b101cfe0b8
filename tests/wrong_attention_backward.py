"""Gradients of attention with one mistake each, and their right twins.

`tightrope run --impl=tests/wrong_attention_backward.py` must reject all but the right ones;
tests/test_wrong_gradients.py demands it.
"""

from __future__ import annotations

import torch
from right_attention_backward import Steps, attention_backward, declared
from tiled_attention import BLOCK, DTYPES, LOG2E, attention, visible
from wrong_attention_arithmetic import truncated

from tightrope import implements


def register(name, arithmetic, steps=None, **limits):
    """Put `Steps`, or a decorated function of the call's arguments, under test."""
    add = implements("attention_backward", name=name, arithmetic=arithmetic, **limits)
    if steps is None:
        return add
    return add(lambda *args, **options: attention_backward(*args, **options, steps=steps))


register("right", None, Steps(), dtype=(*DTYPES, "float32"))
register("right_declared", declared, Steps(), dtype=(*DTYPES, "float32"))


def wrong(name, arithmetic=None, limits=None, **steps):
    """Register a mistake. limits: the family of cases that shows it, where plain ones seldom do."""
    register(name, arithmetic, Steps(**steps), **{"dtype": DTYPES, **(limits or {})})


wrong("no_rowsum", d=lambda dout, out: torch.zeros_like(dout[..., 0]))
wrong("rowsum_of_one_feature_less", declared, d=lambda dout, out: (dout * out)[..., :-1].sum(-1))
wrong("scale_twice", scales=lambda scale: (scale * scale, scale * scale))
wrong("no_scale", scales=lambda scale: (1.0, 1.0))
wrong("dk_without_scale", scales=lambda scale: (scale, 1.0))
wrong("lse_in_base_2", base=lambda lse: lse)
wrong("lse_negated", base=lambda lse: -lse * LOG2E)
CAPPED = {"softcap": (1.0, 5.0)}
wrong("no_softcap_derivative", limits=CAPPED, slope=lambda tanh: 1.0)
wrong("softcap_derivative_1_minus_tanh", limits=CAPPED, slope=lambda tanh: 1 - tanh.abs())

CAUSAL = {"causal": (True,)}
LEFT = {"window_left": (2, 7, 16)}


def mask(change):
    """Another mask than the forward pass had; change: of causal, q_offset, window_size."""
    return lambda q, k, *rule: visible(q, k, *change(q, k, *rule))


wrong("no_causal_mask", limits=CAUSAL, mask=mask(lambda q, k, c, o, w: (False, o, w)))
wrong("causal_one_key_late", limits=CAUSAL, mask=mask(lambda q, k, c, o, w: (c, o + 1, w)))
wrong("top_left", limits=CAUSAL, mask=mask(lambda q, k, c, o, w: (c, 0, w)))
wrong("no_window", limits=LEFT, mask=mask(lambda q, k, c, o, w: (c, o, (None, w[1]))))
wrong("window_one_short", limits=LEFT, mask=mask(lambda q, k, c, o, w: (c, o, (w[0] - 1, w[1]))))
EMPTY = {"empty_rows": (True,), **CAUSAL}
wrong("empty_rows_nan", limits=EMPTY, empty=lambda lse: lse, hide=lambda p, seen: p * seen)

TILES = {"seqlen_q": range(17, 80)}
wrong("accumulator_not_emptied", limits=TILES, emptied=False)
wrong("last_partial_rows_dropped", limits=TILES, rows=lambda n: range(0, n - n % BLOCK, BLOCK))
KEYS = {"seqlen_k": range(17, 80)}
wrong(
    "last_partial_keys_dropped", limits=KEYS, keys=lambda n: range(0, max(n - n % BLOCK, 1), BLOCK)
)
APART = {"num_heads": (3, 4, 6), "num_kv_heads": (1, 2)}
wrong("last_head_of_the_group", reduce=lambda x, n: x[:, n - 1 :: n])
wrong("mean_over_the_group", reduce=lambda x, n: x.unflatten(1, (-1, n)).mean(2))
wrong(
    "kv_heads_interleaved",
    limits={"num_heads": (4, 6)},
    heads=lambda x, group: x.repeat(1, group, 1, 1),
)

for short, dtype in (("bfloat16", torch.bfloat16), ("float16", torch.float16)):

    def through(x, *_, dtype=dtype):
        return x.to(dtype).float()

    OTHER = {"dtype": (short,)}
    wrong(f"dq_accumulated_in_{short}", declared, OTHER,
          keep=lambda dq, *rest, through=through: (through(dq), *rest))  # fmt: skip
    wrong(f"rowsum_in_{short}", declared, OTHER,
          d=lambda dout, out, through=through: through((dout * out).sum(-1)))  # fmt: skip
    wrong(f"upstream_in_{short}", declared, OTHER, upstream=through)
    wrong(f"heads_added_in_{short}", declared, {**APART, **OTHER},
          reduce=lambda x, n, through=through: through(x).unflatten(1, (-1, n)).sum(2))  # fmt: skip
wrong("p_not_rounded", declared, weights=lambda p, dtype: p)
wrong("p_truncated", declared, weights=truncated)
wrong("ds_not_rounded", declared, ds=lambda ds, dtype: ds)
wrong("ds_truncated", declared, ds=truncated)
wrong("ds_of_rounded_p", declared, p_of_ds=lambda p, dtype: p.to(dtype).float())


@register("first_q_offset_for_all", None, dtype=DTYPES, batch=(2, 3), offsets=("tensor",))
def _(*args, q_offset=0, **options):
    first = q_offset if isinstance(q_offset, int) else q_offset[:1]
    return attention_backward(*args, q_offset=first, **options)


@register("state_of_its_own", declared, dtype=DTYPES)
def _(dout, q, k, v, out, lse, *, out_dtype=None, **options):
    out, lse = attention(q, k, v, **options)
    return attention_backward(dout, q, k, v, out, lse, out_dtype=out_dtype, **options)


@register("last_features_of_dv_unwritten", None, dtype=DTYPES)
def _(*args, **options):
    dq, dk, dv = attention_backward(*args, **options)
    kept = torch.empty_like(dv)
    kept[..., :-1] = dv[..., :-1]
    return dq, dk, kept


@register("dout_scaled_in_place", None, dtype=DTYPES)
def _(dout, *args, **options):
    found = attention_backward(dout, *args, **options)
    dout *= 2
    return found
