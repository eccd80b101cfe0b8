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
from tightrope.diagnosis import COMPUTED, Outputs, diagnose
from tightrope.diagnosis_places import place
from tightrope.formats import FORMATS, Array, widen

ELSE = ("input", "bfloat16", "float16", "float32", "tf32", "any", "none", None)  # of a stage
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
    finite = hidden(inputs, outputs, budgets)
    if finite and _right(impl, case, finite, budgets):
        told = HIDDEN
    else:
        told = cause(impl.contract, case, inputs, outputs, budgets, impl.promise(case, current()))
    return Explained(told, place(outputs, budgets))


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


def _right(impl: Any, case: Any, inputs: Outputs, budgets: Mapping[str, Any]) -> bool:
    """Whether the same call is right with these inputs, which must not matter."""
    again = impl(case, inputs)
    with np.errstate(all="ignore"):
        return all(budgets[name].accepts(again[name]) for name in impl.outputs)


def cause(
    spec: Any, case: Any, inputs: Outputs, outputs: Outputs, budgets: Mapping[str, Any],
    arithmetic: Any,
) -> str:  # fmt: skip
    """What a contract knows that explains a call's outputs; empty if that is nothing."""
    with np.errstate(all="ignore"):
        known = diagnose(spec.alternatives(case, inputs), outputs, budgets, arithmetic)
        if known.startswith(COMPUTED):
            return known
        fitted = diagnose(spec.fits(case, inputs, outputs), outputs, budgets, arithmetic)
        if fitted.startswith(COMPUTED):
            return fitted
        promised = next(_promises(spec, case, inputs, outputs, arithmetic), "")
    return promised or known or fitted


def _promises(
    spec: Any, case: Any, inputs: Outputs, outputs: Outputs, arithmetic: Mapping[str, Any]
) -> Iterator[str]:
    """Promises that differ in one stage and that the outputs keep, in every element."""
    for stage, value in arithmetic.items():
        if value is not None and not isinstance(value, str) and stage != "block_k":
            continue
        for other in ELSE:
            if other == value:
                continue
            try:
                found = spec.budget(case, inputs, Arithmetic(**{**arithmetic, stage: other}))
            except UNKNOWN:
                continue
            if _kept(found, outputs):
                yield f"It would be right if it promised {stage}={other!r}, not {value!r}."


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
