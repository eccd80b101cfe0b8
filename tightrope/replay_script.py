"""A recorded failure as a script of its own, for a report to the kernel's authors.

    tightrope replay REPORT.json --only=TEXT --script=DIR

DIR/reproduce.py needs NumPy, torch and the kernel; DIR/inputs.npz holds the memory of the call, bit
for bit and with its strides, and for each output the values that are right. The script makes the
one call that `test_matches_oracle` would make of the recorded case: a failure of another law, such
as two calls that differ, may need the law itself to show.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import shlex
import shutil
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tightrope import __version__
from tightrope.arena import Arena
from tightrope.arithmetic import Device
from tightrope.blackbox import write_atomically
from tightrope.budget import Budget
from tightrope.contract import contract
from tightrope.device import current, prepare
from tightrope.formats import Array
from tightrope.frozen import thaw
from tightrope.implementation import Implementation
from tightrope.init import render
from tightrope.replay import read, targets
from tightrope.subjects import under_test


def write(file: str | Path, only: str, folder: str | Path, impls: Sequence[str] = ()) -> list[Path]:
    """Write one script a failure and return their paths: in `folder`, or if there are several in a
    folder each below it.

    file and only: as `tightrope.replay.read` has them. impls: what is under test, in place of what
    the file names. Raises OSError, ImportError, LookupError, and ValueError for a file that holds
    no failure, or does not say what its device was.
    """
    failed = read(file, only)
    recorded = json.loads(Path(file).read_text()).get("environment", {}).get("device", {})
    found = under_test(impls or targets(failed)[0])
    paths = []
    for key, result in failed.items():
        if result.get("record"):
            raise ValueError(f"{key} was judged with constants of record {result['record']}: "
                             "a script has none")  # fmt: skip
        name = re.sub(r"[^\w.-]+", "-", key).strip("-")
        home = Path(folder) / name if len(failed) > 1 else Path(folder)
        wanted = result["contract"], result["implementation"]
        impl = next((i for i in found if (i.contract_name, i.name) == wanted), None)
        if impl is None:
            raise LookupError(f"{key}: nothing under test is {wanted[1]!r} of {wanted[0]!r}")
        paths.append(_write_one(result, home, impl, device_of(result, recorded)))
    return paths


def do_script(options: argparse.Namespace) -> int:
    """`tightrope replay FILE --script=DIR`."""
    prepare("cuda" if options.require_gpu else options.device)
    for path in write(options.file, options.only, options.script, options.impl):
        print(f"python {shlex.quote(str(path))}")
    return 0


def device_of(result: Mapping[str, Any], recorded: Mapping[str, Any]) -> Device:
    """The device of a result, on which what its implementation promises may depend."""
    name = result.get("device") or current().name
    if name == current().name:
        return current()
    if name.startswith("Triton interpreter"):
        return Device("cpu", name, None, interpreted=True)
    if "capability" not in recorded:
        raise ValueError(f"the file does not say what {name} is capable of; give the run's report")
    major, minor = recorded["capability"].split(".")
    return Device("cuda", name, (int(major), int(minor)))


def _write_one(
    result: Mapping[str, Any], folder: Path, impl: Implementation, device: Device
) -> Path:
    case = thaw(result["failure"]["drawn"]["case"], contract(result["contract"]))
    inputs = impl.contract.inputs(case)
    arena = Arena(inputs, impl.contract.layouts(case), "cpu")
    arrays = {"memory": arena.before[: arena.inputs_end // 2]}
    budgets = impl.budgets(case, inputs, device)
    for name in impl.outputs:
        arrays |= {f"{name}_{part}": a for part, a in right(budgets[name]).items()}
    text = render("reproduce.py.jinja", **_words(result, impl, case, arena, inputs, budgets))
    folder.mkdir(parents=True, exist_ok=True)
    _save(folder / "inputs.npz", arrays)
    _copy_adapter(impl, folder)
    write_atomically(folder / "reproduce.py", text)
    return folder / "reproduce.py"


def _copy_adapter(impl: Implementation, folder: Path) -> None:
    """A bundled adapter goes with its script, and what converts layouts with any that uses it."""
    file = Path(impl.source.rpartition(":")[0])
    if impl.module.startswith("tightrope."):
        shutil.copy(file, folder / file.name)
    if "tightrope.adapt" in file.read_text():
        shutil.copy(Path(__file__).with_name("adapt.py"), folder / "adapt.py")


def right(budget: Budget) -> dict[str, Array]:
    """What an output may be: low and high, after the last rounding, both right; exact, bound.

    All float64. The oracle's own error widens them: what lies outside is certainly wrong.
    """
    e = budget.bound + np.asarray(budget.oracle)
    with np.errstate(invalid="ignore"):
        low, high = (budget.format.round(budget.expected + side * e) for side in (-1, 1))
        if budget.replay is not None:
            c, r = budget.replay.centre, budget.replay.radius
            low = np.maximum(low, budget.format.round(c - r))
            high = np.minimum(high, budget.format.round(c + r))
    shape = budget.expected.shape
    parts = {"low": low, "high": high, "exact": budget.expected, "bound": budget.bound}
    return {n: np.ascontiguousarray(np.broadcast_to(a, shape)) for n, a in parts.items()}


def _words(
    result: Mapping[str, Any], impl: Implementation, case: Any, arena: Arena,
    inputs: Mapping[str, Array], budgets: Mapping[str, Budget],
) -> dict[str, Any]:  # fmt: skip
    """What the template says, as Python source where it is data."""
    spec, detail = impl.contract, result["failure"]["detail"]
    tensors = {
        n: (s.dtype.name, s.shape, s.placement.strides, s.start // s.dtype.itemsize)
        for n, s in arena.sections.items()
    }
    worst = {k: detail[k] for k in ("output", "index", "exact")} if "exact" in detail else None
    file = Path(impl.source.rpartition(":")[0])
    named = [n for n in spec.keywords if n in inputs]
    plain = [n for n in spec.positional or inputs if n not in named]
    law = result["law"].removeprefix("test_").replace("_", " ")
    data = {
        "kernel": file.name if impl.module.startswith("tightrope.") else str(file),
        "contract": spec.name, "name": impl.name, "tensors": tensors, "plain": plain,
        "named": named, "options": spec.options(case), "in_place": dict(spec.in_place(case)),
        "outputs": {n: budgets[n].dtype for n in impl.outputs}, "worst": worst,
    }  # fmt: skip
    wrapped = textwrap.fill(str(case), 100, break_long_words=False)
    told = f"{wrapped}\n\n{result['failure']['message']}"
    told = told.replace("\\", "\\\\").replace('"""', "'''")
    return {
        "title": f"`{law}` does not hold for {spec.name} {impl.name} ({result['dtype']}).",
        "story": told, "version": __version__, "signature": spec.signature,
        **{name: repr(value) for name, value in data.items()},
    }  # fmt: skip


def _save(path: Path, arrays: Mapping[str, Array]) -> None:
    """An .npz, whole or not at all."""
    buffer = io.BytesIO()
    named: dict[str, Any] = dict(arrays)
    np.savez_compressed(buffer, **named)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".tightrope-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(buffer.getvalue())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
