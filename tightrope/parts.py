"""Calls that see a part of the keys, and what they say of the whole: for laws of attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tightrope.budget import Budget, Violation
from tightrope.compare import budgets, reach, within
from tightrope.formats import Array, widen

Call = tuple[Mapping[str, Array], Mapping[str, Budget]]
"""Outputs of a call, and their budgets."""

# Of a weight: exp rounds an exponent of at most 746 to 53 bits, and few roundings follow.
FLOAT64 = 2.0**-42


def called(impl: Any, case: Any, inputs: Mapping[str, Array]) -> Call:
    return impl(case, inputs), budgets(impl, case, inputs)


def agree(names: Sequence[str], one: Call, other: Call, story: str) -> None:
    """Demand that two calls with one exact result are within the sum of their budgets.

    Not bit for bit even where every rounding is declared: those of the two calls are not the same.
    """
    __tracebackhide__ = True
    (a, first), (b, second) = one, other
    for name in names:
        difference = np.where(a[name] == b[name], 0.0, widen(a[name]) - widen(b[name]))
        within(name, difference, reach(first[name]) + reach(second[name]), story)


def of_keys(inputs: Mapping[str, Array], keys: Any) -> dict[str, Array]:
    """The inputs with some keys only, or in another order; `keys` is an index of that axis."""
    axes = {"k": np.s_[:, :, keys], "v": np.s_[:, :, keys], "k_positions": np.s_[..., keys]}
    count = inputs["k"].shape[2]
    if "bias" in inputs and inputs["bias"].shape[-1] == count:
        axes["bias"] = np.s_[..., keys]
    kept = {name: np.ascontiguousarray(inputs[name][at]) for name, at in axes.items()
            if name in inputs}  # fmt: skip
    return {**inputs, **kept}


def of_rows(inputs: Mapping[str, Array], rows: Any) -> dict[str, Array]:
    """The inputs of a gradient with some queries only."""
    axes: dict[str, Any] = dict.fromkeys(("dout", "q", "out", "lse"), np.s_[:, :, rows])
    axes["q_positions"] = np.s_[..., rows]
    kept = {name: np.ascontiguousarray(inputs[name][at]) for name, at in axes.items()
            if name in inputs}  # fmt: skip
    return {**inputs, **kept}


def of_sequences(inputs: Mapping[str, Array], at: Any) -> dict[str, Array]:
    """The inputs of a gradient with some sequences of a batch only."""
    shared = ("inv_freq", "delta", *(n for n in inputs if "positions" in n and inputs[n].ndim == 1))
    return {n: x if n in shared else np.ascontiguousarray(x[at]) for n, x in inputs.items()}


def later(
    inputs: Mapping[str, Array], names: Sequence[str], shift: int
) -> tuple[dict[str, Array], int]:
    """The inputs with positions later by `shift`, or earlier where their dtype has no room."""
    places = [inputs[name] for name in names]
    limit = np.iinfo(places[0].dtype)
    ends = [0, *(int(f(p)) for p in places if p.size for f in (np.min, np.max))]
    by = next(b for b in (shift, -shift, 0) if all(limit.min <= e + b <= limit.max for e in ends))
    moved = {name: inputs[name] + inputs[name].dtype.type(by) for name in names}
    return {**inputs, **moved}, by


def is_merged(whole: Call, states: Sequence[Call], story: str) -> None:
    """Demand that a call is what states merge to, within its budgets and theirs."""
    __tracebackhide__ = True
    outputs, spent = whole
    out, lse, e_out, e_lse = merged(states)
    within("out", out - widen(outputs["out"]), e_out + reach(spent["out"]), story)
    live = np.isfinite(spent["lse"].expected)
    difference = np.where(live, lse - widen(outputs["lse"]), 0.0)
    within("lse", difference, e_lse + reach(spent["lse"]), story)


def merged(states: Sequence[Call]) -> tuple[Array, Array, Array, Array]:
    """(out, lse, bounds of their errors) of parts, each (outputs, budgets), merged in float64.

    With w_i = exp(lse_i - lse), every lse_i off by at most a_i and out_i by at most b_i, the
    weights are off by the factors 1 + eps_i, |eps_i| <= expm1(a_i), and out = sum w_i out_i by at
    most (sum w_i eps_i |out_i - out| + sum w_i (1 + eps_i) b_i) / (1 - sum w_i eps_i); lse by at
    most max a_i over live parts (docs/error-budgets.md, laws of attention). Raises Violation for a
    part without a key that is not (0, -inf), and for one with a key whose lse is not finite.
    """
    live = np.stack([np.isfinite(b["lse"].expected) for _, b in states])
    lses = np.stack([widen(outputs["lse"]) for outputs, _ in states])
    outs = np.stack([widen(outputs["out"]) for outputs, _ in states])
    demand(live, lses, outs)
    off_lse = np.stack([np.broadcast_to(reach(b["lse"]), lses[0].shape) for _, b in states])
    off_out = np.stack([reach(b["out"]) for _, b in states])
    lses = np.where(live, lses, -np.inf)
    top = lses.max(axis=0)
    weights = np.exp(lses - np.where(np.isfinite(top), top, 0.0))
    total = weights.sum(axis=0)
    lse = np.where(total > 0, np.log(np.where(total > 0, total, 1.0)) + top, -np.inf)
    w = (weights / np.where(total > 0, total, 1.0))[..., None]
    eps = np.where(live, np.expm1(off_lse), 0.0)[..., None]
    out = (w * outs).sum(axis=0)
    spread = (w * eps * np.abs(outs - out)).sum(axis=0) + (w * (1 + eps) * off_out).sum(axis=0)
    kept = 1 - (w * eps).sum(axis=0)
    own = FLOAT64 * (w * np.abs(outs)).sum(axis=0)
    e_out = np.where(kept > 0, spread / np.where(kept > 0, kept, 1.0), np.inf) + own
    largest = np.abs(np.where(live, lses, 0.0)).max(axis=0)
    e_lse = np.where(live, off_lse, 0.0).max(axis=0) + FLOAT64 * (1 + largest)
    return out, lse, e_out, e_lse


def demand(live: Array, lses: Array, outs: Array) -> None:
    """Parts without a key are (0, -inf), parts with one have a finite lse."""
    wrong = np.where(live, ~np.isfinite(lses), ~np.isneginf(lses) | (outs != 0).any(axis=-1))
    if wrong.any():
        part, *row = (int(i) for i in np.argwhere(wrong)[0])
        keys = "a key" if live[part, *row] else "no key"
        raise Violation(
            f"row {row} sees {keys} of part {part}, whose lse is {lses[part, *row]:.9g} and whose "
            f"out has {np.count_nonzero(outs[part, *row])} elements other than 0"
        )
