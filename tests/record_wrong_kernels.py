"""Record how surely the wrong rotations are found: `python tests/record_wrong_kernels.py FILE`.

20 seeds, 100 examples a law, not derandomized, and 20,000 random cases of the right twin. It takes
about 20 minutes on 2 cores; the result is committed under docs/measurements.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from test_wrong_kernels import LAWS, run

from tightrope.blackbox import write_atomically
from tightrope.environment import environment

SEEDS, EXAMPLES, RIGHT = 20, 100, 20_000


def kills(results: dict[str, Any]) -> dict[str, dict[str, int]]:
    """kernel-dtype -> law that rejects it -> cases until it did."""
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for r in results.values():
        if r["outcome"] in ("passed", "failed"):
            found[f"{r['implementation']} {r['dtype']}"] |= (
                {r["law"]: r["cases"]} if r["outcome"] == "failed" else {}
            )
    return found


def main(path: str) -> None:
    rejected: dict[str, int] = defaultdict(int)
    laws: dict[str, set[str]] = defaultdict(set)
    first: dict[str, list[int]] = defaultdict(list)
    for seed in range(SEEDS):
        with tempfile.TemporaryDirectory() as folder:
            words = (f"--seed={seed}", f"--examples={EXAMPLES}", "--no-shrink")
            found = kills(run(Path(folder), *words, "-k", f"not right and ({LAWS})"))
        for kernel, by in found.items():
            rejected[kernel] += bool(by)
            laws[kernel] |= set(by)
            first[kernel] += [min(by.values())] if by else []
        print(f"seed {seed}: {sum(map(bool, found.values()))} of {len(found)} rejected", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        words = (f"--examples={RIGHT}", "-k", "right and matches_oracle")
        right = run(Path(folder), *words)
    record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": environment(),
        "seeds": SEEDS, "examples": EXAMPLES, "laws": LAWS,
        "rejected in so many seeds": dict(sorted(rejected.items())),
        "by": {k: sorted(v) for k, v in sorted(laws.items())},
        "cases until rejected, worst seed": {k: max(v) for k, v in sorted(first.items())},
        "right twin": {
            r["dtype"]: {"cases": r["cases"], "outcome": r["outcome"], "settled": r["settled"],
                         "worst share": {o: w["share"] for o, w in r["worst"].items()}}
            for r in right.values() if r.get("implementation") == "right"
        },
    }  # fmt: skip
    write_atomically(Path(path), json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
