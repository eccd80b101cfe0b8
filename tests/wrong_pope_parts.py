"""Polar attention whose magnitudes, angles or features are kept in the wrong format.

Most declare the schedule of tests/right_pope.py, so that its roundings are replayed: a stranger may
round features, and what is smaller than that rounding does not show.
"""

from __future__ import annotations

import torch
from right_pope import Parts, exact, exact_angles, pope, prescribed, single_angles, softplus
from tiled_attention import DTYPES, Steps
from wrong_attention_arithmetic import truncated
from wrong_pope import PHASED, register

LONG = {"positions": ("long",)}
NEAR = {"data": ("thresholds",)}
LOW = {"data": ("delicate",)}


def wrong(name, arithmetic=prescribed, limits=None, **parts):
    """Register a mistake. limits: the family of cases that shows it, where plain ones seldom do."""
    add = register(name, arithmetic, **{"dtype": DTYPES, **(limits or {})})
    add(lambda *args, **options: pope(*args, **options, parts=Parts(**parts)))


def naive(x):
    """ln(1 + e^x) as it is written: nothing is left of small e^x, and large ones overflow."""
    return torch.log(1 + torch.exp(x))


def through(dtype):
    """Round a tensor to `dtype` and back to float32."""
    return lambda x, *_: x.to(dtype).float()


def linear_from(threshold, magnitude=softplus):
    return lambda x: torch.where(x > threshold, x, magnitude(x))


def angles_in(dtype):
    """Positions, frequencies and their product in a narrow format."""

    def angles(positions, inv_freq, phase):
        found = (positions.to(dtype) * inv_freq.to(dtype)).double()
        return found if phase is None else found + phase.double()

    return angles


wrong("softplus_linear_from_5", limits=NEAR, softplus=linear_from(5))
wrong("naive_softplus", limits=LOW, softplus=linear_from(20, naive))
wrong("naive_softplus_overflows", exact, LOW, softplus=naive)
for short, dtype in (("bfloat16", torch.bfloat16), ("float16", torch.float16)):
    wrong(f"naive_softplus_in_{short}", exact, softplus=linear_from(
        10, lambda x, dtype=dtype: naive(x.to(dtype)).float()))  # fmt: skip
    wrong(f"magnitudes_in_{short}", softplus=lambda x, dtype=dtype: softplus(x).to(dtype).float())
    wrong(f"table_in_{short}", table=through(dtype))
    wrong(f"angles_in_{short}", exact, angles=angles_in(dtype))
    wrong(f"phase_in_{short}", exact, PHASED, k_phase=through(dtype))
wrong("frequencies_in_bfloat16", exact, frequencies=through(torch.bfloat16))
wrong("table_in_bfloat16_at_long_positions", limits=LONG, table=through(torch.bfloat16))
wrong("angles_in_float32", exact, LONG, angles=single_angles)
# of both signs, so that not all of them wrap, or none
FAR = {"positions": ("random",), "position_dtype": ("int64",)}
for name, dtype in (("int32", torch.int32), ("float32", torch.float32)):
    wrong(f"positions_in_{name}", exact, FAR, angles=lambda p, *rest, dtype=dtype: exact_angles(
        p.to(dtype).long(), *rest))  # fmt: skip
wrong("features_truncated", features=lambda x, dtype: truncated(x, dtype).to(dtype))
wrong("features_in_float8", exact, features=lambda x, dtype: x.to(torch.float8_e4m3fn).to(dtype))


@register("features_not_rounded", prescribed, dtype=DTYPES)
def _(q, *args, **options):
    steps = Steps(weights=lambda p, _: p.to(q.dtype).float())
    return pope(q, *args, **options, steps=steps, parts=Parts(features=lambda x, dtype: x))
