"""The same limits for a builder of tables under test: an implementation of `rope_table`.

It is called on all positions in blocks, from 0 on, until every limit is found; when the seconds
given are over, at positions in even ratios up to the last, and the record says from where on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tightrope.audit_angles import SLACK, Frequencies, of_rope
from tightrope.audit_positions import MEASURES, TOLERANCES
from tightrope.contract import contract
from tightrope.device import prepare, to_numpy
from tightrope.formats import Array, widen
from tightrope.implementation import Implementation
from tightrope.rope_scaling import RopeScaling, read
from tightrope.subjects import chosen, under_test

FACTOR, LENGTH, TOKENS = 8.0, 8192, 65536
BLOCK = 1 << 12


@dataclass(frozen=True)
class Scaled:
    """One `rope_scaling`: its mapping, what it says, its frequencies and attention_factor."""

    name: str
    mapping: dict[str, Any] | None
    seq_len: int | None
    read: RopeScaling
    exact: Frequencies
    factor: float


def scaled(name: str, rotary_dim: int, rope_theta: float) -> Scaled:
    """The scaling named, by 8 from 8,192 tokens in a sequence of 65,536 where it asks for them."""
    from importlib import import_module

    spec = contract("rope_table")
    case = spec.case(
        rope_scaling=name, factor=FACTOR, length=LENGTH, rotary_dim=rotary_dim,
        rope_theta=rope_theta,
    )  # fmt: skip
    mapping = spec.options(case)["rope_scaling"]
    seq_len = TOKENS if name in ("dynamic", "longrope") else None
    found = read(mapping, rotary_dim=rotary_dim, rope_theta=rope_theta, seq_len=seq_len)
    ball = import_module("tightrope.oracles.rope_scaling_exact").attention_factor(found, 128)
    exact = of_rope(rotary_dim, rope_theta, found if mapping else None)
    return Scaled(name, mapping, seq_len, found, exact, float(ball.mid() if mapping else 1.0))


def builders(specs: Sequence[str], device: str | None) -> list[Implementation]:
    """The implementations of rope_table that are named. Raises LookupError if there are none."""
    prepare(device)
    found = [i for i in under_test(chosen(specs, ())) if i.contract_name == "rope_table"]
    if not found:
        raise LookupError(f"--impl: expected an implementation of rope_table, got {list(specs)}")
    return found


def asked_of(
    impl: Implementation, bases: Sequence[float], dims: Sequence[int], scalings: Sequence[str]
) -> Iterator[tuple[float, int, Scaled]]:
    """What of these lies within an implementation's limits."""
    limits = impl.allowed()
    for base in (b for b in bases if b in limits.values("rope_theta")):
        for dim in (d for d in dims if d in limits.values("rotary_dim")):
            for name in (s for s in scalings if s in limits.values("rope_scaling")):
                yield base, dim, scaled(name, dim, base)


def build(impl: Implementation, positions: Array, dim: int, base: float, at: Scaled) -> list[Array]:
    """cos and sin of an implementation, float64 (len, rotary_dim/2). Raises what it raises, and
    ValueError for outputs of another shape.
    """
    import torch

    home = "cuda" if prepare().kind == "cuda" else "cpu"
    given: dict[str, Any] = {"rotary_dim": dim, "rope_theta": base}
    if at.mapping is not None:
        given |= {"rope_scaling": at.mapping, "seq_len": at.seq_len}
    found = [to_numpy(x) for x in impl.fn(torch.from_numpy(positions).to(home), **given)]
    shape = (len(positions), dim // 2)
    if len(found) != 2 or any(x.shape != shape for x in found):
        shapes = [x.shape for x in found]
        raise ValueError(f"{impl.name}: expected cos, sin of shape {shape}, got {shapes}")
    return [widen(x) for x in found]


def errors(
    impl: Implementation, positions: Array, dim: int, base: float, at: Scaled
) -> tuple[Array, float]:
    """Both measures of each position (2, len) in float64, and how far they may be off."""
    cos, sin = build(impl, positions, dim, base, at)
    sine, cosine = at.exact.sin_cos(positions[:, None])
    off = [np.abs(x - at.factor * y) for x, y in ((sin, sine), (cos, cosine))]
    slack = 4 * SLACK * max(1.0, at.factor)
    found = np.array([np.maximum(*off).max(axis=1), np.hypot(*off).max(axis=1)])
    return np.where(np.isfinite(found), found, np.inf), slack


def limits(
    impl: Implementation, dim: int, base: float, at: Scaled, to: int, seconds: float
) -> dict[str, Any]:
    """As `audit_positions.scan`; where time was over first, "limit" is the last position before
    which all were tried, "exact" false, and "at" a violation that was found further on.

    A measured error within its own slack of the tolerance counts as reaching it.
    """
    found: dict[str, Any] = {m: {} for m in MEASURES}
    begun, proved, every = time.perf_counter(), -1, True
    for positions in _blocks(to, lambda: time.perf_counter() - begun < seconds):
        every = every and int(positions[-1] - positions[0]) == len(positions) - 1
        both, slack = errors(impl, positions, dim, base, at)
        for measure, row in zip(MEASURES, both, strict=True):
            for p in TOLERANCES:
                bad = np.nonzero(row >= 2.0**p - slack)[0]
                if bad.size and str(p) not in found[measure]:
                    first, error = int(positions[bad[0]]), float(row[bad[0]])
                    found[measure][str(p)] = {
                        "limit": first - 1 if every else proved, "exact": every,
                        "at": (first, None), "error": error,
                    }  # fmt: skip
        proved = int(positions[-1]) if every else proved
        if all(len(known) == len(TOLERANCES) for known in found.values()):
            break
    for known in found.values():
        for p in TOLERANCES:
            known.setdefault(str(p), {"limit": proved, "exact": every, "searched_to": to})
    return found


def _blocks(to: int, in_time: Any) -> Iterator[Array]:
    """Positions 0..to in blocks; once time is over, the rest in even ratios."""
    begin = 0
    while begin <= to:
        if begin and not in_time():
            rest = np.unique(np.geomspace(max(begin, 1), to, 512).astype(np.int64))
            yield rest[rest >= begin]
            return
        yield np.arange(begin, min(begin + BLOCK, to + 1))
        begin += BLOCK


def curve(impl: Implementation, dim: int, base: float, at: Scaled, to: int) -> list[Any]:
    """(position, "table" error) at positions in even ratios."""
    positions = np.unique(np.geomspace(1, to, 241).astype(np.int64))
    both, _ = errors(impl, positions, dim, base, at)
    return [(int(m), float(e)) for m, e in zip(positions, both[0], strict=True)]
