"""Reading a `rope_scaling` mapping: the keys of Hugging Face's `rope_parameters`, all checked.

Nothing here computes a frequency: oracles and kernels each have formulas of their own. A key that a
type does not read is refused, since a parameter that is silently dropped is a wrong table; one
whose value is None counts as absent. `ntk` is the static NTK-aware change of base under its own
name.

Which length selects the factors: `seq_len`, the tokens of the whole sequence that the table serves,
and nothing else, neither the positions nor earlier calls. `dynamic` takes max(seq_len, L) and
`longrope` its long factors if seq_len > L, L the length that the model was trained for; None means
a sequence within L. So a row of a table is a function of its position and of seq_len. Keys turned
under one seq_len agree with queries turned under another only if both select the same frequencies:
chunks of a sequence equal one shot if all are given the whole sequence's seq_len, and a cache that
was filled before a switch is inconsistent after it.

attention_factor multiplies cos and sin, so q and k each, so logits by its square. A further factor
on the softmax scale (DeepSeek's) is the business of attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

from tightrope.rope_scaling_keys import (
    LENGTH,
    MAXIMUM,
    check_keys,
    flag,
    number,
    present,
    refuse_key,
    sequence,
    type_of,
    whole,
)
from tightrope.validate import refuse

AXES = 3  # of positions, where a token has several: time, height, width
NUMBERS = (
    "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim",
    "low_freq_factor", "high_freq_factor",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """A mapping that was read; fields are named as its keys.

    factor: 1 where the type has none; the quotient of two lengths where it was not given.
    original_max_position_embeddings: L, 0 where the type reads none. attention_factor: None where
    the type derives it. turning: columns that turn (not all under `proportional`). short_factor,
    long_factor: () or (rotary_dim/2,). mrope_section: () or columns of each of three axes.
    """

    rope_type: str = "default"
    factor: Fraction = Fraction(1)
    original_max_position_embeddings: int = 0
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    turning: int = 0
    mrope_section: tuple[int, ...] = ()
    mrope_interleaved: bool = False
    seq_len: int | None = None

    @cached_property
    def _hash(self) -> int:
        return hash(repr(self))

    def __hash__(self) -> int:  # once: hosts look their constants up by it in every call
        return self._hash


@lru_cache(maxsize=256)
def unscaled(rotary_dim: int) -> RopeScaling:
    """What no mapping and no seq_len say."""
    return RopeScaling(turning=rotary_dim // 2)


def read(
    rope_scaling: Mapping[str, Any] | None,
    *,
    rotary_dim: int,
    rope_theta: float,
    seq_len: int | None = None,
) -> RopeScaling:
    """What a mapping says for frequencies of this rotary_dim and rope_theta; None: no scaling.

    Raises ValueError (an unknown type; missing, unknown or contradictory keys; numbers out of
    range; lists of a wrong length) and TypeError, each naming the key or the argument.
    """
    if rope_scaling is None and seq_len is None:
        return unscaled(rotary_dim)
    given = present(rope_scaling)
    name = type_of(given)
    check_keys(name, given, rope_theta)
    if name in ("ntk", "dynamic") and rotary_dim == 2:
        refuse("rotary_dim", f"at least 4 with rope_type {name!r}", rotary_dim)
    if name == "yarn" and rope_theta <= 1:
        refuse("rope_theta", "above 1 with rope_type 'yarn'", rope_theta)
    length = _length(name, given)
    return RopeScaling(
        rope_type=name,
        factor=_factor(name, given, length),
        original_max_position_embeddings=length,
        truncate=flag("truncate", given.get("truncate", True)),
        turning=_turning(name, given, rotary_dim),
        seq_len=None if seq_len is None else whole("seq_len", seq_len, 0),
        **_numbers(given),
        **_factors(given, rotary_dim),
        **_axes(given, rotary_dim),
    )


def _numbers(given: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers above 0, and in order where two bound a range."""
    found = {key: number(key, given[key]) for key in NUMBERS if key in given}
    if "llama_4_scaling_beta" in given:  # read elsewhere, but no less a number
        number("llama_4_scaling_beta", given["llama_4_scaling_beta"])
    slow, fast = (found.get(k, getattr(RopeScaling, k)) for k in ("beta_slow", "beta_fast"))
    if fast < slow:
        refuse_key("beta_fast", f"at least beta_slow = {slow}", fast)
    low, high = (found.get(f"{k}_freq_factor", 0.0) for k in ("low", "high"))
    if "high_freq_factor" in found and high <= low:
        refuse_key("high_freq_factor", f"above low_freq_factor = {low}", high)
    return found


