"""What one pytest process knows of a run, and the names by which laws are found again."""

from __future__ import annotations

import faulthandler
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tightrope import blackbox, known, memory_limit, record

MARGIN = 7.0  # seconds of --max-seconds kept for start-up of the last law and for the report


class State:
    """What one process of a run knows: implementations (loaded once), results, time."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.impls: list[Any] | None = None
        self.results: dict[str, dict[str, Any]] = {}
        self.lost: list[str] = []  # recorded failures that nothing here replays
        self.started = time.time()
        self.done = 0
        self.laws = 0
        inputs = getattr(config, "workerinput", {})
        seconds = config.getoption("--tightrope-max-seconds")
        self.workers = int(inputs.get("workercount", 1))
        self.end: float | None = inputs.get("tightrope_end")
        if self.end is None and seconds:
            began = float(os.environ.get("TIGHTROPE_BEGAN", self.started))
            self.end = began + max(1.0, seconds - MARGIN)
        self.part = config.getoption("--tightrope-shard")
        self.base = _read(config, "--tightrope-baseline", _baseline)
        self.record = _read(config, "--tightrope-record", record.read)
        if self.base:
            self._prove_comparable()
        entries = _read(config, "--tightrope-known", known.read) or ()
        old = self.base["results"] if self.base else {}
        failing = frozenset(k for k, r in old.items() if r["outcome"] == "failed")
        self.known = known.Known(entries, failing)

    def was(self, key: str) -> dict[str, Any]:
        """What the baseline found for a law; empty without one."""
        found: dict[str, Any] = self.base["results"].get(key, {}) if self.base else {}
        return found

    def prove_usable(self) -> None:
        """Raise UsageError for what no law can run without; bundled kernels are not loaded here."""
        from tightrope.blackbox import state_folder
        from tightrope.subjects import BUNDLED

        try:
            state_folder()
        except OSError as error:
            raise pytest.UsageError(
                f"cases are kept on disk before they run, but there is no room for them: {error}; "
                "$TIGHTROPE_STATE names another folder"
            ) from error
        early = self.record or self.config.getoption("--tightrope-require-gpu")
        if self.chosen() != [BUNDLED] or early:
            self.subjects()

    def _prove_comparable(self) -> None:
        """Raise UsageError for a baseline whose budgets were made of other constants."""
        was, now = record.of_report(self.base), self.record.id if self.record else None
        if was != now:
            raise pytest.UsageError(
                "shares are compared under one record of the device: expected "
                f"{was or 'none'} as in the baseline, got {now or 'none'} (--record=FILE)"
            )

    def chosen(self) -> list[str]:
        from tightrope.subjects import chosen

        option = self.config.getoption("--tightrope-impl")
        return chosen(option, self.config.getini("tightrope_impl"))

    def subjects(self) -> list[Any]:
        if self.impls is None:
            from tightrope.device import prepare
            from tightrope.subjects import under_test

            option = self.config.getoption
            try:
                device = prepare(
                    "cuda" if option("--tightrope-require-gpu") else option("--tightrope-device")
                )
                record.use(self.record, device)
                self.impls = under_test(self.chosen(), option("--tightrope-dtype"))
            except (ImportError, LookupError, ValueError, RuntimeError) as error:
                raise pytest.UsageError(str(error)) from error
            self.device = device
            memory_limit.apply(option("--tightrope-memory-limit"), virtual=device.kind == "cpu")
        return self.impls

    def deadline(self) -> float | None:
        """When the next law must stop: an even share of what is left."""
        if self.end is None:
            return None
        left = max(1.0, self.laws / self.workers - self.done)
        return time.time() + max(0.0, self.end - time.time()) / left


def _baseline(path: str) -> dict[str, Any]:
    from tightrope.baseline import read  # with NumPy behind it

    return read(path)


def _read(config: pytest.Config, option: str, reader: Callable[[str], Any]) -> Any:
    """What stands in the file that an option names; None without it."""
    path = config.getoption(option)
    try:
        return reader(path) if path else None
    except (OSError, ValueError) as error:
        raise pytest.UsageError(f"{option}={path}: {error}") from None


def _file(item: Any) -> Path:
    """Where a law is written, also if a test file of the user's imports it."""
    import inspect

    return Path(inspect.getfile(inspect.unwrap(item.function.tightrope_law.body)))


def key(item: pytest.Item) -> str:
    """A law's name; it changes neither with the rootdir nor with where the package is installed."""
    return f"{_file(item).stem}::{item.name}"


def home(item: pytest.Item) -> str:
    """What to give pytest to collect the law again: a module of ours, or a file of the user's."""
    path = _file(item)
    if str(path.parent) in import_module("tightrope.properties").__path__:
        return f"tightrope.properties.{path.stem}"
    return os.path.relpath(path, item.config.invocation_params.dir)


def patience(config: pytest.Config) -> float:
    """Seconds after which pytest-timeout ends a law; 0 without it."""
    try:
        return float(config.getoption("timeout", None) or config.getini("timeout") or 0)
    except ValueError:  # an ini option of a plugin that is not loaded
        return 0.0


def watch_the_gil(config: pytest.Config) -> None:
    """End a worker whose kernel holds the GIL for good: pytest-timeout's thread cannot run then."""
    seconds = patience(config)
    if seconds and sys.__stderr__ is not None and blackbox.worker() != "main":
        faulthandler.dump_traceback_later(seconds + 5.0, exit=True, file=sys.__stderr__)
