"""Edge cases put to an implementation whatever its limits say, and what each one did.

Limits keep a kernel from what it does not claim; a user who calls it there still gets something.
Each call is judged by the contract's oracle; what the kernel, or its adapter, refuses is told.

    python -m tightrope.edges --impl=peers FILE.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from tightrope.edge_cases import EDGES, cases

SECONDS = 110  # for one implementation; a hang or a crash ends that process only


def behaviour(impl: Any, case: Any) -> str:
    """What a call does: `right`, `wrong: ...`, `memory: ...`, `refused: ...` or `no option ...`."""
    from tightrope.arena import MemoryFault
    from tightrope.budget import Violation
    from tightrope.device import current
    from tightrope.verdict import judge

    spec = impl.contract
    inputs = spec.inputs(case)
    try:
        outputs = impl(case, inputs)
    except MemoryFault as fault:
        return f"memory: {_first(fault)}"
    except Violation as violation:
        return f"wrong: {_first(violation)}"
    except Exception as error:
        told = _first(error)
        if isinstance(error, TypeError) and "unexpected keyword argument" in told:
            return f"no option {told.rpartition(' ')[2]}"
        return f"refused: {type(error).__name__}: {told}"
    budgets = impl.budgets(case, inputs, current())
    for name in impl.outputs:
        exact = partial(spec.exact, case, inputs, name)
        try:
            found = judge(name, outputs[name], budgets[name], exact)
        except Violation as violation:
            return f"wrong: {_first(violation)}"
        if not found.ok:
            return f"wrong: {_first(found.message)}"
    return "right"


def _first(message: Any) -> str:
    lines = str(message).strip().splitlines()
    return lines[0][:200] if lines else ""


def probe(spec: str) -> Iterator[dict[str, Any]]:
    """Records of one implementation, `MODULE:NAME`; each is made before the next call starts."""
    from tightrope.device import prepare
    from tightrope.subjects import under_test

    device = prepare()
    for impl in under_test([spec]):
        for edge, case in cases(impl) if impl.contract_name in EDGES else ():
            told = "not asked: no such convention" if case is None else behaviour(impl, case)
            yield {
                "contract": impl.contract_name, "implementation": impl.name, "edge": edge,
                "behaviour": told, "dtype": getattr(case, "dtype", ""), "device": device.name,
            }  # fmt: skip


def probe_apart(spec: str) -> list[dict[str, Any]]:
    """As `probe`, in a process of its own; what it did not come to is told by its last record."""
    command = [sys.executable, "-m", "tightrope.edges", f"--one={spec}", "-"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        out, ended = done.stdout, f"the process ended with status {done.returncode}"
    except subprocess.TimeoutExpired as late:
        out = (late.stdout or b"").decode() if isinstance(late.stdout, bytes) else late.stdout or ""
        done, ended = None, f"it had not ended after {SECONDS} s"
    whole = out[: out.rfind("\n") + 1].splitlines()  # the last line may be torn
    records = [json.loads(line) for line in whole if line.startswith("{")]
    if done is None or done.returncode:
        last = records[-1] if records else {"contract": "", "implementation": spec}
        records.append({**last, "edge": "after that", "behaviour": f"died: {ended}"})
    return records


def main() -> int:
    parser = argparse.ArgumentParser(description="Puts edge cases to implementations.")
    parser.add_argument("--impl", action="append", default=[], help="as for `tightrope run`")
    parser.add_argument("--workers", type=int, default=4, help="processes at a time (default 4)")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("file", help="what was found, as JSON")
    options = parser.parse_args()
    if options.one:
        for record in probe(options.one):
            print(json.dumps(record), flush=True)
        return 0
    from tightrope.blackbox import write_atomically
    from tightrope.device import prepare
    from tightrope.environment import environment
    from tightrope.subjects import PEERS, peers, under_test

    prepare()
    impls = under_test(options.impl or [PEERS])
    specs = dict.fromkeys(f"{i.module}:{i.name}" for i in impls if i.contract_name in EDGES)
    found: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"), "environment": environment(), "missing": peers(),
        "edges": [],
    }  # fmt: skip
    with ThreadPoolExecutor(options.workers) as pool:
        for records in pool.map(probe_apart, specs):
            found["edges"] += records
            write_atomically(Path(options.file), json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
