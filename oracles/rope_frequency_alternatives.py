"""Known mistakes in scaled frequencies, in attention_factor and in the sections of several axes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from tightrope.formats import Array
from tightrope.oracles import rope_scaling
from tightrope.rope_scaling import RopeScaling

Outputs = dict[str, Array]
FAR = 2.0**36  # positions from which float64 loses an angle
Frequencies = Iterator[tuple[str, Array]]


def mistaken(
    rotary_dim: int, rope_theta: float, scaling: RopeScaling, inputs: Mapping[str, Array]
) -> Iterator[tuple[str, Outputs]]:
    """(sentence, cos and sin (tokens, rotary_dim/2)) of one mistake each, in float64."""
    w = rope_scaling.frequencies(rotary_dim, rope_theta, scaling)
    factor = rope_scaling.attention_factor(scaling)
    places = np.atleast_2d(inputs["positions"]).astype(np.float64)
    if np.abs(places).max(initial=0.0) > FAR:
        return
    right = rope_scaling.axes(len(w), scaling) if len(places) > 1 else np.zeros(len(w), np.int64)

    def table(w: Array, axes: Array = right) -> tuple[Array, Array]:
        angle = places[axes].T * w
        return np.cos(angle), np.sin(angle)

    for sentence, wrong in _frequencies(rotary_dim, rope_theta, scaling):
        yield sentence, _stored(*table(np.where(np.isfinite(wrong), wrong, 0.0)), factor, factor)
    cos, sin = table(w)
    for sentence, other in _factors(scaling):
        yield sentence, _stored(cos, sin, other, other)
    if factor != 1:
        yield "attention_factor left out of cos alone", _stored(cos, sin, 1.0, factor)
        yield "attention_factor left out of sin alone", _stored(cos, sin, factor, 1.0)
    if len(places) > 1:
        for sentence, axes in _sections(len(w), scaling):
            yield sentence, _stored(*table(w, axes), factor, factor)


def _stored(cos: Array, sin: Array, of_cos: float, of_sin: float) -> Outputs:
    return {"cos": (of_cos * cos).astype(np.float32), "sin": (of_sin * sin).astype(np.float32)}


def _frequencies(rotary_dim: int, rope_theta: float, scaling: RopeScaling) -> Frequencies:
    plain, s = rope_theta ** (-np.arange(0, rotary_dim, 2) / rotary_dim), float(scaling.factor)
    if scaling.rope_type in ("ntk", "dynamic"):
        grown = rope_scaling.stretch(scaling)
        yield (
            "the base stretched by s, not by s**(D/(D-2))",
            _of_base(rotary_dim, rope_theta * grown),
        )
        if scaling.rope_type == "dynamic":
            length = scaling.original_max_position_embeddings
            short = s * (scaling.seq_len or 0) / length - (s - 1)
            base = rope_theta * abs(short) ** (rotary_dim / (rotary_dim - 2))
            yield "seq_len taken for at least the old length", _of_base(rotary_dim, base)
    if scaling.rope_type == "longrope":
        yield (
            "frequencies multiplied by the factors, not divided",
            plain * np.array(rope_scaling.selected(scaling)),
        )
    if scaling.rope_type == "linear":
        yield "frequencies multiplied by the factor, not divided", plain * s
    if scaling.rope_type == "yarn":
        yield from _of_yarn(rotary_dim, rope_theta, scaling, plain)
    if scaling.rope_type == "llama3":
        yield from _of_llama3(scaling, plain)


def _of_base(rotary_dim: int, base: float) -> Array:
    return np.asarray(base ** (-np.arange(0, rotary_dim, 2) / rotary_dim))


def _of_yarn(rotary_dim: int, rope_theta: float, scaling: RopeScaling, w: Array) -> Frequencies:
    s, kept = float(scaling.factor), rope_scaling.kept_part(rotary_dim, rope_theta, scaling)
    yield "yarn's ramp the other way round", w * (1 - kept) + w / s * kept
    low, _ = rope_scaling.corrections(rotary_dim, rope_theta, scaling)
    high = rope_scaling.turning_column(scaling.beta_slow, rotary_dim, rope_theta, scaling)
    high = np.ceil(high) if scaling.truncate else high
    for last, told in ((rotary_dim // 2 - 1, "the last column"), (np.inf, "nothing")):
        end = min(high, last)
        end = end + 0.001 if end == low else end
        ramp = np.clip((np.arange(rotary_dim // 2) - low) / (end - low), 0, 1)
        yield f"yarn's ramp cut at {told}", w / s * ramp + w * (1 - ramp)


def _of_llama3(scaling: RopeScaling, w: Array) -> Frequencies:
    s, low, high = float(scaling.factor), scaling.low_freq_factor, scaling.high_freq_factor
    turns = scaling.original_max_position_embeddings * w / (2 * np.pi)

    def between(turns: Array, low: float, high: float) -> Array:
        kept = np.clip((turns - low) / (high - low), 0, 1)
        return w / s * (1 - kept) + w * kept

    yield "low_freq_factor and high_freq_factor exchanged", between(turns, high, low)
    for factor, told in ((2 * np.pi, "without 2 pi"), (2.0, "with pi for 2 pi"), (0.5, "halved")):
        yield f"llama3's wavelengths {told}", between(turns * factor, low, high)


def _factors(scaling: RopeScaling) -> Iterator[tuple[str, float]]:
    """Other attention_factors."""
    if scaling.rope_type not in ("yarn", "longrope"):
        return
    if scaling.attention_factor is not None:
        derived = rope_scaling.attention_factor(replace(scaling, attention_factor=None))
        yield "the given attention_factor ignored", derived
    s = float(scaling.factor)
    for base, log in (("2", np.log2), ("10", np.log10)):
        if scaling.rope_type == "yarn" and s > 1:
            over, under = scaling.mscale or 1.0, scaling.mscale_all_dim or 0.0
            found = (0.1 * over * log(s) + 1) / (0.1 * under * log(s) + 1)
            yield f"the logarithm of attention_factor in base {base}", float(found)
    for name in ("mscale", "mscale_all_dim"):
        if getattr(scaling, name) is not None:
            without: RopeScaling = replace(scaling, **{name: None})  # type: ignore[arg-type]
            yield f"{name} ignored", rope_scaling.attention_factor(without)


def _sections(columns: int, scaling: RopeScaling) -> Iterator[tuple[str, Array]]:
    """Other axes of columns, (columns,)."""
    right = rope_scaling.axes(columns, scaling)
    yield "sections one column late", np.concatenate([right[:1], right[:-1]])
    yield "sections one column early", np.concatenate([right[1:], right[-1:]])
    yield "interleaved sections without an end", np.arange(columns) % 3
    yield "all columns by the last axis", np.full(columns, 2)
