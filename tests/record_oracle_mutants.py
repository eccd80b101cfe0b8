"""Record which edits of the oracles their own tests notice: `python tests/record_oracle_mutants.py
FILE [EACH] [PROCESSES]`.

EACH (4) edits of every layer of every contract, spread evenly over its source; "few": one of every
contract, of its layers in turn. It takes about ten minutes; the result is committed under
docs/measurements.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from oracle_mutants import LAYERS, ORACLES, TESTS, Mutant, mutants, noticed_by, preload

from tightrope.blackbox import write_atomically
from tightrope.environment import environment

# module and function: line of source: edit -> why no test can tell it
EQUIVALENT = {
    "rope_scaling.selected: long = (scaling.seq_len or 0) > "
    "scaling.original_max_position_embeddings: 0 to 1": "1 token is within every trained length",
    "rope_scaling_exact.balls: power -= growth * arb(fmpq(2 * c, max(rotary_dim - 2, 1))): 1 to 2":
        "what column 0, which has no such power, would be divided by",
    "attention_row_exact.decided: if abs(x) < NOTHING:: Lt to LtE":
        "of balls, and no exact value is this number",
    "attention_backward_problem.slope: return 1 / np.cosh(np.clip(z / p.softcap, -350.0, 350.0)) "
    "** 2: 350.0 times 1.001": "beyond it there is nothing left of the slope",
    "attention_row_exact.dyadic: lowest = np.where(whole == 0, 1, whole & -whole): 1 to 2":
        "what 0 is divided by",
    "attention_backward_mpmath._sum: total = mpmath.mpf(0): 0 to 1":
        "a constant, which falls out of the difference that is taken",
    "attention_varlen_problems._problem: wide = max(1, *(len(span.k) for span in spans)): 1 to 2":
        "one more key of padding, which nobody sees",
    "attention_paged_inputs.stated: pages = np.clip(table[s, j // k.shape[1]], 0, "
    "max(len(k) - 1, 0)): 0 to 1": "the last page of a cache without pages: no key is looked up",
    "merge_attention_exact.exact: place, feature = divmod(int(index), head_dim) if output == "
    '"out" else (int(index), 0): 0 to 1': "a feature, which an lse does not have",
    "merge_attention_exact.exact: outs, lses = outs.reshape(splits, -1, head_dim), "
    "lses.reshape(splits, -1): 1 to 2": "NumPy takes any negative length for the unknown one",
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


def asked(mutant: Mutant) -> str:
    return noticed_by(mutant, TESTS[mutant.contract])


def unchanged(contract: str) -> str:
    return noticed_by(None, TESTS[contract])


def main(path: str, each: str = "4", processes: str = "1") -> None:
    preload()
    chosen = few() if each == "few" else spread(int(each))
    noticed: dict[str, Any] = defaultdict(lambda: defaultdict(dict))
    unseen, equivalent = [], {}
    with ProcessPoolExecutor(int(processes), mp_context=get_context("fork")) as pool:
        whole = [] if each == "few" else list(TESTS)  # the suite runs these tests itself
        for contract, test in zip(whole, pool.map(unchanged, whole), strict=True):
            if test:
                raise SystemExit(f"{contract}: {test} fails without any edit")
        for mutant, test in zip(chosen, pool.map(asked, chosen), strict=True):
            noticed[mutant.contract][mutant.layer][str(mutant)] = test or None
            if not test and place(mutant) in EQUIVALENT:
                equivalent[place(mutant)] = EQUIVALENT[place(mutant)]
            elif not test:
                unseen.append(place(mutant))
            told = test or "NOT NOTICED"
            print(f"{mutant.contract} {mutant.layer} {mutant}: {told}", flush=True)
    record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": environment(), "edits": len(chosen), "not noticed": unseen,
        "equivalent": equivalent, "noticed by": noticed,
    }  # fmt: skip
    write_atomically(Path(path), json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
