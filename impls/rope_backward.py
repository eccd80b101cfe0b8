"""Gradients of rope's q and k in one Triton launch: `rope`'s kernel with each pair's transpose.

The block of a pair, [[c, -s], [s, c]], transposed: the same two products and sum with the sines'
signs turned in the sum, so that all of the rotation's arithmetic, tiles and builds hold here too.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from tightrope import Arithmetic, implements
from tightrope.implementation import bundled
from tightrope.rope_tiles import Config

ROTATION = bundled("rope", "triton")


def _promise(case: Any, device: Any) -> Arithmetic:
    return ROTATION.promise(case, device)


@implements("rope_backward", name="triton", arithmetic=_promise)
def rope_backward(
    dq: torch.Tensor, dk: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor,
    positions: torch.Tensor, *, interleaved: bool, inplace: bool = False,
    out_dtype: torch.dtype | None = None, validate: bool = False, blocks: Config | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """dq (tokens, num_heads, head_dim) and dk (tokens, num_kv_heads, head_dim) turned back.

    They are gradients of what `rope` returned for the same cos, sin, positions and interleaved, and
    become those of what it was given; any strides, such as the stride 0 that autograd makes.
    dtypes and options as in `rope`: float16, bfloat16, float32 or float64; inplace returns dq and
    dk themselves. A position outside the table passes its gradient unchanged, as `rope` passed its
    token, or raises IndexError as there. The table gets no gradient.
    Raises as `validate.check_rope`, with dq and dk for q and k.
    """
    try:
        turned: tuple[torch.Tensor, torch.Tensor] = ROTATION.fn(
            dq, dk, cos, sin, positions, interleaved=interleaved, inplace=inplace,
            out_dtype=out_dtype, validate=validate, blocks=blocks, transposed=True,
        )  # fmt: skip
    except (IndexError, TypeError, ValueError) as error:
        if type(error) not in (IndexError, TypeError, ValueError):  # a compiler's: left as it is
            raise
        raise type(error)(re.sub(r"\b([qk])\b", r"d\1", str(error))) from None
    return turned
