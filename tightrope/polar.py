"""Both signs of the exponent of PoPE's frequencies, by name.

PoPE (polar coordinate position embedding, arXiv:2509.10534) gives feature c of rotary_dim the
frequency rope_theta ** (sign * c / rotary_dim), c from 0. Its eq. 4 prints the exponent with a
plus, which turns the last feature by up to rope_theta radians a token; most code has a minus, as
RoPE.
"""

from __future__ import annotations

EXPONENT_AS_PRINTED = 1
EXPONENT_AS_CODED = -1
EXPONENT_SIGNS = (EXPONENT_AS_CODED, EXPONENT_AS_PRINTED)
