"""`tightrope power`: mutants of the bundled kernels against the suite's laws, one after another."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tightrope.blackbox import write_atomically
from tightrope.profiles import positive
from tightrope.shard import inside, shard

EVERY = 10.0  # seconds between two writes of a growing result


def add_command(verbs: Any) -> None:
    """The verb `power` of a parser."""
    about = "which laws find which mistakes: mutants of the bundled kernels"
    power = verbs.add_parser("power", help=about, description=about.capitalize() + ".")
    power.set_defaults(do=do_power)
    power.add_argument(
        "--mutant", action="append", default=[], metavar="TEXT",
        help="only mutants whose name (kernel:mistake) contains TEXT; repeatable",
    )  # fmt: skip
    power.add_argument(
        "--matrix", action="store_true", help="run every law on every mutant, not up to the kill"
    )
    power.add_argument(
        "--examples", type=positive, default=100, metavar="N", help="cases of a law (default 100)"
    )
    power.add_argument("--seed", type=int, default=0, metavar="N", help="other cases")
    power.add_argument(
        "--shard", type=shard, metavar="I/N", help="the I-th of N parts, by the mutants' names"
    )
    power.add_argument(
        "--merge", action="append", default=[], metavar="FILE",
        help="run nothing: show and write what earlier runs wrote (--json); repeatable",
    )  # fmt: skip
    power.add_argument("--max-seconds", type=float, metavar="N", help="begin nothing after N")
    power.add_argument("--kills", metavar="FILE", help="begin with the law that killed last (JSON)")
    power.add_argument("--keep-kills", metavar="FILE", help="write what kills to FILE (JSON)")
    power.add_argument("--json", metavar="FILE", help="write everything to FILE as it grows")
    power.add_argument("--picture", metavar="FILE", help="draw a heat map (.png, .pdf, .svg)")


def do_power(options: argparse.Namespace) -> int:
    """Hunt, then show. 0 if every mutant that can show here dies, 1 if one does not."""
    from tightrope.device import prepare
    from tightrope.mutants import chosen

    known, parts = read_kills(options.kills), [read_parts(path) for path in options.merge]
    mutants = [m for m in chosen(options.mutant) if inside(m.id, options.shard)]
    prepare()  # before anything imports Triton
    from tightrope import bench_picture, power_found, power_view

    if options.picture:
        bench_picture.check(options.picture)
    found = power_found.merged([part["mutants"] for part in parts])
    try:
        if not parts:
            found = _hunt(mutants, known, options, found)
    finally:
        if options.json:
            write_atomically(Path(options.json), _text(_data(found, options, parts)))
    power_view.show(found)
    if options.keep_kills:
        write_atomically(Path(options.keep_kills), _text({**known, **power_found.kills(found)}))
    if options.picture:
        power_view.save(_data(found, options, parts), options.picture)
    counts = power_found.counted(found)
    return 1 if counts["survived"] or counts["broken"] else 0


def read_kills(path: str | None) -> dict[str, Any]:
    """Mutant -> law, implementation and dtype that killed it last; empty without a file.

    Raises OSError, and ValueError for what is no such file.
    """
    if path is None:
        return {}
    found = json.loads(Path(path).read_text())
    if not isinstance(found, dict) or not all(isinstance(v, dict) for v in found.values()):
        raise ValueError(f"--kills={path}: expected an object of objects")
    return found


def read_parts(path: str) -> dict[str, Any]:
    """What a run wrote with --json. Raises OSError, and ValueError for what is no such file."""
    found = json.loads(Path(path).read_text())
    if not isinstance(found, dict) or not {"run", "environment", "mutants"} <= set(found):
        raise ValueError(f"--merge={path}: expected what `tightrope power --json` writes")
    return found


def _hunt(
    mutants: Sequence[Any], known: dict[str, Any], options: argparse.Namespace, found: list[Any]
) -> list[Any]:
    """What became of each mutant, appended to `found` as it is known."""
    from tightrope import power, power_view

    end = time.time() + options.max_seconds if options.max_seconds else None
    written = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tightrope-mutants-") as folder:
        for mutant in power_view.progress(mutants, found):
            found.append(
                power.hunted(
                    mutant, Path(folder), known, options.examples, options.matrix, options.seed, end
                )
            )
            if options.json and time.monotonic() - written > EVERY:
                write_atomically(Path(options.json), _text(_data(found, options)))
                written = time.monotonic()
    return found


def _text(data: Any) -> str:
    from tightrope.frozen import text

    return text(data, indent=1) + "\n"


def _data(
    found: Sequence[Any], options: argparse.Namespace, parts: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """What is written; of merged parts, where and how each of them ran."""
    from tightrope.device import current
    from tightrope.environment import environment
    from tightrope.power_found import counted

    run = {k: getattr(options, k) for k in ("mutant", "matrix", "examples", "seed", "shard")}
    if parts:
        run = {**parts[0]["run"], "shard": None}
    told = ("date", "environment", "where", "run")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": environment(), "where": current().name,
        "run": run, "parts": [{k: part.get(k) for k in told} for part in parts],
        "counts": counted(found), "mutants": [each.data() for each in found],
    }  # fmt: skip
