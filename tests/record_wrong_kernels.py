"""Record how surely wrong kernels are found: `python tests/record_wrong_kernels.py FILE [WHAT]`.

WHAT: rope (the default) or another key of RECORDS. 20 seeds, 100 examples a law,
random cases of the right twins. It takes about 20 minutes on 2 cores; the result is committed
under docs/measurements.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import test_ring as wrong_ring
import test_wrong_gradients as wrong_gradients
import test_wrong_pope as wrong_pope
import test_wrong_pope_backward as wrong_pope_backward
import test_wrong_ring_backward as wrong_ring_backward
import test_wrong_rope_backward as wrong_rope_backward
import test_wrong_scaling as wrong_scaling
import test_wrong_varlen_backward as wrong_packed
from test_wrong_kernels import ATTENTION, LAWS, each_by_its_law, rejected, run

from tightrope.blackbox import write_atomically
from tightrope.environment import environment

SEEDS, EXAMPLES = 20, 100


@dataclass(frozen=True)
class Record:
    """Which adapters, what -k selects of the wrong ones and the right twins, cases of a twin."""

    modules: str
    wrong: str
    right: str
    cases: int


RECORDS = {
    "rope_backward": Record(
        wrong_rope_backward.ADAPTERS, wrong_rope_backward.each_by_its_law(),
        "(-right-) and matches_oracle", 2000,
    ),
    "ring": Record(
        "wrong_ring.py", wrong_ring.each_by_its_law(), f"{wrong_ring.RIGHT} and matches_oracle", 500
    ),
    "ring_backward": Record(
        wrong_ring_backward.ADAPTERS, wrong_ring_backward.each_by_its_law(),
        f"{wrong_ring_backward.RIGHT} and matches_oracle", 500,
    ),
    "rope": Record("wrong_rope.py", f"not right and ({LAWS})", "right and matches_oracle", 20_000),
    "attention": Record(
        ATTENTION, each_by_its_law(), "(-right- or -right_declared-) and matches_oracle", 1000
    ),
    "pope": Record(
        wrong_pope.ADAPTERS, wrong_pope.each_by_its_law(),
        f"{wrong_pope.RIGHT_ONES} and matches_oracle", 1000,
    ),
    "pope_backward": Record(
        wrong_pope_backward.ADAPTERS, wrong_pope_backward.each_by_its_law(),
        f"{wrong_pope_backward.RIGHT_ONES} and matches_oracle", 1000,
    ),
    "gradients": Record(
        wrong_gradients.ADAPTERS, wrong_gradients.each_by_its_law(),
        f"{wrong_gradients.RIGHT_ONES} and matches_oracle", 1000,
    ),
    "varlen_backward": Record(
        wrong_packed.ADAPTERS, wrong_packed.each_by_its_law(),
        f"{wrong_packed.RIGHT_ONES} and matches_oracle", 500,
    ),
    "scaling": Record(
        "wrong_scaling.py", wrong_scaling.each_by_its_law(), "(-right-) and matches_oracle", 2000
    ),
    "query_scale": Record(
        "wrong_query_scale.py", "not right and matches_oracle",
        "(-right- or -right_float32-) and matches_oracle", 2000,
    ),
}  # fmt: skip


def kills(results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """kernel and dtype -> law that rejects it -> its result."""
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for r in results.values():
        if r["outcome"] in ("passed", "failed"):
            found[f"{r['implementation']} {r['dtype']}"] |= {r["law"]: r} if rejected(r) else {}
    return found


def family(result: dict[str, Any]) -> str:
    """The kinds of data of the case that showed it."""
    case = result["failure"]["drawn"]["case"]["case"]
    kinds = [str(case[name]) for name in ("data", "data_v") if name in case]
    return " and ".join(dict.fromkeys(kinds))


def of_every_seed(what: Record) -> dict[str, Any]:
    """What 20 seeds found, kernel by kernel."""
    times: dict[str, int] = defaultdict(int)
    laws: dict[str, set[str]] = defaultdict(set)
    first: dict[str, list[int]] = defaultdict(list)
    shown: dict[str, Counter[str]] = defaultdict(Counter)
    for seed in range(SEEDS):
        with tempfile.TemporaryDirectory() as folder:
            words = (f"--seed={seed}", f"--examples={EXAMPLES}", "--no-shrink")
            results = run(Path(folder), *words, "-k", what.wrong, module=what.modules)
        found = kills(results)
        for kernel, by in found.items():
            times[kernel] += bool(by)
            laws[kernel] |= set(by)
            first[kernel] += [min(r["cases"] for r in by.values())] if by else []
            shown[kernel].update(family(r) for r in by.values())
        print(f"seed {seed}: {sum(map(bool, found.values()))} of {len(found)} rejected", flush=True)
    return {
        "rejected in so many seeds": dict(sorted(times.items())),
        "by": {k: sorted(v) for k, v in sorted(laws.items())},
        "cases until rejected, worst seed": {k: max(v) for k, v in sorted(first.items()) if v},
        "data that showed it": {k: dict(v.most_common(4)) for k, v in sorted(shown.items())},
    }


def of_the_right(what: Record) -> dict[str, Any]:
    """Random cases of the right twins."""
    with tempfile.TemporaryDirectory() as folder:
        words = (f"--examples={what.cases}", "-k", what.right)
        right = run(Path(folder), *words, module=what.modules)
    return {
        f"{r['contract']} {r['implementation']} {r['dtype']}": {
            "cases": r["cases"], "outcome": r["outcome"], "settled": r["settled"],
            "informative": r["informative"], "uninformative": r["uninformative"],
            "worst share": {o: w["share"] for o, w in r["worst"].items()},
        }
        for r in right.values() if r["outcome"] in ("passed", "failed")
    }  # fmt: skip


def main(path: str, name: str = "rope") -> None:
    what = RECORDS[name]
    record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": environment(),
        "seeds": SEEDS, "examples": EXAMPLES, "laws": what.wrong,
        **of_every_seed(what),
        "right twins": of_the_right(what),
    }  # fmt: skip
    write_atomically(Path(path), json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
