"""The stages of attention's arithmetic, and what a set of them means for one problem."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tightrope.formats import FORMATS, Format
from tightrope.oracles.attention_numbers import TF32, U
from tightrope.oracles.attention_problem import Problem

STAGES: dict[str, Any] = {
    "dot": "any",
    "dot_precision": "ieee",
    "scores": "float32",
    "logits": "any",
    "p": "input",
    "accumulator": "unnormalised",
    "block_k": None,
    "exp_ulp": 2.5,
    "exp_flush": True,
    "division_ulp": 2.5,
    "log_ulp": 1.0,
    "lse": "any",
    "sink": "any",
}
"""What a stranger is granted; the values and their meaning: docs/error-budgets.md, attention."""

CHOICES = {
    "dot": ("any", "hopper_mma"),
    "dot_precision": ("ieee", "tf32", "tf32x3"),
    "logits": ("any", "scaled"),
    "accumulator": ("unnormalised", "normalised"),
    "lse": ("any", "base2", "natural"),
    "sink": ("any", "start", "end"),
    "exp_flush": (True, False),
}
LOWEST = {"exp_ulp": 0.5, "division_ulp": 0.5, "log_ulp": 0.5}


@dataclass(frozen=True)
class Stages:
    """Stages resolved for one problem. Formats are None where nothing is rounded.

    mma: both products follow the Hopper model. addition: roundings that one addition of a dot
    product counts for, 1 to nearest, 2 for truncating tensor cores. scaled: step 2 of the bundled
    kernels. exp: relative error of one exponential.
    """

    io: Format
    out: Format
    mma: bool
    addition: int
    precision: str
    scores: Format | None
    scaled: bool
    p: Format | None
    normalised: bool
    block: int | None
    exp: float
    exp_ulp: float
    flush: bool
    division: float
    log: float
    lse: str
    sink: str

    @property
    def truncated(self) -> bool:
        """Whether P and V are truncated to tf32."""
        return self.precision == "tf32"

    @classmethod
    def of(cls, problem: Problem, arithmetic: Mapping[str, Any]) -> Stages:
        """Raises ValueError, naming the stage, for a value that means nothing here."""
        given = {**STAGES, **arithmetic}
        _check(given)
        half = problem.dtype in ("float16", "bfloat16")
        precision = "ieee" if half else given["dot_precision"]
        p = TF32 if precision == "tf32" else _format(given, "p", problem.dtype)
        return cls(
            io=FORMATS[problem.dtype],
            out=FORMATS[problem.out_dtype],
            mma=half and given["dot"] == "hopper_mma",
            addition=1 if not half and precision == "ieee" else 2,
            precision=precision,
            scores=_format(given, "scores", problem.dtype),
            scaled=given["logits"] == "scaled",
            p=p,
            normalised=given["accumulator"] == "normalised",
            block=given["block_k"],
            exp=2 * given["exp_ulp"] * U,
            exp_ulp=given["exp_ulp"],
            flush=given["exp_flush"],
            division=given["division_ulp"],
            log=given["log_ulp"],
            lse=given["lse"],
            sink="none" if problem.sink is None else given["sink"],
        )


def _check(given: Mapping[str, Any]) -> None:
    for stage, value in given.items():
        if stage not in STAGES:
            raise ValueError(f"attention: unknown stage {stage}; known: {', '.join(STAGES)}")
        if stage in CHOICES and value not in CHOICES[stage]:
            known = ", ".join(map(repr, CHOICES[stage]))
            raise ValueError(f"attention: {stage}={value!r}; known: {known}")
        if stage in LOWEST and not LOWEST[stage] <= value < 2.0**20:
            raise ValueError(f"attention: {stage}={value!r} must be at least {LOWEST[stage]}")
    block = given["block_k"]
    if block is not None and (not isinstance(block, int) or isinstance(block, bool) or block < 1):
        raise ValueError(f"attention: block_k={block!r} is None or a positive int")


def _format(given: Mapping[str, Any], stage: str, dtype: str) -> Format | None:
    """None for float32: the value is rounded to float32 where it arises, whatever follows."""
    name = dtype if given[stage] == "input" else given[stage]
    if name not in ("float32", "float16", "bfloat16"):
        raise ValueError(f"attention: {stage}={given[stage]!r} is no format for {dtype} inputs")
    return None if name == "float32" else FORMATS[name]
