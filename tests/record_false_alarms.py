"""Record that right kernels are never rejected: `python tests/record_false_alarms.py FILE [WHAT]
[PAIRS] [SECONDS] [FIRST_SEED] [WORKERS]`.

WHAT: `gpu` (the bundled kernels and the plain torch twins of tests/wrong_*.py, on a GPU), `kernels`
and `gpu-twins` (each of them alone), `twins` (these on the CPU) or `stressed` (tests/stressed_*.py
on the CPU: kernels in NumPy with every rounding a full half ulp off); with `:light` behind it only
contracts whose cases cost little, with `:heavy` the others. Laws run under one seed after another
until PAIRS (100,000) distinct pairs of a case and a law with at least 16 output rows held, or
SECONDS (540) are over. Any failure of a law is in the record. Processes that are given the same
folder by $TIGHTROPE_PAIRS count their pairs together: whoever ends last has them all.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from counted_pairs import ENOUGH, counts

from tightrope.blackbox import write_atomically
from tightrope.environment import environment

HERE = Path(__file__).parent
TWINS = {
    "wrong_rope.py": ("right",), "wrong_rope_backward.py": ("right",),
    "wrong_scaling.py": ("right",),
    "wrong_pope_table.py": ("right",), "wrong_query_scale.py": ("right", "right_float32"),
    "wrong_attention.py": ("right", "right_declared"), "wrong_attention_parts.py": ("right",),
    "wrong_attention_sequences.py": ("right",), "wrong_pope.py": ("right",),
    "wrong_attention_backward.py": ("right", "right_declared"),
}  # fmt: skip
RIGHT = tuple(f"{HERE / file}:{name}" for file, names in TWINS.items() for name in names)
SUBJECTS = {
    "gpu": ("tightrope.impls", *RIGHT),
    "kernels": ("tightrope.impls",),
    "gpu-twins": RIGHT,
    "twins": RIGHT,
    "stressed": tuple(str(path) for path in sorted(HERE.glob("stressed_*.py"))),
}
LEFT_OUT = "not ring_attention"  # a case of it takes several processes
CHEAP = ("rope", "rope_table", "rope_backward", "pope_table", "query_scale", "merge_attention")
LIGHT = " or ".join(f"[{contract}-" for contract in CHEAP)
CHOSEN = {"light": (LIGHT, 1000), "heavy": (f"{LEFT_OUT} and not ({LIGHT})", 100)}
ALL = (LEFT_OUT, 100)  # which laws, and examples of each in one round
ROUND = 60.0  # seconds; shorter ones are not begun


def one_round(
    what: str, seed: int, seconds: float, base: Path, folder: Path, workers: tuple[str, ...]
) -> dict[str, Any]:
    """Results of all laws under one seed; pairs are noted in the folder."""
    report = base / f"{seed}.json"
    site = os.pathsep.join([str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": site, "TIGHTROPE_PAIRS": str(folder)}
    env["TIGHTROPE_STATE"] = str(base / "state")
    what, _, part = what.partition(":")
    laws, examples = CHOSEN.get(part, ALL)
    command = [sys.executable, "-m", "tightrope", "run", f"--seed={seed}", f"--report={report}",
               f"--examples={examples}", f"--max-seconds={seconds:.0f}", "--no-shrink", "-k", laws,
               *(f"--workers={w}" for w in workers)]  # fmt: skip
    command += [f"--impl={name}" for name in SUBJECTS[what]]
    command.append("--device=cpu" if what in ("twins", "stressed") else "--require-gpu")
    done = subprocess.run(
        [*command, "--", "-p", "counted_pairs"], cwd=base, env=env, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    if done.returncode not in (0, 1):
        raise SystemExit(done.stdout[-3000:] + done.stderr[-3000:])
    results: dict[str, Any] = json.loads(report.read_text())["results"]
    return results


def alarms(results: dict[str, Any], seed: int) -> list[dict[str, Any]]:
    return [
        {"seed": seed, "key": key, "failure": r["failure"]}
        for key, r in results.items() if r["outcome"] == "failed"
    ]  # fmt: skip


def main(
    path: str, what: str = "gpu", pairs: str = "100000", seconds: str = "540", first: str = "1",
    *workers: str,
) -> None:  # fmt: skip
    start, found, seed = time.monotonic(), [], int(first)
    record: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as base:
        folder = Path(os.environ.get("TIGHTROPE_PAIRS") or Path(base) / "pairs")
        folder.mkdir(exist_ok=True)
        while True:
            left = float(seconds) - (time.monotonic() - start)
            if record and (left < ROUND or record["pairs"] >= int(pairs)):
                break
            found += alarms(one_round(what, seed, left, Path(base), folder, workers), seed)
            record = {
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                "environment": environment(), "what": what, "output rows, at least": ENOUGH,
                "seeds": [int(first), seed], "seconds": round(time.monotonic() - start),
                "alarms": len(found), **counts(folder), "failures": found,
            }  # fmt: skip
            write_atomically(Path(path), json.dumps(record, indent=1) + "\n")
            print(f"seed {seed}: {record['pairs']} pairs, {len(found)} alarms", flush=True)
            seed += 1


if __name__ == "__main__":
    main(*sys.argv[1:])
