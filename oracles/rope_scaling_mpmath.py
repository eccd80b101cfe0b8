"""Frequencies and amplitudes of every context extension in mpmath, for tests: a second derivation.

Frequencies are integer powers of one root; an extension is told by wavelengths. yarn's ends are
found by counting columns, llama3's bands by comparing wavelengths, a changed base by what it must
do: leave column 0, and slow the last column by a (bloc97's derivation of the NTK-aware base).
"""

from __future__ import annotations

import mpmath
from mpmath import mpf

from tightrope.rope_scaling import RopeScaling


def frequencies(rotary_dim: int, rope_theta: float, scaling: RopeScaling) -> list[mpmath.mpf]:
    """Radians a position, (rotary_dim/2,), in the precision at hand."""
    step = mpmath.root(mpf(rope_theta), rotary_dim) ** 2
    waves = [2 * mpmath.pi * step**c for c in range(rotary_dim // 2)]
    scaled = _scaled(waves, step, scaling)
    return [2 * mpmath.pi / wave if wave else mpf(0) for wave in scaled]


def _quotient(scaling: RopeScaling) -> mpmath.mpf:
    return mpf(scaling.factor.numerator) / scaling.factor.denominator


def _scaled(waves: list[mpmath.mpf], step: mpmath.mpf, scaling: RopeScaling) -> list[mpmath.mpf]:
    """Wavelengths after the extension; 0 stands for a column that does not turn."""
    s, kind = _quotient(scaling), scaling.rope_type
    if kind in ("ntk", "dynamic"):
        slower = mpmath.root(_last_slowed(s, scaling), len(waves) - 1)
        return [wave * slower**c for c, wave in enumerate(waves)]
    if kind == "longrope":
        length = scaling.original_max_position_embeddings
        short = scaling.seq_len is None or scaling.seq_len <= length
        factors = scaling.short_factor if short else scaling.long_factor
        return [wave * mpf(f) for wave, f in zip(waves, factors, strict=True)]
    if kind == "yarn":
        return _by_columns(waves, _ends(waves, step, scaling), s)
    if kind == "llama3":
        return [_by_length(wave, s, scaling) for wave in waves]
    if kind == "proportional":
        return [s * wave if c < scaling.turning else mpf(0) for c, wave in enumerate(waves)]
    return [s * wave for wave in waves] if kind == "linear" else waves


def _last_slowed(s: mpmath.mpf, scaling: RopeScaling) -> mpmath.mpf:
    """By what the last column of a changed base is slowed."""
    if scaling.rope_type == "ntk":
        return s
    length = scaling.original_max_position_embeddings
    longest = length if scaling.seq_len is None else max(length, scaling.seq_len)
    return (s * longest - s * length + length) / length


def _by_length(wave: mpmath.mpf, s: mpmath.mpf, scaling: RopeScaling) -> mpmath.mpf:
    """llama3: long wavelengths are stretched by s, short ones stay, others lie between."""
    length, low, high = (
        mpf(x)
        for x in (
            scaling.original_max_position_embeddings,
            scaling.low_freq_factor,
            scaling.high_freq_factor,
        )
    )
    if wave * low >= length:
        return s * wave
    if wave * high <= length:
        return wave
    smooth = (length / wave - low) / (high - low)
    return 1 / ((1 - smooth) / (s * wave) + smooth / wave)


def _by_columns(
    waves: list[mpmath.mpf], ends: tuple[mpmath.mpf, mpmath.mpf], s: mpmath.mpf
) -> list[mpmath.mpf]:
    """yarn: columns up to the ramp stay, those past it are stretched by s."""
    low, high = ends
    found = []
    for c, wave in enumerate(waves):
        ramp = min(mpf(1), max(mpf(0), (c - low) / (high - low)))
        found.append(1 / (ramp / (s * wave) + (1 - ramp) / wave))
    return found


def _ends(
    waves: list[mpmath.mpf], step: mpmath.mpf, scaling: RopeScaling
) -> tuple[mpmath.mpf, mpmath.mpf]:
    """The ramp's ends. Where one lies left of column -1 or right of D, only its side matters."""
    length, most = mpf(scaling.original_max_position_embeddings), 2 * len(waves)
    ends = []
    for beta, up in ((scaling.beta_fast, 0), (scaling.beta_slow, 1)):
        longest = length / mpf(beta)
        if scaling.truncate:
            end = -2
            while end <= most and waves[0] * step ** (end + 1 - up) <= longest:
                end += 1
            ends.append(mpf(end))
        else:
            ends.append(mpmath.log(longest / waves[0], step))
    low, high = max(ends[0], mpf(0)), min(ends[1], mpf(most - 1))
    return low, high + mpf(1) / 1000 if low == high else high


def attention_factor(scaling: RopeScaling) -> mpmath.mpf:
    """What cos and sin are multiplied with."""
    if scaling.rope_type not in ("yarn", "longrope"):
        return mpf(1)
    if scaling.attention_factor is not None:
        return mpf(scaling.attention_factor)
    s = _quotient(scaling)
    if scaling.rope_type == "longrope":
        length = mpf(scaling.original_max_position_embeddings)
        return mpmath.sqrt(mpmath.log(length * s, length))
    tenth = mpmath.log(s) / 10
    usual = 1 + tenth * mpf(scaling.mscale or 1)
    return usual / (1 + tenth * mpf(scaling.mscale_all_dim)) if scaling.mscale_all_dim else usual


def axes(scaling: RopeScaling) -> list[int]:
    """Which axis of positions turns each column: sections dealt out, in rounds if interleaved."""
    left = list(scaling.mrope_section)
    if not scaling.mrope_interleaved:
        return [axis for axis, columns in enumerate(left) for _ in range(columns)]
    found = []
    for column in range(sum(left)):
        axis = column % 3
        axis = axis if axis and left[axis] else 0
        left[axis] -= 1
        found.append(axis)
    return found
