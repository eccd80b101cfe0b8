"""The keys of a `rope_scaling` mapping, and checks of single values: each error names its key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from tightrope.validate import refuse

MOST = 2.0**64  # products of a few such numbers are far from overflow
LENGTH, MAXIMUM = "original_max_position_embeddings", "max_position_embeddings"
# type -> keys without which it means nothing, keys that it may have
TYPES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "default": ((), ()),
    "linear": (("factor",), ()),
    "ntk": (("factor",), ()),
    "dynamic": (("factor",), (MAXIMUM, LENGTH)),
    "yarn": (
        (LENGTH,),
        ("factor", MAXIMUM, "attention_factor", "beta_fast", "beta_slow", "mscale",
         "mscale_all_dim", "truncate", "llama_4_scaling_beta"),
    ),
    "longrope": (
        (LENGTH, "short_factor", "long_factor"), ("factor", MAXIMUM, "attention_factor"),
    ),
    "llama3": (("factor", LENGTH, "low_freq_factor", "high_freq_factor"), ()),
    "proportional": ((), ("factor",)),
}  # fmt: skip
# partial_rotary_factor is read by `proportional`; elsewhere rotary_dim contains it already.
# (llama_4_scaling_beta, above, is read by whoever calls query_scale.)
EVERYWHERE = (
    "rope_type", "type", "rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved"
)  # fmt: skip
OLD_TYPES = {"su": "longrope", "mrope": "default"}  # names that only the old key `type` knows


def refuse_key(
    key: str, expected: object, got: object, error: type[Exception] = ValueError
) -> NoReturn:
    """Raise `error` about one key."""
    refuse(f"rope_scaling[{key!r}]", expected, got, error)


def present(rope_scaling: Any) -> dict[str, Any]:
    """The keys that have a value. Raises TypeError for what is no mapping and not None."""
    if rope_scaling is not None and not isinstance(rope_scaling, Mapping):
        refuse("rope_scaling", "a mapping or None", type(rope_scaling).__name__, TypeError)
    return {k: v for k, v in (rope_scaling or {}).items() if v is not None}


def type_of(given: Mapping[str, Any]) -> str:
    """The type by its present name; `type` is the old name of the key."""
    old = given.get("type")
    name = old = OLD_TYPES.get(old, old) if isinstance(old, str) else old
    if "rope_type" in given or old is None:
        name = given.get("rope_type", "default")
    if not isinstance(name, str) or name not in TYPES:
        refuse_key("rope_type" if "rope_type" in given else "type", ", ".join(TYPES), repr(name))
    if old is not None and old != name:
        refuse_key("type", f"{name!r} as rope_scaling['rope_type']", repr(given["type"]))
    return name


def check_keys(name: str, given: Mapping[str, Any], rope_theta: float) -> None:
    """Refuse missing and unknown keys of a type, and a second rope_theta; ValueError.

    Also mscale beside attention_factor, which would win. TypeError for a key that is no string.
    """
    for key in given:
        if not isinstance(key, str):
            refuse("rope_scaling", "keys that are strings", repr(key), TypeError)
    if "attention_factor" in given and "mscale" in given:
        refuse_key("mscale", "none beside attention_factor, which it would make", given["mscale"])
    needed, more = TYPES[name]
    known = (*needed, *more, *EVERYWHERE)
    pairs = [("mscale", "mscale_all_dim"), ("mscale_all_dim", "mscale")]
    if given.get("type") == "mrope" or "mrope_interleaved" in given:
        needed = (*needed, "mrope_section")
    for key in (*needed, *(other for key, other in pairs if key in given)):
        if key not in given:
            refuse_key(key, f"a value with rope_type {name!r} and {', '.join(given)}", "none")
    for key, value in given.items():
        if key not in known:
            refuse_key(key, f"keys of rope_type {name!r} ({', '.join(known)})", repr(value))
    if given.get("rope_theta", rope_theta) != rope_theta:
        refuse_key("rope_theta", f"{rope_theta} as the argument rope_theta", given["rope_theta"])


def number(key: str, value: Any, least: float = 0.0, itself: bool = False) -> float:
    """A number above `least` (itself: or equal to it) and below MOST."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        refuse_key(key, "a number", repr(value), TypeError)
    if not (least < value < MOST or (itself and value == least)):
        refuse_key(
            key, f"a number, {'at least' if itself else 'above'} {least:g}, below 2^64", value
        )
    return float(value)


def whole(name: str, value: Any, least: int) -> int:
    """An int of at least `least`; `name` as the error is to call it."""
    if not isinstance(value, int) or isinstance(value, bool):
        refuse(name, "an int", repr(value), TypeError)
    if value < least:
        refuse(name, f"{least} or more", value)
    return value


def flag(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        refuse_key(key, "True or False", repr(value), TypeError)
    return value


def sequence(key: str, value: Any, size: int) -> Sequence[Any]:
    """A list or tuple of so many elements."""
    if not isinstance(value, list | tuple):
        refuse_key(key, "a list", type(value).__name__, TypeError)
    if len(value) != size:
        refuse_key(key, f"a list of {size}", f"one of {len(value)}")
    return value
