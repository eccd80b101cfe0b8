"""Record which edits of the oracles their own tests notice: `python tests/record_oracle_mutants.py
FILE [EACH]`.

EACH (4) edits of every layer of every contract, spread evenly over its source; "few": one of every
contract, of its layers in turn. It takes about ten minutes; the result is committed under
docs/measurements.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from oracle_mutants import LAYERS, ORACLES, TESTS, Mutant, mutants, noticed_by, preload

from tightrope.blackbox import write_atomically
from tightrope.environment import environment

# module and function: line of source: edit -> why no test can tell it
EQUIVALENT = {
    "pope_table._frequencies: relative = (exponent * abs(np.log(case.rope_theta)) + 10) * 2.0**-53"
    " * (1 + 2.0**-30): 2.0 times 1.001": "a bound on the error, and still one",
    "attention_row_exact.dyadic: lowest = np.where(whole == 0, 1, whole & -whole): 1 to 2":
        "what 0 is divided by",
    "attention_backward_mpmath._sum: total = mpmath.mpf(0): 0 to 1":
        "a constant, which falls out of the difference that is taken",
    "attention_varlen_problems._problem: wide = max(1, *(len(span.k) for span in spans)): 1 to 2":
        "one more key of padding, which nobody sees",
}  # fmt: skip


def place(mutant: Mutant) -> str:
    """Where an edit is, whatever else its file holds."""
    lines = (ORACLES / f"{mutant.module}.py").read_text().splitlines()
    text = lines[mutant.line - 1].strip()
    return f"{mutant.module}.{mutant.function}: {text}: {mutant.edit}"


def spread(each: int) -> list[Mutant]:
    """So many of every layer, evenly over its source."""
    of: dict[tuple[str, str], list[Mutant]] = defaultdict(list)
    for mutant in mutants():
        of[mutant.contract, mutant.layer].append(mutant)
    found = []
    for every in of.values():
        step = max(1.0, len(every) / each)
        found += [every[int(i * step)] for i in range(min(each, len(every)))]
    return found


def few() -> list[Mutant]:
    """The middle one of one layer of every contract."""
    found = []
    for i, (contract, layers) in enumerate(LAYERS.items()):
        layer = list(layers)[i % len(layers)]
        every = [m for m in mutants() if (m.contract, m.layer) == (contract, layer)]
        found.append(every[len(every) // 2])
    return found


def main(path: str, each: str = "4") -> None:
    preload()
    chosen = few() if each == "few" else spread(int(each))
    for contract, files in () if each == "few" else TESTS.items():
        unchanged = noticed_by(None, files)
        if unchanged:
            raise SystemExit(f"{contract}: {unchanged} fails without any edit")
    noticed: dict[str, Any] = defaultdict(lambda: defaultdict(dict))
    unseen, equivalent = [], {}
    for mutant in chosen:
        test = noticed_by(mutant, TESTS[mutant.contract])
        noticed[mutant.contract][mutant.layer][str(mutant)] = test or None
        if not test and place(mutant) in EQUIVALENT:
            equivalent[place(mutant)] = EQUIVALENT[place(mutant)]
        elif not test:
            unseen.append(place(mutant))
        print(f"{mutant.contract} {mutant.layer} {mutant}: {test or 'NOT NOTICED'}", flush=True)
    record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": environment(), "edits": len(chosen), "not noticed": unseen,
        "equivalent": equivalent, "noticed by": noticed,
    }  # fmt: skip
    write_atomically(Path(path), json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
