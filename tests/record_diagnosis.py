"""Record how often a diagnosis names the mistake.

`python tests/record_diagnosis.py FILE [SEEDS [WORKERS]]`, with TIGHTROPE_DEVICE=cpu. Every mutant
that the interpreter can show is run up to its first kill, at the default seed and at others (0,1,2
unless given), and what was told of it is judged by tests/diagnosed.py. What is told of roundings
and of all other mutants shows how often a convention is blamed falsely. The file grows with the
run, some 5 minutes a seed on one core, and is committed under docs/measurements.
`python tests/record_diagnosis.py FILE again` only judges it again.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from diagnosed import CONVENTIONS, ROUNDINGS, judged

from tightrope import power, power_command
from tightrope.blackbox import write_atomically
from tightrope.device import prepare
from tightrope.environment import environment
from tightrope.mutants import Mutant, every

KILLS = Path(__file__).parent / "corpus" / "kills.json"
KINDS = ("conventions", "roundings", "others")


def kind(family: str) -> str:
    if family in CONVENTIONS:
        return "conventions"
    return "roundings" if family in ROUNDINGS else "others"


def told(mutant: Mutant, folder: Path, known: Any, seed: int) -> dict[str, Any] | None:
    """What a mutant's first kill said of it; None if nothing killed it here."""
    found = power.hunted(mutant, folder, known, seed=seed)
    if found.kill is None:
        return None
    said = found.kill.diagnosis
    return {
        "mutant": mutant.id, "family": mutant.family, "seed": seed, "law": found.kill.law,
        "dtype": found.kill.dtype, "diagnosis": said, "judged": judged(mutant.id, said),
    }  # fmt: skip


def counted(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Kind -> seed -> right, wrong, none."""
    counts = Counter((kind(r["family"]), r["seed"], r["judged"]) for r in rows)
    seeds = sorted({seed for _, seed, _ in counts})
    return {
        name: {
            str(seed): {j: counts[name, seed, j] for j in ("right", "wrong", "none")}
            for seed in seeds
        }
        for name in KINDS
    }


def of_kernel(kernel: str, seed: int) -> list[dict[str, Any]]:
    """The rows of one kernel's mutants."""
    prepare()
    known = power_command.read_kills(str(KILLS))
    mine = [m for m in every() if m.kernel == kernel and not (m.equivalent or m.needs or m.hole)]
    with tempfile.TemporaryDirectory(prefix="tightrope-diagnosis-") as folder:
        rows = [told(mutant, Path(folder), known, seed) for mutant in mine]
    return [row for row in rows if row]


def written(file: Path, rows: list[dict[str, Any]], seconds: float) -> None:
    data = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"), "environment": environment(),
        "seconds": round(seconds),
        "families": {"conventions": CONVENTIONS, "roundings": ROUNDINGS},
        "counts": counted(rows), "mutants": rows,
    }  # fmt: skip
    write_atomically(file, json.dumps(data, indent=1) + "\n")


def again(file: Path) -> None:
    """Judge what was recorded once more, by the patterns as they are now."""
    data = json.loads(file.read_text())
    for row in data["mutants"]:
        row["judged"] = judged(row["mutant"], row["diagnosis"])
    data["counts"] = counted(data["mutants"])
    write_atomically(file, json.dumps(data, indent=1) + "\n")


def main(file: Path, seeds: list[int], workers: int) -> None:
    began, rows = time.monotonic(), []
    kernels = dict.fromkeys(m.kernel for m in every())
    context = get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        waiting = [pool.submit(of_kernel, k, seed) for seed in seeds for k in kernels]
        for done in as_completed(waiting):
            rows += done.result()
            rows.sort(key=lambda row: (row["seed"], row["mutant"]))
            written(file, rows, time.monotonic() - began)
            print(f"{len(rows)} mutants: {counted(rows)['conventions']}", flush=True)


if __name__ == "__main__":
    if sys.argv[2:] == ["again"]:
        again(Path(sys.argv[1]))
    else:
        seeds, workers = (*sys.argv[2:], *("0,1,2", "1")[len(sys.argv) - 2 :])
        main(Path(sys.argv[1]), [int(seed) for seed in seeds.split(",")], int(workers))
