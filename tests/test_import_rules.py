"""Rules of the source text: who imports whom, no hand-picked tolerance, no long file."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("tightrope", "impls", "oracles", "properties", "tests")
GROUPS = ("impls", "oracles", "properties")
LAYERS = ("_exact", "_mpmath")
LONGEST = 250
# A budget is derived; comparing with a hand-picked tolerance is what this project replaces.
TOLERANCES = {
    "allclose", "approx", "assert_allclose", "assert_almost_equal", "assert_close", "isclose",
    "abs_tol", "atol", "rel_tol", "rtol",
}  # fmt: skip
HEAVY = ("torch", "triton", "hypothesis", "pytest")

Import = tuple[str, int]


def files() -> list[str]:
    """Paths of all source files, relative to the repository."""
    found = [p for folder in FOLDERS for p in (ROOT / folder).rglob("*.py")]
    return sorted(p.relative_to(ROOT).as_posix() for p in found)


def imports(tree: ast.AST) -> Iterator[Import]:
    """Every module imported at run time, at any depth: `from a.b import c` gives a.b and a.b.c."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield module, node.lineno
            yield from ((f"{module}.{alias.name}", node.lineno) for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for rest in node.orelse:
                yield from imports(ast.Module([rest], []))
        else:
            yield from imports(node)


def _within(module: str, *packages: str) -> bool:
    return any(module == p or module.startswith(f"{p}.") for p in packages)


def _forbidden(path: str, module: str) -> str | None:
    """Why the file at `path` must not import `module`; None if it may."""
    folder, _, name = path.partition("/")
    stem = name.removesuffix(".py")
    parts = module.split(".")
    group = parts[1] if parts[0] == "tightrope" and len(parts) > 1 else ""
    if module.startswith(".") or parts[0] in GROUPS:
        return "imports are absolute and through tightrope"
    if group == "properties" and len(parts) > 2 and parts[2].startswith("test_"):
        return "laws are collected by pytest, never imported"
    if folder == "tests":
        return None
    if group in GROUPS and (group != "oracles" or folder not in ("oracles", "properties")):
        loads_kernels = path == "impls/__init__.py" and group == "impls"
        return None if loads_kernels else f"{folder} must not import {group}"
    if folder == "oracles":
        return _forbidden_in_oracle(stem, module, parts)
    return None


def _forbidden_in_oracle(stem: str, module: str, parts: list[str]) -> str | None:
    if _within(module, "torch", "triton"):
        return "oracles never import torch or triton"
    own = {"_exact": "flint", "_mpmath": "mpmath"}
    layer = next((suffix for suffix in LAYERS if stem.endswith(suffix)), None)
    if parts[0] in own.values() and (layer is None or own[layer] != parts[0]):
        return f"{parts[0]} belongs to another layer"
    if parts[:2] != ["tightrope", "oracles"] or len(parts) < 3:
        return None
    if layer and parts[2].endswith(layer):
        return None  # operations may share maths within one layer
    if layer:
        return "a layer shares nothing with other oracles (TYPE_CHECKING excepted)"
    if parts[2].endswith("_mpmath"):
        return "the mpmath layer is for tests"
    if parts[2].endswith("_exact") and not f"{stem}_".startswith(parts[2].removesuffix("exact")):
        return "another operation's exact layer"
    return None


def borrowed(tree: ast.Module, stem: str) -> Iterator[Import]:
    """Names from `<stem>_exact` that `<stem>.py` uses anywhere but in arguments of `Contract`."""
    layer = f"tightrope.oracles.{stem}_exact"
    names = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if layer in (node.module, f"{node.module}.{alias.name}")
    }
    allowed = {
        id(name)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "Contract"
        for argument in call.keywords
        for name in ast.walk(argument.value)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in names and id(node) not in allowed:
            yield node.id, node.lineno
        if isinstance(node, ast.Import) and any(alias.name == layer for alias in node.names):
            yield layer, node.lineno


def tolerances(tree: ast.AST) -> Iterator[Import]:
    """Identifiers and keywords that stand for a tolerance; prose and strings do not count."""
    for node in ast.walk(tree):
        for field in ("id", "attr", "arg", "name"):
            name = str(getattr(node, field, "")).rpartition(".")[2]
            if name in TOLERANCES:
                yield name, getattr(node, "lineno", 0)


def violations(path: str, source: str) -> list[str]:
    """What is wrong with one file: `path:line: reason`."""
    tree = ast.parse(source, path)
    wrong = {
        (line, reason): module
        for module, line in imports(tree)
        if (reason := _forbidden(path, module))
    }
    found = [f"{path}:{line}: {module}: {reason}" for (line, reason), module in wrong.items()]
    if path.startswith("oracles/"):
        exact = borrowed(tree, Path(path).stem)
        found += [f"{path}:{line}: {n} is used outside Contract(...)" for n, line in exact]
    found += [f"{path}:{line}: {n} is a tolerance" for n, line in tolerances(tree)]
    if (lines := source.count("\n")) > LONGEST:
        found.append(f"{path}: {lines} lines, at most {LONGEST}")
    return found


@pytest.mark.parametrize("path", files())
def test_file_keeps_the_rules(path: str) -> None:
    found = violations(path, (ROOT / path).read_text(encoding="utf-8"))
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("impls/rope.py", "from tightrope.oracles.rope import CONTRACT"),
        ("impls/rope.py", "from tightrope.impls.rope_table import build"),
        ("impls/rope.py", "def f():\n    import tightrope.properties"),
        ("impls/rope.py", "from . import rope_table"),
        ("impls/rope.py", "import impls.rope_table"),
        ("oracles/rope.py", "import torch"),
        ("oracles/rope.py", "from triton import language"),
        ("oracles/rope.py", "from tightrope.impls import rope"),
        ("oracles/rope.py", "from tightrope import properties"),
        ("oracles/rope.py", "import mpmath"),
        ("oracles/rope.py", "from tightrope.oracles import rope_mpmath"),
        ("oracles/rope.py", "from tightrope.oracles.rope_exact import exact\ny = exact(1)"),
        ("oracles/rope.py", "from tightrope.oracles import rope_exact\ny = rope_exact.exact(1)"),
        ("oracles/rope.py", "import tightrope.oracles.rope_exact\n"),
        ("oracles/rope_budget.py", "from tightrope.oracles.rope_mpmath import exact"),
        ("oracles/rope_budget.py", "from tightrope.oracles.rope_table_exact import exact"),
        ("oracles/rope_exact.py", "from tightrope.oracles.rope import pairs"),
        ("oracles/rope_exact.py", "import mpmath"),
        ("oracles/rope_mpmath.py", "from tightrope.oracles.rope import RopeCase"),
        ("oracles/rope_mpmath.py", "import flint"),
        ("properties/test_cache.py", "from tightrope.impls import rope"),
        ("properties/test_cache.py", "from tightrope.properties.test_oracle import law"),
        ("tightrope/cli.py", "from tightrope.oracles import CONTRACTS"),
        ("tests/test_cache.py", "from oracles import rope"),
        ("tests/test_cache.py", "from tightrope.properties.test_oracle import law"),
        ("tests/test_cache.py", "import pytest\nassert 1 == pytest.approx(1)"),
        ("tests/test_cache.py", "check(a, b, rtol=0)"),
        ("tests/test_cache.py", "from numpy.testing import assert_allclose as same"),
        ("tests/test_cache.py", "x = 1\n" * (LONGEST + 1)),
    ],
)
def test_breaking_a_rule_is_noticed(path: str, source: str) -> None:
    assert len(violations(path, source)) >= 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("impls/__init__.py", "from tightrope.impls import rope"),
        ("impls/rope.py", "import torch\nfrom tightrope import implements, validate"),
        (
            "oracles/rope.py",
            "from tightrope.oracles.rope_exact import exact\nCONTRACT = Contract(exact=exact)",
        ),
        ("oracles/rope_exact.py", "if TYPE_CHECKING:\n    import tightrope.oracles.rope"),
        ("oracles/rope_mpmath.py", "import mpmath\nfrom tightrope.formats import FORMATS"),
        ("oracles/rope_budget.py", "from tightrope.oracles.rope_exact import angle\nangle(1)"),
        ("properties/test_cache.py", "from tightrope.oracles.rope import RopeCase"),
        ("tests/test_ptx.py", "'no atol, and no cos.approx'"),
    ],
)
def test_what_is_right_passes(path: str, source: str) -> None:
    assert violations(path, source) == []


def test_importing_tightrope_is_light() -> None:
    code = "import json, sys, tightrope; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert set(HEAVY).isdisjoint(json.loads(done.stdout))
