"""Options of `tightrope run` that decide what may fail, what it may cost, and which part runs."""

from __future__ import annotations

import argparse

from tightrope import memory_limit, workers
from tightrope.profiles import GROWTH


def options(run: argparse.ArgumentParser) -> None:
    """Add them to the command's parser."""
    run.add_argument(
        "--baseline", metavar="FILE",
        help="fail only on what got worse since the report FILE: new failures, shares of the "
        "budget, coverage",
    )  # fmt: skip
    run.add_argument(
        "--growth", metavar="F",
        help=f"how much of a share's growth --baseline allows, a factor (default {GROWTH:g})",
    )  # fmt: skip
    run.add_argument("--known", metavar="FILE", help="failures that are known, strict (TOML)")
    run.add_argument("--shard", metavar="I/N", help="run part I of N, for machines side by side")
    run.add_argument(
        "--memory-limit", type=memory_limit.gibibytes, metavar="GIB",
        help="end a worker that needs more of the host's memory (default: its share of 80 %% of "
        "the machine's); 0: no limit",
    )  # fmt: skip


def record(verb: argparse.ArgumentParser) -> None:
    """Add what a run and its replay have in common: whose constants budgets are made of."""
    verb.add_argument(
        "--record", metavar="FILE",
        help="take constants that `tightrope audit device` proved of this device from its record",
    )  # fmt: skip


def words(options: argparse.Namespace) -> list[str]:
    """The plugin's options for them."""
    found = [
        f"--tightrope-{name}={value}"
        for name in ("baseline", "growth", "known", "shard")
        if (value := getattr(options, name)) is not None
    ]
    limit = options.memory_limit
    if limit is None:
        count = workers.workers() if options.workers is None else options.workers
        limit = memory_limit.fair(count)
    return [*found, f"--tightrope-memory-limit={limit:g}"] if limit else found
