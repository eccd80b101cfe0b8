"""What a case of rope_table asks for: its `rope_scaling` mapping, and that mapping read."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from tightrope.formats import Array
from tightrope.oracles import rope_scaling
from tightrope.rope_scaling import AXES, RopeScaling, read, unscaled
from tightrope.rope_scaling_keys import LENGTH, MAXIMUM

PLAIN = "plain"
# rope_type -> variant -> keys beside factor and lengths
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "default": {PLAIN: {}},
    "linear": {PLAIN: {}},
    "ntk": {PLAIN: {}},
    "dynamic": {PLAIN: {}},
    "yarn": {
        PLAIN: {},
        "untruncated": {"truncate": False},
        "mscale": {"mscale": 1.0, "mscale_all_dim": 0.707},
        "equal mscale": {"mscale": 0.707, "mscale_all_dim": 0.707},
        "attention_factor": {"attention_factor": 1.25},
        "betas": {"beta_fast": 64.0, "beta_slow": 2.5},
        "equal betas": {"beta_fast": 1.0, "beta_slow": 1.0},
        "maximum": {},
    },
    "longrope": {PLAIN: {}, "maximum": {}, "attention_factor": {"attention_factor": 0.75}},
    "llama3": {
        PLAIN: {"low_freq_factor": 1.0, "high_freq_factor": 4.0},
        "wide": {"low_freq_factor": 0.5, "high_freq_factor": 32.0},
    },
    "proportional": {
        PLAIN: {"partial_rotary_factor": 0.25},
        "half": {"partial_rotary_factor": 0.5},
    },
}
PARTIAL = "partial"  # of every type that does not read it: half of a head is rotated
ONE, SECTIONS, INTERLEAVED = "one", "sections", "interleaved"


def mapping(case: Any) -> dict[str, Any] | None:
    """The argument `rope_scaling`, by the present names of its keys; None for none."""
    name, variant = case.rope_scaling, case.variant
    found = {"rope_type": name, **VARIANTS[name].get(variant, VARIANTS[name][PLAIN])}
    if variant == PARTIAL:
        found["partial_rotary_factor"] = 0.5
    if name != "default":
        found["factor"] = case.factor
    if name in ("yarn", "longrope", "llama3"):
        found[LENGTH] = case.length
    if name == "dynamic":
        found[MAXIMUM] = case.length
    if "maximum" in VARIANTS[name] and variant == "maximum":
        found[MAXIMUM] = int(found.pop("factor")) * case.length
    if name == "longrope":
        found["short_factor"], found["long_factor"] = _factors(case)
    if case.axes != ONE:
        found["mrope_section"] = _section(case)
        found["mrope_interleaved"] = case.axes == INTERLEAVED
    return None if found == {"rope_type": "default"} else found


def _factors(case: Any) -> tuple[list[float], list[float]]:
    """Short ones a little above 1, long ones from there to a bit over `factor`, both rising."""
    rng, columns = np.random.default_rng(case.seed), case.rotary_dim // 2
    short = np.sort(1 + 0.5 * rng.random(columns))
    long = np.sort(case.factor ** rng.random(columns)) * (1.01 + rng.random() / 10)
    return short.tolist(), long.tolist()


def _section(case: Any) -> list[int]:
    """Time, height and width: the last two at most as in Qwen2-VL (2:3:3), or a third each; the
    mapping alone tells which, as they are seldom equal.
    """
    columns, rng = case.rotary_dim // 2, np.random.default_rng(case.seed + 2)
    most = columns // 3 if case.axes == INTERLEAVED else 3 * columns // 8
    height, width = rng.integers((most + 1) // 2, most + 1, 2).tolist()
    return [columns - height - width, height, width]


@lru_cache(maxsize=512)
def scaling_of(case: Any) -> RopeScaling | None:
    """The mapping as it is read; None for none."""
    asked = mapping(case)
    if asked is None:
        return None
    return read(asked, rotary_dim=case.rotary_dim, rope_theta=case.rope_theta, seq_len=case.seq_len)


def effective(case: Any) -> RopeScaling:
    """The mapping as it is read; without one, that of `default`."""
    return scaling_of(case) or unscaled(case.rotary_dim)


def amplitude(case: Any) -> float:
    """attention_factor in float64; 1 for cases of operations that know no scaling."""
    scaling = scaling_of(case) if hasattr(case, "rope_scaling") else None
    return rope_scaling.attention_factor(scaling) if scaling else 1.0


def of_axes(case: Any, one: Array) -> Array:
    """Positions (3, tokens) from those of one axis, unlike on each; or these, if one is asked."""
    if case.axes == ONE:
        return one
    rng = np.random.default_rng(case.seed + 1)
    order = [np.arange(len(one)), np.arange(len(one))[::-1], rng.permutation(len(one))]
    return np.stack([one[order[axis]] // (axis + 1) for axis in range(AXES)])
