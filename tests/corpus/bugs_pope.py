"""Bugs of public PoPE kernels, re-created in plain torch's forward pass."""

from __future__ import annotations

import torch
from public_bugs import NARROW, bug
from right_pope import Parts, exact, pope
from tiled_attention import BLOCK

GIVEN = {"arithmetic": exact, **NARROW}
ALL = {"causal": (False,), "window_right": (None,)}


@bug("pope_attention", "test_a_key_of_zeros_counts", **ALL, **GIVEN)
def padding_weighs_softplus_of_0(
    q, k, v, inv_freq, delta, q_positions, k_positions, *, mended, **options
):
    """lucidrains/PoPE-pytorch@ee11cab0: the backward kernel masks no key bound. Zeros that pad keys
    are no neutral element: their magnitude is softplus(0) = ln 2. Its tests use multiples of 64.
    """
    more = 0 if mended else -k.shape[2] % BLOCK
    k, v = (torch.nn.functional.pad(x, (0, 0, 0, more)) for x in (k, v))
    k_positions = torch.nn.functional.pad(k_positions, (0, more))
    return pope(q, k, v, inv_freq, delta, q_positions, k_positions, **options)


@bug("pope_attention", exponent_sign=(-1,), **GIVEN)
def exponent_of_the_printed_sign(*args, mended, **options):
    """ezrakoreen/pope-memory-optimal@ab2648ac: frequencies rise with the feature, as the paper
    prints them; weights trained with falling ones meet other angles. Its test had the same sign.
    """
    parts = Parts() if mended else Parts(frequencies=torch.reciprocal)
    return pope(*args, parts=parts, **options)
