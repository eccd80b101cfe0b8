"""Polar attention with one mistake each, and its right twins.

A mistake is another part of tests/right_pope.py, or another argument. `tightrope run
--impl=tests/wrong_pope.py` must reject all but the right ones; tests/test_wrong_pope.py demands it.
Mistakes of formats: tests/wrong_pope_parts.py.
"""

from __future__ import annotations

import torch
from right_pope import Parts, blocked, exact, pope, prescribed, single_angles
from tiled_attention import BLOCK, DTYPES, LOWEST, same

from tightrope import implements

EVERY = (*DTYPES, "float32")
PHASED = {"delta": ("kv_heads", "heads")}


def register(name, arithmetic, parts=None, **limits):
    """Put `Parts`, or a decorated function of the call's arguments, under test."""
    add = implements("pope_attention", name=name, arithmetic=arithmetic, **limits)
    return (
        add if parts is None else add(lambda *args, **options: pope(*args, **options, parts=parts))
    )


register("right", None, Parts(angles=single_angles), dtype=EVERY)
register("right_exact", exact, Parts(), dtype=EVERY)
register("right_declared", prescribed, Parts(), dtype=EVERY)


def wrong(name, parts=None, **limits):
    """Register a mistake. limits: the family of cases that shows it, where plain ones seldom do."""
    return register(name, exact, parts, **{"dtype": DTYPES, **limits})


wrong("relu_for_softplus", Parts(softplus=torch.relu))
wrong("exp_for_softplus", Parts(softplus=torch.exp))
wrong("paired_frequencies", Parts(frequencies=lambda f: f[torch.arange(len(f)) // 2 * 2]))
wrong("frequencies_of_rope", Parts(frequencies=lambda f: f[torch.arange(len(f)) * 2 % len(f)]))
wrong("exponent_of_the_other_sign", Parts(frequencies=torch.reciprocal))
wrong("sine_dropped", Parts(sine=0.0))
wrong("plain_features_made_magnitudes", Parts(plain=torch.nn.functional.softplus))
wrong("plain_features_dropped", Parts(plain=torch.zeros_like))


def phase(change, **limits):
    """Parts that change the phase of every query head, and cases that have one."""
    return {"parts": Parts(phase=change), **PHASED, **limits}


MANY = {"num_heads": (4, 6)}
wrong("phase_on_the_query", Parts(q_phase=same, k_phase=lambda phase: None), **PHASED)
wrong("phase_negated", **phase(lambda d, heads: -blocked(d, heads)))
wrong("phase_dropped", **phase(lambda d, heads: None))
wrong("phase_shared_over_heads", **phase(lambda d, heads: blocked(d[:1], heads), num_heads=(4, 6)))
wrong("phase_clamped", **phase(lambda d, heads: blocked(d, heads).clamp(-2 * torch.pi, 0)))
TILED = phase(lambda d, heads: d.repeat(heads // len(d), 1)[:, None], **MANY)
wrong("phase_of_kv_heads_interleaved", **{**TILED, "delta": ("kv_heads",)})
wrong("kv_heads_interleaved", Parts(heads=lambda x, group: x.repeat(1, group, 1, 1)), **MANY)

wrong("q_one_position_late", Parts(q_positions=lambda p: p + 1))
wrong("k_one_position_late", Parts(k_positions=lambda p: p + 1))
wrong("keys_turned_again", Parts(k_positions=lambda p: 2 * p))
wrong("q_positions_counted_from_0", Parts(q_positions=lambda p: p - p[..., :1]))
wrong("indices_of_keys_for_positions", Parts(k_positions=lambda p: torch.arange(p.shape[-1])))


def first(positions):
    return positions if positions.ndim == 1 else positions[:1]


SHARED = Parts(q_positions=first, k_positions=first)
wrong("first_positions_for_all", SHARED, positions=("per_batch",), batch=(2, 3))


@wrong("positions_mask", causal=(True,), seqlen_q=range(2, 65))
def _(q, k, v, inv_freq, delta, q_positions, k_positions, *, q_offset=0, **options):
    place = int(q_positions.flatten()[0]) if q_positions.numel() else 0
    return pope(q, k, v, inv_freq, delta, q_positions, k_positions, q_offset=place, **options)


@wrong("scale_of_the_doubled_width")
def _(q, k, v, inv_freq, *args, softmax_scale=None, **options):
    scale = softmax_scale or (q.shape[-1] + len(inv_freq)) ** -0.5
    return pope(q, k, v, inv_freq, *args, softmax_scale=scale, **options)


@wrong("top_left_for_bottom_right", causal=(True,))
def _(*args, q_offset=0, **options):
    return pope(*args, **options)


@wrong("bottom_right_whatever_the_offset", causal=(True,))
def _(q, k, *args, q_offset=0, **options):
    return pope(q, k, *args, q_offset=k.shape[2] - q.shape[2], **options)


@wrong("padding_to_a_block_seen", causal=(False,), window_right=(None,))
def _(q, k, v, inv_freq, delta, q_positions, k_positions, **options):
    more = -k.shape[2] % BLOCK
    k, v = (torch.nn.functional.pad(x, (0, 0, 0, more)) for x in (k, v))
    k_positions = torch.nn.functional.pad(k_positions, (0, more))
    return pope(q, k, v, inv_freq, delta, q_positions, k_positions, **options)


@wrong("keys_of_zeros_taken_for_padding")
def _(q, k, v, *args, **options):
    empty = (k == 0).all(-1).all(1)[:, None, None]
    bias = torch.where(empty, LOWEST, 0.0)
    return pope(q, k, v, *args, bias=bias, **options)
