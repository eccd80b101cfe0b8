"""The error budget of pope_table: rope_table's at twice the width, and the frequencies' own.

Derivation: docs/error-budgets.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np

from tightrope.arithmetic import Arithmetic
from tightrope.budget import Budget, Replay
from tightrope.formats import FORMATS, Array, Format
from tightrope.oracles import rope_table_budget

# What an unknown kernel is granted: rope_table's, and frequencies returned as what they are.
STAGES: Mapping[str, Any] = {
    **rope_table_budget.STAGES,
    "inv_freq_output": "float32",  # what the returned inv_freq is rounded to before it is widened
}


class Truth(Protocol):
    """Where exact numbers come from: the ball arithmetic of `pope_table_exact`."""

    @property
    def table(self) -> Callable[[tuple[int, ...], int, float, int], tuple[Array, Array]]:
        """(positions, rotary_dim, rope_theta, exponent_sign) -> cos, sin."""

    @property
    def inv_freq(self) -> Callable[[int, float, int, str], Array]:
        """(rotary_dim, rope_theta, exponent_sign, dtype) -> frequencies, correctly rounded."""


@dataclass(frozen=True)
class Wider:
    """`rope_table`'s exact numbers at twice the width, with frequencies of the given sign."""

    truth: Truth
    exponent_sign: int

    def table(
        self, positions: tuple[int, ...], rotary_dim: int, rope_theta: float
    ) -> tuple[Array, Array]:
        return self.truth.table(positions, rotary_dim // 2, rope_theta, self.exponent_sign)

    def inv_freq(self, rotary_dim: int, rope_theta: float, dtype: str) -> Array:
        return self.truth.inv_freq(rotary_dim // 2, rope_theta, self.exponent_sign, dtype)


def wider(truth: Truth, case: Any) -> tuple[Wider, Any]:
    """What `rope_table` would be asked for the same frequencies: its exact numbers and its case.

    It has no exponent but -2c/rotary_dim, so that s = 1 is a matter of the exact numbers.
    """
    asked = SimpleNamespace(
        rotary_dim=2 * case.rotary_dim, rope_theta=case.rope_theta, dtype=case.dtype
    )
    return Wider(truth, case.exponent_sign), asked


def budget(
    truth: Truth, case: Any, inputs: Mapping[str, Array], arithmetic: Arithmetic
) -> dict[str, Budget]:
    """Budgets of inv_freq (rotary_dim,), cos and sin (tokens, rotary_dim)."""
    numbers, asked = wider(truth, case)
    found = rope_table_budget.budget(numbers, asked, inputs, arithmetic)
    tables = {name: replace(b, terms=_renamed(b.terms)) for name, b in found.items()}
    return {"inv_freq": _frequencies(numbers, asked, arithmetic), **tables}


def _renamed(terms: Mapping[str, Array | float]) -> dict[str, Array | float]:
    """Exponents are c/rotary_dim here."""
    return {name.replace("2c/rotary_dim", "c/rotary_dim"): term for name, term in terms.items()}


def _frequencies(numbers: Wider, asked: Any, arithmetic: Arithmetic) -> Budget:
    """The budget of the returned frequencies: their error in the angles, eq. (P1), and (P2)."""
    theta = numbers.inv_freq(asked.rotary_dim, asked.rope_theta, "float64")
    held, output = arithmetic["inv_freq"], FORMATS[arithmetic["inv_freq_output"]]
    terms: dict[str, Array | float] = {}
    if held != "exact" and (held != output.name or held != "float64" or arithmetic["inv_freq_ulp"]):
        # else one rounding to float64, which is the output's own and no term
        terms |= rope_table_budget.inv_freq_terms(asked, theta, arithmetic)
    if output.name != "float64" and not _holds(output, held):
        step = output.half_ulp(theta + sum(terms.values(), np.zeros_like(theta)))
        step = np.where(np.isinf(output.round(theta)), rope_table_budget.ENDLESS, step)
        first = np.arange(len(theta)) == 0
        terms[f"returned inv_freq rounded to {output.name}"] = np.where(first, 0.0, step)
    replay = None
    if held == "exact" or not arithmetic["inv_freq_ulp"]:
        kept = output.name if held == "exact" else held
        replay = _replay(output, numbers.inv_freq(asked.rotary_dim, asked.rope_theta, kept))
    oracle = np.where(np.arange(len(theta)) == 0, 0.0, FORMATS["float64"].half_ulp(theta))
    return Budget(theta, _renamed(terms), "float64", oracle, replay)


def _holds(output: Format, held: str) -> bool:
    """Whether the output's format has every number of the other one; "exact" is no format."""
    if held == "exact":
        return False
    other = FORMATS[held]
    return other.precision <= output.precision and other.emin >= output.emin


def _replay(output: Format, kept: Array) -> Replay | None:
    """T1: what is kept of theta, rounded to what is returned: one number, if it is finite."""
    returned = output.round(kept)
    return Replay(returned) if np.isfinite(returned).all() else None
