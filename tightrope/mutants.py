"""Mutants: bundled kernels with one mistake, made from the source as it stands.

A mutant is a snippet of a kernel's file, or of a core module below it, and what stands there
instead. It is written to a folder of its own as a module beside copies of those core modules that
lie between (or keep plans, which a kernel must not share with its mutant), imported from there, and
registered under the same contract with the same limits and promise. Nothing of the package changes.
A kernel made of another one (`bundled`) may be mutated there: it then gets a copy of that one.
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

LISTS = (
    "rotation", "tables", "attention", "key_outer", "sequences", "polar", "gradients", "ring",
    "hopper", "terms", "backward",
)  # fmt: skip
# Plans that are found by name; processes that find a function by its module's.
STATEFUL = frozenset({"attention_call", "sequence_call", "attention_backward_call", "ring_pool"})
IMPLEMENTS = re.compile(r"^ *@?implements\(", re.MULTILINE)
NAMED = re.compile(r"""(^ *@?implements\(\s*"\w+",\s*name=)"([^"]+)\"""", re.MULTILINE)


@dataclass(frozen=True)
class Mutant:
    """One mistake in `kernel` (a stem in impls) or, if `module` is given, in that core module, or
    kernel ("impls/rope") that it is made of.

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


@cache
def _core(text: str) -> frozenset[str]:
    """Stems of core modules that a source imports names from."""
    nodes = (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ImportFrom))
    names = (n.module or "" for n in nodes)
    kept = (n for n in names if re.fullmatch(r"tightrope\.\w+", n))
    return frozenset(n.removeprefix("tightrope.") for n in kept)


def _parts(text: str) -> set[str]:
    """Kernels that one is made of, as `Mutant.file` names them."""
    return {f"impls/{stem}" for stem in re.findall(r'\bbundled\("(\w+)"', text)}


def _below(file: str, found: dict[str, set[str]], parts: bool) -> None:
    """file and all core modules, and kernels if `parts`, below it -> those that each imports."""
    if file not in found:
        text = source(file)
        found[file] = {*_core(text), *(_parts(text) if parts else ())}
        for stem in found[file]:
            _below(stem, found, parts)


@cache
def between(kernel: str, module: str) -> frozenset[str]:
    """Modules below a kernel that are `module`, keep plans or processes, or import one of these."""
    graph: dict[str, set[str]] = {}
    _below(f"impls/{kernel}", graph, module.startswith("impls/"))
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
    below = sorted(between(mutant.kernel, mutant.module))
    names = {file: f"{stem}__{file.rpartition('/')[2]}" for file in below}
    own, text = f"impls/{mutant.kernel}", mutated(mutant)
    texts = {file: text if file == mutant.file else source(file) for file in (own, *names)}
    for file, text in texts.items():
        if len(NAMED.findall(text)) != len(IMPLEMENTS.findall(text)):
            raise DoesNotApply(f"{file}.py: an implements( whose name is not where it is sought")
        prefix = mutant.name if file == own else stem
        for copy, name in names.items():
            text = _of_copy(text, copy, name)
        texts[file] = NAMED.sub(rf'\1"{prefix}.\2"', text)
    return {stem: texts.pop(own)} | {names[file]: text for file, text in texts.items()}


def _of_copy(text: str, file: str, name: str) -> str:
    """A source that takes what it uses of a file from the copy of that name."""
    if not file.startswith("impls/"):
        return re.sub(rf"\bfrom tightrope\.{file} import\b", f"from {name} import", text)
    uses = f'bundled("{file.removeprefix("impls/")}", '
    if uses not in text:
        return text
    line = "from tightrope.implementation import bundled\n"
    text = text.replace(line, f"{line}from tightrope.mutants import copied\n", 1)
    return text.replace(uses, f'copied("{name}", ')


def copied(module: str, name: str) -> Any:
    """As `tightrope.implementation.bundled`, of a copy that stands in a module of that name."""
    from tightrope.implementation import registered

    import_module(module)
    (found,) = [i for i in registered(module) if i.name.endswith(f".{name}")]
    return found


def forget(mutant: Mutant) -> None:
    """Drop what `made` registered, and end what its modules keep running."""
    from tightrope.implementation import _REGISTERED, registered

    for name in files(mutant):
        for old in registered(name):
            del _REGISTERED[old.contract_name, old.name]
        module = sys.modules.pop(name, None)
        if name.endswith("__ring_pool") and module is not None:
            module.close()


def made(mutant: Mutant, folder: Path) -> list[Any]:
    """Implementations of a mutant, written to a folder and imported from there.

    Triton reads a kernel's source again: the folder outlives them. Raises DoesNotApply.
    """
    from tightrope.implementation import registered, resolve

    module = written(mutant, folder)
    names = {f"{mutant.name}.{name}" for name in mutant.of}
    found = [resolve(i) for i in registered(module.__name__) if not names or i.name in names]
    if not found or len(found) < len(names):
        raise DoesNotApply(f"{mutant.id}: {mutant.kernel} has no implementation {mutant.of}")
    return found


def written(mutant: Mutant, folder: Path) -> Any:
    """A mutant's module, written to a folder with its copies and imported. Raises DoesNotApply."""
    texts = files(mutant)
    forget(mutant)  # made before, in another folder
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
    sys.path[:] = [str(folder), *(p for p in sys.path if p != str(folder))]
    importlib.invalidate_caches()
    return import_module(next(iter(texts)))


def problems() -> Iterator[str]:
    """What is wrong with the lists: mutants that no longer apply, or do not even parse."""
    for mutant in every():
        try:
            files(mutant)
            ast.parse(mutated(mutant))
        except (DoesNotApply, SyntaxError) as error:
            yield f"{mutant.id}: {error}"
