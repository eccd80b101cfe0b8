"""Bugs of public PoPE kernels, re-created in plain torch."""

from __future__ import annotations

import torch
from public_bugs import NARROW, bug
from right_pope import Parts, exact, pope
from right_pope_backward import Way, pope_backward, turning
from tiled_attention import BLOCK

GIVEN = {"arithmetic": exact, **NARROW}
OPEN = {"arithmetic": turning, "causal": (False,), "window_right": (None,), **NARROW}


@bug("pope_attention_backward", "test_parts_add_up", **OPEN)
def padding_weighs_softplus_of_0(*args, mended, **options):
    """lucidrains/PoPE-pytorch@ee11cab0: the backward kernel masks no bound of the keys. Zeros that
    pad them are no neutral element: their magnitude is softplus(0) = ln 2, so dq and ddelta are
    wrong unless the length is a multiple of the block, as in all of its tests.
    """

    def padded(k, v, positions):
        more = -k.shape[2] % BLOCK
        k, v = (torch.nn.functional.pad(x, (0, 0, 0, more)) for x in (k, v))
        return k, v, torch.nn.functional.pad(positions, (0, more))

    return pope_backward(*args, way=Way() if mended else Way(keys=padded), **options)


@bug("pope_attention", exponent_sign=(-1,), **GIVEN)
def exponent_of_the_printed_sign(*args, mended, **options):
    """ezrakoreen/pope-memory-optimal@ab2648ac: frequencies rise with the feature, as the paper
    prints them; weights trained with falling ones meet other angles. Its test had the same sign.
    """
    parts = Parts() if mended else Parts(frequencies=torch.reciprocal)
    return pope(*args, parts=parts, **options)
