"""Record the smallest errors that are found: `python tests/record_sharpness.py FILE [SEEDS]
[PROCESSES]`.

For every twin of tests/twins_with_an_error.py, every stage and every dtype: the smallest relative
error, a power of two (of an angle of `rope`: in radians), that `test_matches_oracle` finds under
each of 20 seeds within 100 cases; and within how many cases it finds one of 0.1 %. Outputs are in
the dtype of the inputs. A right twin must pass 300 cases. It takes about half an hour; the result
is committed under docs/measurements.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from twins_with_an_error import LIMITS, TWINS

from tightrope.blackbox import write_atomically
from tightrope.contract import contract as contract_named
from tightrope.device import current, prepare
from tightrope.environment import environment
from tightrope.implementation import Implementation
from tightrope.law import strategy
from tightrope.verdict import judge

CASES, SMALLEST, TOLD, RIGHT = 100, 24, 1e-3, 3
DTYPES = ("bfloat16", "float32")


class Subject:
    """A twin on cases of one dtype; cases, inputs and budgets are made once for all errors.

    alone: only the first output is returned and judged.
    """

    def __init__(self, contract: str, arithmetic: Any, dtype: str, alone: bool = False) -> None:
        limits = {"dtype": (dtype,), "out_dtype": ("input",), "size": ("small",)}
        limits |= LIMITS.get(contract, {})
        known = {k: v for k, v in limits.items() if k in contract_named(contract).domain}
        self.impl = Implementation(
            contract_name=contract, name="twin", fn=lambda: None, limits=known,
            arithmetic=arithmetic, returns=("out",) if alone else None,
        )  # fmt: skip
        self.made = cache(self._made)
        self.cases = cache(self._cases)

    def _cases(self, number: int) -> list[Any]:
        found: list[Any] = []

        @seed(number)
        @settings(
            max_examples=CASES, deadline=None, database=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(strategy(self.impl))
        def draw(case: Any) -> None:
            found.append(case)

        draw()
        return found[:CASES]

    def _made(self, number: int, place: int) -> tuple[Any, Any, Any]:
        case = self.cases(number)[place]
        inputs = self.impl.contract.inputs(case)
        return case, inputs, self.impl.budgets(case, inputs, current())

    def found_after(self, fn: Any, number: int) -> int | None:
        """How many cases it takes under one seed; None if they do not show it."""
        first = (lambda *args, **options: fn(*args, **options)[0]) if self.impl.returns else fn
        twin = replace(self.impl, fn=first)
        for place in range(len(self.cases(number))):
            case, inputs, budgets = self.made(number, place)
            with np.errstate(all="ignore"):
                outputs = twin(case, inputs)
                if not all(judge(n, outputs[n], budgets[n]).ok for n in twin.outputs):
                    return place + 1
        return None


def found_by_all(subject: Subject, fn: Any, seeds: int) -> list[int] | None:
    """Cases it takes under each seed; None if one does not find it."""
    counts = []
    for number in range(seeds):
        count = subject.found_after(fn, number)
        if count is None:
            return None
        counts.append(count)
    return counts


def sharpness(subject: Subject, make: Any, seeds: int) -> dict[str, Any]:
    """The smallest power of two that all seeds find, by bisection; larger ones are found sooner."""
    low, high, shown = 0, SMALLEST + 1, None  # 2**-low is found (or too large to ask), 2**-high not
    while high - low > 1:
        middle = (low + high) // 2
        counts = found_by_all(subject, make(2.0**-middle), seeds)
        low, high, shown = (low, middle, shown) if counts is None else (middle, high, counts)
    told = found_by_all(subject, make(TOLD), seeds)
    return {
        "smallest error found": None if shown is None else 2.0**-low,
        "cases for it, median and worst": shown and [float(np.median(shown)), max(shown)],
        "cases for 0.1 %, median and worst": told and [float(np.median(told)), max(told)],
    }


def of_one(what: tuple[str, str, str, int]) -> tuple[str, str, dict[str, Any]]:
    """All stages of one twin and dtype; raises RuntimeError if the right twin is rejected."""
    contract, declares, dtype, seeds = what
    prepare("cpu")
    arithmetic, stages = TWINS[contract, declares]
    subject = Subject(contract, arithmetic, dtype, "out alone" in declares)
    name = f"{contract}, declares {declares}"
    right = next(iter(stages.values()))(0.0)
    if any(subject.found_after(right, number) for number in range(RIGHT)):
        raise RuntimeError(f"{name}, {dtype}: the right twin is rejected")
    return name, dtype, {stage: sharpness(subject, make, seeds) for stage, make in stages.items()}


def main(path: str, seeds: str = "20", processes: str = "1") -> None:
    asked = [
        (contract, declares, dtype, int(seeds))
        for contract, declares in TWINS for dtype in DTYPES
        if dtype in contract_named(contract).domain["dtype"]
    ]  # fmt: skip
    record: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"), "environment": environment(),
        "seeds": int(seeds), "cases": CASES, "cases of each right twin": RIGHT * CASES,
        "stages": {},
    }  # fmt: skip
    with ProcessPoolExecutor(int(processes), mp_context=get_context("spawn")) as pool:
        for name, dtype, found in pool.map(of_one, asked):
            record["stages"].setdefault(name, {})[dtype] = found
            print(name, dtype, found, flush=True)
            write_atomically(Path(path), json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
