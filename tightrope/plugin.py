"""pytest plugin: what is under test, what is replayed, what is reported.

It is loaded by every pytest run of the environment it is installed in: it imports nothing heavy and
every option carries the project's prefix. Options are written with `=`.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Generator
from typing import Any

import pytest

from tightrope.interrupts import forget, interrupt
from tightrope.options import pytest_addoption as pytest_addoption
from tightrope.selection import choose, expected, is_law
from tightrope.session import State, home, key, watch_the_gil


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "law(name): a law of the named contracts (tightrope)")
    _choose_gpu()
    forget()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    from tightrope import law

    option = config.getoption
    law.choose(
        option("--tightrope-profile") or "dev",
        option("--tightrope-examples"),
        not option("--tightrope-no-shrink"),
        option("hypothesis_seed", None) is not None,
    )
    replay = config.getoption("--tightrope-replay")
    only = option("--tightrope-only")
    config.stash[RECORDED] = _recorded(replay, only) if replay else None
    if replay:
        from tightrope.replay import Replayer

        config.pluginmanager.register(Replayer(config.stash[RECORDED]), "tightrope-replayer")
    config.stash[STATE] = State(config)


def _choose_gpu() -> None:
    """Spread xdist workers over the visible GPUs, before anything starts CUDA."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if not worker.startswith("gw"):
        return
    from tightrope.workers import visible_gpus

    gpus = visible_gpus()
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[int(worker[2:]) % len(gpus)]


def _recorded(path: str, only: str) -> dict[str, Any]:
    from tightrope.replay import read

    try:
        return read(path, only)
    except (OSError, ValueError) as error:
        raise pytest.UsageError(f"--tightrope-replay={path}: {error}") from None


STATE = pytest.StashKey[State]()
RECORDED = pytest.StashKey["dict[str, Any] | None"]()


