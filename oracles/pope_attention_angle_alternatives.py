"""Known mistakes in the angles of polar attention: frequencies, tables, delta and positions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from tightrope.formats import FORMATS, Array, widen
from tightrope.oracles.pope_attention_points import Points
from tightrope.oracles.pope_attention_problem import Polar, repeated

Told = Iterator[tuple[str, Points]]


def of_angles(points: Points) -> Told:
    """Other frequencies, and other cosines and sines."""
    inv_freq = widen(points.given["inv_freq"])
    width = len(inv_freq)
    pairs, halves = np.arange(width) // 2 * 2, np.arange(width) % -(-width // 2) * 2
    yield "frequencies of the exponent's other sign", points.given_as(inv_freq=1 / inv_freq)
    yield "one frequency for features 2i and 2i + 1", points.given_as(inv_freq=inv_freq[pairs])
    yield (
        "one frequency for features i and i + rotary_dim/2",
        points.given_as(inv_freq=inv_freq[np.minimum(halves, width - 1)]),
    )
    yield "the imaginary parts (sin) left out", points.each(lambda _, x: replace(x, sin=0 * x.sin))
    yield "the real parts (cos) left out", points.each(lambda _, x: replace(x, cos=0 * x.cos))
    for which in ("q", "k"):
        for form, told in ((points, ""), (_on_query(points), ", delta taken off q")):
            yield f"cos and sin of {which} exchanged{told}", form.each(_exchanged(which))
            yield f"sin of {which} negated{told}", form.each(_conjugated(which))
            yield (
                f"the imaginary parts (sin) of {which} left out{told}",
                form.each(_without_sin(which)),
            )
    yield "angles added, not subtracted", points.each(_conjugated("k"))
    yield "the opposite direction (m - n for n - m)", points.given_as(inv_freq=-inv_freq)
    for name in ("bfloat16", "float16"):
        yield f"cos and sin rounded to {name}", points.each(_rounded(name))
    for name in dict.fromkeys(("float32", points.case.dtype)):
        yield f"angles in {name}", points.each(_angles_in(points, name))
    yield "positions ignored", points.still("inv_freq")


def _conjugated(which: str) -> Callable[[str, Polar], Polar]:
    return lambda name, x: replace(x, sin=-x.sin) if name == which else x


def _exchanged(which: str) -> Callable[[str, Polar], Polar]:
    return lambda name, x: replace(x, cos=x.sin, sin=x.cos) if name == which else x


def _without_sin(which: str) -> Callable[[str, Polar], Polar]:
    return lambda name, x: replace(x, sin=0 * x.sin) if name == which else x


def _on_query(points: Points) -> Points:
    """The same scores where delta is taken off the angles of q, not added to those of k."""
    if "delta" not in points.given:
        return points
    c, s = _phase(points)
    q = points.q
    turned = replace(q, cos=q.cos * c + q.sin * s, sin=q.sin * c - q.cos * s)
    return replace(points, q=turned, k=points.without("delta").k)


def _phase(points: Points) -> tuple[Array, Array]:
    """cos and sin of delta for every query head, (num_heads or 1, 1, rotary_dim)."""
    delta = repeated(points.case, widen(points.given["delta"]), axis=0)[:, None, :]
    return np.cos(delta), np.sin(delta)


def _rounded(to: str) -> Callable[[str, Polar], Polar]:
    fmt = FORMATS[to]
    return lambda _, x: replace(x, cos=fmt.round(x.cos), sin=fmt.round(x.sin))


def _angles_in(points: Points, to: str) -> Callable[[str, Polar], Polar]:
    """Position, frequency, product and sum rounded to a format."""
    fmt, given = FORMATS[to], points.given

    def turned(name: str, x: Polar) -> Polar:
        position = fmt.round(np.atleast_2d(given[f"{name}_positions"])[:, None, :, None])
        angle = fmt.round(position * fmt.round(widen(given["inv_freq"])))
        if name == "k" and "delta" in given:
            delta = repeated(points.case, widen(given["delta"]), axis=0)
            angle = fmt.round(angle + fmt.round(delta[:, None, :]))
        return replace(x, cos=np.cos(angle), sin=np.sin(angle))

    return turned


def of_delta(points: Points) -> Told:
    """Delta left out, of another sign, or of another head."""
    if "delta" not in points.given:
        return
    case, delta = points.case, points.given["delta"]
    group = case.num_heads // case.num_kv_heads

    def instead(other: Array) -> Points:
        return points.given_as(delta=other)

    yield "no delta, or the same on q and k", points.without("delta")
    (c, s), q, k = _phase(points), points.q, points.without("delta").k
    cos = q.cos * c + q.sin * s
    yield "delta in the cosine of q alone", replace(points, q=replace(q, cos=cos), k=k)
    sin = q.sin * c - cos * s
    changed = replace(points, q=replace(q, cos=cos, sin=sin), k=k)
    yield "delta in the sine of q from the cosine that is changed already", changed
    yield "delta negated, or on q in place of k", instead(-delta)
    yield "delta twice", instead(2 * delta)
    yield "delta clamped to [-2 pi, 0]", instead(np.clip(delta, -np.float32(2 * np.pi), 0))
    yield "the first head's delta for all", instead(delta[:1])
    yield "the mean of delta over heads for all", instead(delta.mean(axis=0, keepdims=True))
    yield "delta of the heads in reverse order", instead(delta[::-1])
    if len(delta) == case.num_heads:
        first = np.arange(case.num_heads) // group
        yield "a query head's delta taken at its kv head's number", instead(delta[first])
        yield "the delta of a group's first head for the group", instead(delta[first * group])
    else:
        order = np.arange(case.num_heads) % len(delta)
        yield "delta of kv head h % num_kv_heads, not h // group", instead(delta[order])


def of_positions(points: Points) -> Told:
    """Others' positions, neighbouring ones, and positions that mask."""
    case, given = points.case, points.given
    at = {name: given[name].astype(np.int64) for name in ("q_positions", "k_positions")}
    sizes = {name: np.abs(x) for name, x in at.items()}
    yield "the absolute values of positions", points.given_as(**sizes)
    for one, other in (("q", "k"), ("k", "q")):
        if len(at[f"{one}_positions"].T) == len(at[f"{other}_positions"].T):
            taken = {f"{one}_positions": given[f"{other}_positions"]}
            yield f"{one} turned by the positions of {other}", points.given_as(**taken)
    for step, word in ((1, "late"), (-1, "early")):
        for name, x in at.items():
            yield f"{name} one {word}", points.given_as(**{name: x + step})
        both = {name: x + step for name, x in at.items()}
        yield f"all positions one {word}", points.given_as(**both)
    keys, queries = np.arange(case.seqlen_k), np.arange(case.seqlen_q)
    placed = {"q_positions": queries + case.q_offset, "k_positions": keys}
    yield "indices taken for positions", points.given_as(**placed)
    counted = {"q_positions": queries, "k_positions": keys}
    yield "positions counted from 0 in both q and k", points.given_as(**counted)
    for name, x in at.items():
        if x.shape[-1]:
            yield f"{name} taken as a run from the first", points.given_as(**{name: _run(x)})
    if any(x.ndim == 2 and len(x) > 1 for x in at.values()):
        first = {name: x[:1] for name, x in at.items()}
        yield "the first sequence's positions for all", points.given_as(**first)
        for name, x in first.items():
            yield f"the first sequence's {name} for all", points.given_as(**{name: x})
    if case.causal:
        q, k = (np.atleast_2d(x) for x in at.values())
        mask = (k[:, None, :] <= q[:, :, None])[:, None]
        yield "positions taken for indices by the mask", replace(points, mask=mask)


def _run(x: Array) -> Array:
    return np.asarray(x[..., :1] + np.arange(x.shape[-1]))
