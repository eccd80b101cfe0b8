"""pytest plugin: what is under test, what is replayed, what is reported.

It is loaded by every pytest run of the environment it is installed in: it imports nothing heavy and
every option carries the project's prefix. Options are written with `=`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from typing import Any

import pytest

PROFILES = ("dev", "ci", "nightly")
MARGIN = 4.0  # seconds of --max-seconds kept for start-up of the last law and for the report


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tightrope", "laws of attention and position-embedding kernels")
    add = group.addoption
    add("--tightrope-impl", action="append", default=[], metavar="MODULE[:NAME]",
        help="put the implementations of MODULE (or FILE.py) under test; repeatable")  # fmt: skip
    add(
        "--tightrope-dtype",
        action="append",
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
        choices=PROFILES,
        help="examples a law: dev 25, ci 100 derandomized, nightly 2000",
    )
    add(
        "--tightrope-examples",
        type=int,
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
    parser.addini(
        "tightrope_impl", "modules whose implementations are under test", type="args", default=[]
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "law(name): a law of the named contracts (tightrope)")
    _choose_gpu()
    from tightrope import law

    option = config.getoption
    law.choose(
        option("--tightrope-profile") or "dev",
        option("--tightrope-examples"),
        not option("--tightrope-no-shrink"),
    )
    replay = config.getoption("--tightrope-replay")
    config.stash[RECORDED] = _recorded(replay) if replay else None
    config.stash[STATE] = State(config)


def _choose_gpu() -> None:
    """Spread xdist workers over the visible GPUs, before anything starts CUDA."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if not worker.startswith("gw") or "TIGHTROPE_GPU_CHOSEN" in os.environ:
        return
    from tightrope.workers import visible_gpus

    gpus = visible_gpus()
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[int(worker[2:]) % len(gpus)]


def _recorded(path: str) -> dict[str, Any]:
    from tightrope.replay import read

    try:
        return read(path)
    except (OSError, ValueError, KeyError) as error:
        raise pytest.UsageError(f"--tightrope-replay={path}: {error}") from None


class State:
    """What one process of a run knows: implementations (loaded once), results, time."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.impls: list[Any] | None = None
        self.results: dict[str, dict[str, Any]] = {}
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

    def subjects(self) -> list[Any]:
        if self.impls is None:
            from tightrope.device import prepare
            from tightrope.subjects import chosen, under_test

            option = self.config.getoption
            try:
                device = prepare(
                    "cuda" if option("--tightrope-require-gpu") else option("--tightrope-device")
                )
                self.impls = under_test(
                    chosen(option("--tightrope-impl"), self.config.getini("tightrope_impl"))
                )
            except (ImportError, LookupError, ValueError, RuntimeError) as error:
                raise pytest.UsageError(str(error)) from error
            self.device = device
        return self.impls

    def deadline(self) -> float | None:
        """When the next law must stop: an even share of what is left."""
        if self.end is None:
            return None
        left = max(1.0, self.laws / self.workers - self.done)
        return time.time() + max(0.0, self.end - time.time()) / left


STATE = pytest.StashKey[State]()
RECORDED = pytest.StashKey["dict[str, Any] | None"]()


def pytest_report_header(config: pytest.Config) -> list[str]:
    watched = [
        f"{k}={os.environ[k]}"
        for k in sorted(os.environ)
        if k.startswith(("TIGHTROPE_IMPL", "TRITON_"))
    ]
    return [f"tightrope: {' '.join(watched)}"] if watched else []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    law = getattr(metafunc.function, "tightrope_law", None)
    if law is None or "impl" not in metafunc.fixturenames:
        return
    from tightrope.subjects import subjects

    state = metafunc.config.stash[STATE]
    impls = state.subjects()
    found = subjects(law, impls, metafunc.config.getoption("--tightrope-dtype"), state.device.kind)
    params = []
    for name, impl in found:
        marks = [pytest.mark.law(*law.contracts)]
        if impl is None:
            marks.append(
                pytest.mark.skip(reason="not applicable: outside the implementation's limits")
            )
        params.append(pytest.param(impl, id=name, marks=marks))
    metafunc.parametrize("impl", params)


def key(item: pytest.Item) -> str:
    """A name that changes neither with the rootdir nor with where the package is installed."""
    return f"{item.path.stem}::{item.name}"


def is_law(item: pytest.Item) -> bool:
    return getattr(getattr(item, "function", None), "tightrope_law", None) is not None


def _without_subject(item: pytest.Item) -> bool:
    """A law of a contract that nothing under test implements: pytest's empty parameter set."""
    params = getattr(getattr(item, "callspec", None), "params", {})
    return (
        is_law(item)
        and not hasattr(params.get("impl"), "contract")
        and params.get("impl") is not None
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    recorded = config.stash[RECORDED]
    wanted = [
        i for i in items if not _without_subject(i) and (recorded is None or key(i) in recorded)
    ]
    if len(wanted) < len(items):
        config.hook.pytest_deselected(items=[i for i in items if i not in wanted])
        items[:] = wanted
    config.stash[STATE].laws = sum(
        is_law(item) and not item.get_closest_marker("skip") for item in items
    )


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """Open a ledger around a law; end it quietly when its time is up; judge what it could see."""
    if not is_law(pyfuncitem):
        return (yield)
    from tightrope import ledger
    from tightrope.results import result

    state = pyfuncitem.config.stash[STATE]
    impl: Any = pyfuncitem.funcargs["impl"]
    book = ledger.Ledger(axes=impl.contract.axes, deadline=state.deadline(), end=state.end)
    token = ledger._open.set(book)
    failure: BaseException | None = None
    try:
        try:
            outcome = yield
        except ledger.OutOfTime:
            outcome = True
        if book.too_uninformative():
            ledger.uninformative_law(book)
        return outcome
    except BaseException as error:
        failure = error
        raise
    finally:
        ledger._open.reset(token)
        state.done += 1
        data = result(pyfuncitem.function.tightrope_law, impl, book, failure)
        pyfuncitem.user_properties.append(
            ("tightrope", json.dumps({"key": key(pyfuncitem), **data}))
        )


@pytest.hookimpl(tryfirst=True, specname="pytest_pyfunc_call")
def replay_instead(pyfuncitem: pytest.Function) -> bool | None:
    """Run a recorded case in place of what Hypothesis would draw."""
    recorded = pyfuncitem.config.stash[RECORDED]
    if recorded is None or not is_law(pyfuncitem):
        return None
    from tightrope.replay import draw_from

    law = pyfuncitem.function.tightrope_law
    impl: Any = pyfuncitem.funcargs["impl"]
    law.run(impl, draw_from(recorded[key(pyfuncitem)], impl.contract))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, Any]:
    """A violated law reads as a finding, not as a traceback."""
    report = yield
    if call.when == "call" and call.excinfo is not None and is_law(item):
        from tightrope.results import explain

        report.longrepr = explain(item, call.excinfo, report)
    return report


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):
        state, option = session.config.stash[STATE], session.config.getoption
        if option("--tightrope-impl") or option("--tightrope-require-gpu"):
            state.subjects()  # a wrong name or a missing GPU ends the run before workers start
        from tightrope.controller import Controller

        session.config.pluginmanager.register(Controller(session.config), "tightrope-controller")
