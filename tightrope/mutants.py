"""Mutants: bundled kernels with one mistake, made from the source as it stands.

A mutant is a snippet of a kernel's file, or of a core module below it, and what stands there
instead. It is written to a folder of its own as a module beside copies of those core modules that
lie between (or keep plans, which a kernel must not share with its mutant), imported from there, and
registered under the same contract with the same limits and promise. Nothing of the package changes.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

LISTS = ("rotation", "tables", "attention", "key_outer", "sequences", "polar")
STATEFUL = frozenset({"attention_call", "sequence_call"})  # plans that are found by name
IMPLEMENTS = re.compile(r"^@implements\(", re.MULTILINE)
NAMED = re.compile(r"""(@implements\(\s*"\w+",\s*name=)"([^"]+)\"""")


@dataclass(frozen=True)
class Mutant:
    """One mistake in `kernel` (a stem in impls) or, if `module` is given, in that core module.

    old occurs exactly `times` in the file, and new stands there instead. of: names of the kernel's
    implementations that it touches, none for all. dtypes: those that it can show in, none for all.
    equivalent: the argument why no call tells it from a kernel that keeps its promise. needs: what
    shows it, where the interpreter cannot. hole: what the suite lacks to see it, if it is known not
    to.
    """

    kernel: str
    name: str
    family: str
    old: str
    new: str
    module: str = ""
    times: int = 1
    of: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    equivalent: str | None = None
    needs: str | None = None
    hole: str | None = None

    @property
    def id(self) -> str:
        return f"{self.kernel}:{self.name}"

    @property
    def file(self) -> str:
        """Of the package: `impls/rope`, or `turns` of the core."""
        return self.module or f"impls/{self.kernel}"


class DoesNotApply(ValueError):
    """A mutant's snippet does not stand in the source as often as it says."""


@cache
def every() -> tuple[Mutant, ...]:
    """All mutants, list by list. Raises ValueError if two have one name."""
    found = [m for name in LISTS for m in import_module(f"tightrope.mutant_list_{name}").MUTANTS]
    twice = {m.id for m in found if sum(m.id == other.id for other in found) > 1}
    if twice:
        raise ValueError(f"mutants of one name: {', '.join(sorted(twice))}")
    return tuple(found)


def chosen(words: list[str]) -> list[Mutant]:
    """Mutants whose id contains one of the words; all without words. Raises LookupError."""
    for word in words:
        if not any(word in m.id for m in every()):
            raise LookupError(
                f"no mutant's name contains {word!r}; known: {', '.join(m.id for m in every())}"
            )
    return [m for m in every() if not words or any(word in m.id for word in words)]


def source(file: str) -> str:
    """The text of a file of the package, named as `Mutant.file`."""
    spec = importlib.util.find_spec("tightrope." + file.replace("/", "."))
    if spec is None or spec.origin is None:
        raise DoesNotApply(f"tightrope has no {file}.py")
    return Path(spec.origin).read_text()


def mutated(mutant: Mutant) -> str:
    """The text of the mutant's file with the mistake. Raises DoesNotApply."""
    text = source(mutant.file)
    count = text.count(mutant.old)
    if count != mutant.times:
        raise DoesNotApply(
            f"{mutant.id}: expected {mutant.times} times in {mutant.file}.py, found {count}: "
            f"{mutant.old!r}"
        )
    return text.replace(mutant.old, mutant.new)


def _core(text: str) -> set[str]:
    """Stems of core modules that a source imports names from."""
    nodes = (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ImportFrom))
    names = (n.module or "" for n in nodes)
    return {n.removeprefix("tightrope.") for n in names if re.fullmatch(r"tightrope\.\w+", n)}


def _below(file: str, found: dict[str, set[str]]) -> None:
    """file and all core modules below it -> the core modules that each imports."""
    if file not in found:
        found[file] = _core(source(file))
        for stem in found[file]:
            _below(stem, found)


@cache
def between(kernel: str, module: str) -> frozenset[str]:
    """Core modules below a kernel that are `module`, keep plans, or import one of these."""
    graph: dict[str, set[str]] = {}
    _below(f"impls/{kernel}", graph)
    copied = {stem for stem in graph if stem in STATEFUL or stem == module}
    while more := {stem for stem, below in graph.items() if below & copied} - copied:
        copied |= more
    if module and module not in copied:
        raise DoesNotApply(f"{kernel} does not use {module}")
    return frozenset(copied - {f"impls/{kernel}"})


def files(mutant: Mutant) -> dict[str, str]:
    """Name of a module -> its source: the mutant, and the copies that it imports.

    Raises DoesNotApply.
    """
    stem = "mutant_" + re.sub(r"\W", "_", mutant.id)
    names = {core: f"{stem}__{core}" for core in sorted(between(mutant.kernel, mutant.module))}
    own, text = f"impls/{mutant.kernel}", mutated(mutant)
    texts = {file: text if file == mutant.file else source(file) for file in (own, *names)}
    if len(NAMED.findall(texts[own])) != len(IMPLEMENTS.findall(texts[own])):
        raise DoesNotApply(f"{own}.py: an @implements whose name is not where it is looked for")
    texts[own] = NAMED.sub(rf'\1"{mutant.name}.\2"', texts[own])
    for core, name in names.items():
        texts = {
            file: re.sub(rf"\bfrom tightrope\.{core} import\b", f"from {name} import", text)
            for file, text in texts.items()
        }
    return {stem: texts.pop(own)} | {names[core]: text for core, text in texts.items()}


def made(mutant: Mutant, folder: Path) -> list[Any]:
    """Implementations of a mutant, written to a folder and imported from there.

    Triton reads a kernel's source again: the folder outlives them. Raises DoesNotApply.
    """
    from tightrope.implementation import _REGISTERED, registered, resolve

    written = files(mutant)
    for old in registered(next(iter(written))):  # made before, in another folder
        del _REGISTERED[old.contract_name, old.name]
    for name, text in written.items():
        (folder / f"{name}.py").write_text(text)
        sys.modules.pop(name, None)
    sys.path[:] = [str(folder), *(p for p in sys.path if p != str(folder))]
    importlib.invalidate_caches()
    module = import_module(next(iter(written)))
    names = {f"{mutant.name}.{name}" for name in mutant.of}
    found = [resolve(i) for i in registered(module.__name__) if not names or i.name in names]
    if not found or len(found) < len(names):
        raise DoesNotApply(f"{mutant.id}: {mutant.kernel} has no implementation {mutant.of}")
    return found


def problems() -> Iterator[str]:
    """What is wrong with the lists: mutants that no longer apply, or do not even parse."""
    for mutant in every():
        try:
            for text in files(mutant).values():
                ast.parse(text)
        except (DoesNotApply, SyntaxError) as error:
            yield f"{mutant.id}: {error}"
