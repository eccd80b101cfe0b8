"""Record the smallest case that gives each public bug away: `python tests/corpus/record_bugs.py`.

Every bug runs under the law named for it and is shrunk; bugs.json beside this file is rewritten. It
takes some minutes.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from test_corpus_bugs import ADAPTERS, each_by_its_law  # noqa: E402
from test_wrong_kernels import rejected, run  # noqa: E402

from tightrope.blackbox import write_atomically  # noqa: E402

KEPT = ("law", "contract", "implementation", "dtype", "outcome", "module")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        results = run(
            Path(folder), "--profile=ci", "--examples=300", "-k", each_by_its_law(), module=ADAPTERS
        )
    found = {key: r for key, r in results.items() if rejected(r)}
    records = {
        key: {name: r[name] for name in KEPT}
        | {"failure": {"kind": r["failure"]["kind"], "drawn": r["failure"]["drawn"], "detail": {}}}
        for key, r in sorted(found.items())
    }
    text = json.dumps({"schema": 1, "results": records}, indent=1) + "\n"
    write_atomically(HERE / "bugs.json", text)


if __name__ == "__main__":
    main()
