"""The plugin's options. Each carries the project's prefix; they are written with `=`."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import pytest

from tightrope.memory_limit import gibibytes
from tightrope.profiles import GROWTH, PROFILES, growth, positive
from tightrope.shard import shard


def dtype(name: str) -> str:
    """An option's dtype; an unknown one raises ArgumentTypeError that lists the known ones."""
    from tightrope.formats import FORMATS

    if name not in FORMATS:
        raise argparse.ArgumentTypeError(f"unknown dtype {name!r}; known: {', '.join(FORMATS)}")
    return name


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tightrope", "laws of attention and position-embedding kernels")
    add = group.addoption
    add("--tightrope-impl", action="append", default=[], metavar="MODULE[:NAME]",
        help="put the implementations of MODULE (or FILE.py) under test; repeatable")  # fmt: skip
    add(
        "--tightrope-dtype",
        action="append",
        type=dtype,
        default=[],
        metavar="DTYPE",
        help="only this dtype; repeatable",
    )
    add(
        "--tightrope-device",
        choices=("cuda", "cpu"),
        help="run there (default: a GPU if there is one)",
    )
    add(
        "--tightrope-require-gpu",
        action="store_true",
        help="no CUDA device is an error, not a page of skips",
    )
    add(
        "--tightrope-profile",
        choices=tuple(PROFILES),
        help="examples a law: dev 25, ci 100 derandomized, nightly 2000",
    )
    add(
        "--tightrope-examples",
        type=positive,
        metavar="N",
        help="examples a law, in place of the profile's",
    )
    add(
        "--tightrope-no-shrink",
        action="store_true",
        help="report the first failure found, as it was drawn",
    )
    add(
        "--tightrope-max-seconds",
        type=float,
        metavar="N",
        help="share N seconds evenly over the laws",
    )
    add(
        "--tightrope-report",
        metavar="FILE",
        help="write what every law drew, spent and found to FILE (JSON)",
    )
    add("--tightrope-replay", metavar="FILE", help="run exactly the failures recorded in FILE")
    add("--tightrope-only", default="", metavar="TEXT",
        help="replay only failures whose name contains TEXT")  # fmt: skip
    _add_gate(add)
    parser.addini(
        "tightrope_impl", "modules whose implementations are under test", type="args", default=[]
    )


def _add_gate(add: Callable[..., None]) -> None:
    """What may fail, what it may cost, and which part runs."""
    add(
        "--tightrope-baseline",
        metavar="FILE",
        help="fail on what got worse since the report FILE: failures, shares, coverage",
    )
    add(
        "--tightrope-record",
        metavar="FILE",
        help="take constants that `tightrope audit device` proved of this device from its record",
    )
    add(
        "--tightrope-growth",
        type=growth,
        default=GROWTH,
        metavar="F",
        help=f"a share may grow by this factor over the baseline's (default {GROWTH:g})",
    )
    add(
        "--tightrope-known",
        metavar="FILE",
        help="failures that are known (TOML), strict: one that no longer fails is an error",
    )
    add(
        "--tightrope-shard",
        type=shard,
        metavar="I/N",
        help="run part I of N; together they run every law once",
    )
    add(
        "--tightrope-memory-limit",
        type=gibibytes,
        metavar="GIB",
        help="end a process that holds more of the host's memory",
    )