def pytest_report_header(config: pytest.Config) -> list[str]:
    watched = [
        f"{k}={os.environ[k]}"
        for k in sorted(os.environ)
        if k.startswith(("TIGHTROPE_IMPL", "TRITON_"))
    ]
    used = config.stash[STATE].record
    return [f"tightrope: {' '.join(told)}" for told in (watched, [str(used or "")]) if any(told)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    law = getattr(metafunc.function, "tightrope_law", None)
    if law is None or "impl" not in metafunc.fixturenames:
        return
    from tightrope.subjects import of_module, subjects

    state = metafunc.config.stash[STATE]
    impls = of_module(state, metafunc.module)
    found = subjects(law, impls, metafunc.config.getoption("--tightrope-dtype"), state.device.kind)
    params = []
    for name, impl in found:
        marks = [pytest.mark.law(*law.contracts)]
        if impl is None:
            marks.append(
                pytest.mark.skip(reason="not applicable: outside the implementation's limits")
            )
        params.append(pytest.param(impl, id=name, marks=marks))
    # deselected below; an empty set would be the user's empty_parameter_set_mark, an error maybe
    metafunc.parametrize("impl", params or [pytest.param(None, id="nothing")])


MAIN = "test_matches_oracle"


def _is_main(item: pytest.Item) -> bool:
    return is_law(item) and item.name.partition("[")[0] == MAIN


def _without_subject(item: pytest.Item) -> bool:
    """A law of a contract that nothing under test implements."""
    params = getattr(getattr(item, "callspec", None), "params", {})
    return is_law(item) and params.get("impl") is None and not item.get_closest_marker("skip")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    recorded = config.stash[RECORDED]
    wanted = [i for i in items if not _without_subject(i)]
    if recorded is not None:
        laws = [i for i in wanted if is_law(i) and not i.get_closest_marker("skip")]
        found = {key(i): i for i in laws if key(i) in recorded}
        config.stash[STATE].lost = [k for k in recorded if k not in found]
        _check_recorded(recorded, found, config.stash[STATE].record)
        wanted = list(found.values())
    else:
        wanted = choose(config.stash[STATE], wanted)
    if len(wanted) < len(items):
        config.hook.pytest_deselected(items=[i for i in items if i not in wanted])
        items[:] = wanted
    items.sort(key=lambda i: not _is_main(i))  # first, while time is left
    config.stash[STATE].laws = sum(
        is_law(item) and not item.get_closest_marker("skip") for item in items
    )


def _check_recorded(recorded: dict[str, Any], found: dict[str, Any], record: Any) -> None:
    """A record that cannot be replayed as it is must not look like one that fails, or is mended."""
    from tightrope.frozen import thaw

    if not found:
        raise pytest.UsageError(f"recorded, but no law or subject here: {', '.join(recorded)}")
    for name, item in found.items():
        used = recorded[name].get("record")
        if used and used != (record.id if record else None):
            raise pytest.UsageError(f"{name}: judged under record {used}: expected --record of it")
        drawn = recorded[name]["failure"]["drawn"]
        missing = {"case", *item.function.tightrope_law.drawn} - set(drawn)
        try:
            for value in drawn.values():
                thaw(value, item.callspec.params["impl"].contract)
        except TypeError as error:
            raise pytest.UsageError(f"{name}: no case of this version: {error}") from error
        if missing:
            raise pytest.UsageError(f"{name}: this version also draws {', '.join(missing)}")


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """Open a ledger around a law; end it quietly when its time is up; judge what it could see."""
    if not is_law(pyfuncitem):
        return (yield)
    from hypothesis.errors import Flaky

    from tightrope import blackbox, ledger
    from tightrope.baseline import run_again
    from tightrope.frozen import text
    from tightrope.results import result

    state = pyfuncitem.config.stash[STATE]
    impl: Any = pyfuncitem.funcargs["impl"]
    book = ledger.Ledger(
        key=key(pyfuncitem), home=home(pyfuncitem), axes=impl.contract.axes,
        deadline=state.deadline(), end=state.end, quarantine=state.known.cases(key(pyfuncitem)),
    )  # fmt: skip
    blackbox.begin()
    watch_the_gil(pyfuncitem.config)
    token = ledger._open.set(book)
    failure: BaseException | None = None
    try:
        try:
            law, was = pyfuncitem.function.tightrope_law, state.was(book.key)
            if was.get("outcome") == "passed" and was["device"] == state.device.name:
                run_again(law, impl, was, book)
            outcome = yield
        except ledger.OutOfTime:
            outcome = True
        except Flaky as error:
            raise ledger.unsteady(error) from error
        if book.too_uninformative():
            ledger.uninformative_law(book)
        return outcome
    except BaseException as error:
        failure = error
        raise
    finally:
        faulthandler.cancel_dump_traceback_later()
        ledger._open.reset(token)
        blackbox.leave(failure)
        state.done += 1
        data = result(pyfuncitem.function.tightrope_law, impl, book, failure)
        pyfuncitem.user_properties.append(("tightrope", text(data)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, Any]:
    """A violated law reads as a finding, not as a traceback."""
    report = yield
    if call.when == "call" and call.excinfo is not None and is_law(item):
        from tightrope.frozen import printable
        from tightrope.implementation import placed
        from tightrope.results import explain

        told = explain(item, call.excinfo, report)
        impl: Any = getattr(item, "funcargs", {})["impl"]
        told = placed(told, call.excinfo.value, impl)
        report.longrepr = printable(told) if isinstance(told, str) else told
    if call.when == "call" and is_law(item):
        expected(item.config.stash[STATE].known, key(item), report)
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        unmatched = session.config.stash[STATE].known.unmatched
        session.config.workeroutput["tightrope_unmatched"] = unmatched


def pytest_unconfigure(config: pytest.Config) -> None:
    from tightrope import blackbox

    blackbox.finish()


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):
        state, option = session.config.stash[STATE], session.config.getoption
        ours = any(str(a).startswith("tightrope.properties") for a in session.config.args)
        if option("--tightrope-impl") or option("--tightrope-require-gpu") or state.record or ours:
            state.prove_usable()  # a wrong name or a missing GPU ends the run before workers start
        from tightrope.controller import Controller

        controller = Controller(session.config)
        controller.prove_writable()
        session.config.pluginmanager.register(controller, "tightrope-controller")
