"""Why a call is wrong: known mistakes first, then what was fitted, then another arithmetic.

What is told is checked against all outputs; where nothing is found, nothing is told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from tightrope.arithmetic import Arithmetic
from tightrope.diagnosis import (
    COMPUTED,
    Outputs,
    diagnose,
    explains,
    worst_case_holds,
    wrong_at,
)
from tightrope.diagnosis_places import place
from tightrope.formats import FORMATS, Array, widen

ELSE = ("input", "bfloat16", "float16", "float32", "tf32", "any", "none", None)  # of a stage
SPENT = 1 / 4  # of a promise, by the element that spends most
HIDDEN = "It reads what no row may see: with 0 in those slots it is right."
UNKNOWN = (ValueError, TypeError, KeyError, ArithmeticError)  # a stage has no such value
NOTHING = "No known mistake explains it."


@dataclass(frozen=True)
class Explained:
    """Why a call is wrong, and where: sentences, empty for none."""

    cause: str
    place: str

    def __str__(self) -> str:
        return "\n".join(x for x in (self.cause or NOTHING, self.place) if x)

    @property
    def data(self) -> dict[str, str]:
        """What is known, by name."""
        told = {"diagnosis": self.cause, "place": self.place}
        return {name: sentence for name, sentence in told.items() if sentence}


def explained(
    impl: Any, case: Any, inputs: Outputs, outputs: Outputs, budgets: Mapping[str, Any]
) -> Explained:
    """Of a call that failed. Where hidden slots may be why, it is run once more with 0 in them."""
    from tightrope.device import current

    if odd := _of_shape(outputs, budgets):
        return Explained(odd if odd != NOTHING else "", "")
    where = place(outputs, budgets)
    if finite := hidden(inputs, outputs, budgets):
        try:
            inputs, outputs = finite, impl(case, finite)
        except Exception as error:  # what is told is the first failure
            return Explained("", f"{where}\nWith 0 in hidden slots: {type(error).__name__}.")
        with np.errstate(all="ignore"):
            if _kept({name: budgets[name] for name in impl.outputs}, outputs):
                return Explained(HIDDEN, where)
    promise = impl.promise(case, current())
    return Explained(cause(impl.contract, case, inputs, outputs, budgets, promise), where)


def _of_shape(outputs: Outputs, budgets: Mapping[str, Any]) -> str:
    """What is known of outputs that are not even comparable; "" for those that are."""
    made = {n: (x.shape, x.dtype.name) for n, x in outputs.items() if n in budgets}
    asked = {n: (budgets[n].expected.shape, budgets[n].dtype) for n in made}
    if made == asked:
        return ""
    for one, other in combinations(made, 2):
        if {**made, one: made[other], other: made[one]} == asked:
            return f"{COMPUTED}: {one} and {other} returned in each other's place."
    return NOTHING


def cause(
    spec: Any, case: Any, inputs: Outputs, outputs: Outputs, budgets: Mapping[str, Any],
    arithmetic: Any,
) -> str:  # fmt: skip
    """What a contract knows that explains a call's outputs; empty if that is nothing."""
    with np.errstate(all="ignore"):
        known = diagnose(spec.alternatives(case, inputs), outputs, budgets, arithmetic)
        if known.startswith(COMPUTED):
            return known
        fitted = diagnose(spec.fits(case, inputs, outputs, budgets), outputs, budgets, arithmetic)
        if fitted.startswith(COMPUTED):
            return fitted
        each = _promises(spec, case, inputs, outputs, arithmetic, budgets)
        promised = min(each, key=lambda found: found[0], default=(0.0, ""))[1]
    return promised or known or fitted


def _promises(
    spec: Any, case: Any, inputs: Outputs, outputs: Outputs, arithmetic: Mapping[str, Any],
    budgets: Mapping[str, Any],
) -> Iterator[tuple[float, str]]:  # fmt: skip
    """(how far off, promise) that differ in one stage and that the outputs keep in every element.

    One that grants much more than was spent says nothing: what it prescribes has to lie nearer to
    what is wrong than the right roundings do, or `SPENT` of its worst case has to be spent.
    """
    wrong = {n: wrong_at(outputs[n], b) for n, b in budgets.items() if n in outputs}
    bounded = worst_case_holds(outputs, budgets)
    for stage, value in arithmetic.items():
        if (value is not None and not isinstance(value, str)) or stage == "block_k":
            continue  # of any blocks there is only a worst case
        for other in ELSE:
            if other == value:
                continue
            try:
                found = spec.budget(case, inputs, Arithmetic(**{**arithmetic, stage: other}))
            except UNKNOWN:
                continue
            mine = {name: b for name, b in found.items() if name in outputs}
            if not _kept(mine, outputs):
                continue
            middle = {n: b.format.round(_centre(b)) for n, b in mine.items()}
            replayed = any(b.replay is not None for b in mine.values())
            near = replayed and explains(middle, outputs, budgets, wrong)
            share = max(float(b.share(outputs[n]).max(initial=0.0)) for n, b in mine.items())
            if near or (share >= SPENT and not bounded):
                told = f"It would be right if it promised {stage}={other!r}, not {value!r}."
                yield (-1.0 if near else -share), told


def _centre(budget: Any) -> Array:
    """Where prescribed roundings lead, or else the exact result."""
    return np.asarray(budget.expected if budget.replay is None else budget.replay.centre)


def _kept(budgets: Mapping[str, Any], outputs: Outputs) -> bool:
    return all(b.accepts(outputs[n]) for n, b in budgets.items() if n in outputs)


def hidden(inputs: Outputs, outputs: Outputs, budgets: Mapping[str, Any]) -> dict[str, Array]:
    """The inputs with 0 for what is not finite, if that may be why outputs are not; else empty.

    -inf alone is left: a bias may hide keys with it.
    """
    if not any((~np.isfinite(widen(outputs[n])) & np.isfinite(b.expected)).any()
               for n, b in budgets.items() if n in outputs):  # fmt: skip
        return {}
    found = {}
    for name, x in inputs.items():
        if name != "bias" and x.dtype.name in FORMATS and not np.isfinite(widen(x)).all():
            found[name] = np.where(np.isfinite(widen(x)), x, np.zeros((), x.dtype))
    return {**inputs, **found} if found else {}