def _length(name: str, given: Mapping[str, Any]) -> int:
    """L; `dynamic` reads it from max_position_embeddings, as its source does."""
    lengths = {
        key: whole(f"rope_scaling[{key!r}]", given[key], 2)
        for key in (LENGTH, MAXIMUM)
        if key in given
    }
    if name != "dynamic":
        return lengths.get(LENGTH, 0)
    if not lengths:
        refuse_key(MAXIMUM, "a value with rope_type 'dynamic'", "none")
    length = lengths.get(MAXIMUM, lengths.get(LENGTH, 0))
    if lengths.get(LENGTH, length) != length:
        refuse_key(LENGTH, f"{length} as rope_scaling[{MAXIMUM!r}]", lengths[LENGTH])
    return length


def _factor(name: str, given: Mapping[str, Any], length: int) -> Fraction:
    """s, as given or the length after the extension divided by L.

    A second length that is neither s L nor L (a config that was not extended yet) is refused.
    """
    ratio = Fraction(given.get(MAXIMUM, 0), length or 1)
    if "factor" in given:
        factor = Fraction(number("factor", given["factor"], 1, itself=True))
        if MAXIMUM in given and ratio not in (factor, 1):
            refuse_key(MAXIMUM, f"{float(factor):g} times {length}, or {length}", given[MAXIMUM])
        return factor
    if name in ("default", "proportional"):
        return Fraction(1)
    if MAXIMUM not in given:
        refuse_key("factor", f"a value with rope_type {name!r}, or one of {MAXIMUM!r}", "none")
    if ratio < 1:
        refuse_key(MAXIMUM, f"at least {LENGTH} = {length}", given[MAXIMUM])
    return ratio


def _turning(name: str, given: Mapping[str, Any], rotary_dim: int) -> int:
    """Columns that turn: the first floor(p rotary_dim / 2), p rotary_dim rounded to float64.

    (0.3 * 20 is 6 as its authors mean it, and below 6 with the 0.3 that float64 has.)
    """
    part = number("partial_rotary_factor", given.get("partial_rotary_factor", 1.0))
    if part > 1:
        refuse_key("partial_rotary_factor", "at most 1", part)
    return int(part * rotary_dim // 2) if name == "proportional" else rotary_dim // 2


def _factors(given: Mapping[str, Any], rotary_dim: int) -> dict[str, Any]:
    return {
        key: tuple(number(key, x) for x in sequence(key, given[key], rotary_dim // 2))
        for key in ("short_factor", "long_factor")
        if key in given
    }


def _axes(given: Mapping[str, Any], rotary_dim: int) -> dict[str, Any]:
    """Sections that add up to all columns; interleaved ones must fit their places, every third."""
    key, columns = "mrope_section", rotary_dim // 2
    if key not in given:
        return {}
    section = tuple(whole(f"rope_scaling[{key!r}]", n, 0) for n in sequence(key, given[key], AXES))
    if sum(section) != columns:
        refuse_key(key, f"numbers that add up to {columns}, half of rotary_dim", list(section))
    interleaved = flag("mrope_interleaved", given.get("mrope_interleaved", False))
    for axis in (1, 2):
        places = len(range(axis, columns, 3))
        if interleaved and section[axis] > places:
            refuse_key(key, f"at most {places} interleaved columns of axis {axis}", list(section))
    return {key: section, "mrope_interleaved": interleaved}
