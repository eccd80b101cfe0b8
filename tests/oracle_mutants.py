"""Edits of the oracles' own sources, applied in memory to one process.

A mutant changes one sign, one small number, one comparison, or one product into a sum, in a
function of one layer of one contract. `python tests/record_oracle_mutants.py` runs all of them
against the oracles' own tests; tests/test_oracle_mutants.py runs a few in continuous integration.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import io
import os
import resource
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ORACLES = HERE.parent / "oracles"
SMALL = 16  # larger whole numbers are sizes and bits of precision
PATIENCE = 90  # seconds of the processor; a mutant whose loop does not end has been noticed
SWAPPED: dict[type, Any] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.USub: ast.UAdd,
}  # fmt: skip
# contract -> layer -> modules, "module:functions" where only these are the layer's
LAYERS: dict[str, dict[str, tuple[str, ...]]] = {
    "rope": {"float64": ("rope:rotate",), "arb": ("rope_exact",), "mpmath": ("rope_mpmath",)},
    "rope_backward": {"float64": ("rope_backward:forward",), "arb": ("rope_backward_exact",),
                      "mpmath": ("rope_backward_mpmath",)},
    "rope_table": {
        "float64": ("rope_table:oracle,_of_columns", "rope_scaling"),
        "arb": ("rope_table_exact", "rope_scaling_exact"),
        "mpmath": ("rope_table_mpmath", "rope_scaling_mpmath"),
    },
    "pope_table": {
        "float64": ("pope_table:_frequencies,oracle",),
        "arb": ("pope_table_exact",), "mpmath": ("pope_table_mpmath",),
    },
    "query_scale": {
        "float64": ("query_scale:oracle",), "arb": ("query_scale_exact",),
        "mpmath": ("query_scale_mpmath",),
    },
    "attention": {
        "float64": ("attention_problem:visible,problem,logits,attend",),
        "arb": ("attention_exact", "attention_row_exact"), "mpmath": ("attention_mpmath",),
    },
    "attention_backward": {
        "float64": ("attention_backward_problem",), "arb": ("attention_backward_exact",),
        "mpmath": ("attention_backward_mpmath",),
    },
    "attention_varlen": {
        "float64": ("attention_varlen_problems:_problem,_padded,joined,_outs,_lses",),
        "arb": ("attention_varlen_exact",), "mpmath": ("attention_varlen_mpmath",),
    },
    "attention_paged": {
        "float64": ("attention_paged_inputs:stated",), "arb": ("attention_paged_exact",),
        "mpmath": ("attention_paged_mpmath",),
    },
    "merge_attention": {
        "float64": ("merge_attention_states:of",), "arb": ("merge_attention_exact",),
        "mpmath": ("merge_attention_mpmath",),
    },
    "rope_attention": {
        "float64": ("rope_attention_inputs:rotated,flattened,unflattened,stated",),
        "arb": ("rope_attention_exact",), "mpmath": ("rope_attention_mpmath",),
    },
    "pope_attention": {
        "float64": ("pope_attention_problem:softplus,angles,polar", "pope_attention_angles"),
        "arb": ("pope_attention_exact",), "mpmath": ("pope_attention_mpmath",),
    },
}  # fmt: skip
PACKED = ("test_layers.py", "test_attention_sequences.py")
# contract -> the tests that hold its layers against one another, files or single ones
TESTS: dict[str, tuple[str, ...]] = {
    "rope": ("test_rope_oracle.py",),
    "rope_backward": ("test_rope_backward_oracle.py",),
    "rope_table": (
        "test_rope_scaling.py", "test_layers.py",
        *(f"test_rope_table_oracle.py::test_{name}" for name in (
            "ball_arithmetic_and_mpmath_agree", "two_frequencies_known_in_closed_form",
            "float64_is_within_its_own_bound", "inv_freq_is_correctly_rounded",
            "expected_is_the_exact_value_but_for_its_declared_error")),
    ),
    "pope_table": tuple(f"test_pope_table_oracle.py::test_{name}" for name in (
        "ball_arithmetic_and_mpmath_agree", "float64_is_within_its_own_bound",
        "inv_freq_is_correctly_rounded", "frequencies_known_in_closed_form",
        "expected_is_the_exact_value_but_for_its_declared_error",
        "the_two_conventions_are_what_their_names_say", "the_float64_bound_is_not_empty")),
    "query_scale": tuple(f"test_query_scale.py::test_{name}" for name in (
        "three_layers_agree", "the_models_own_values")),
    "attention": ("test_attention_oracle.py", "test_attention_exact.py"),
    "attention_backward": ("test_attention_backward_oracle.py",),
    "attention_varlen": PACKED,
    "attention_paged": PACKED,
    "merge_attention": (*PACKED, "test_merge_budget.py::test_float64_stays_within_its_own_bound",
                        "test_merge_budget.py::test_a_single_live_state_must_come_out_as_it_is"),
    "rope_attention": PACKED,
    "pope_attention": ("test_pope_oracle.py", "test_pope_angles.py", "test_layers.py"),
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One edit: the place is the how-many-th node that an edit of this kind is possible at."""

    contract: str
    layer: str
    module: str
    function: str
    line: int
    edit: str
    place: int

    def __str__(self) -> str:
        return f"{self.module}.{self.function}:{self.line} {self.edit}"


def sites(tree: ast.Module) -> Iterator[tuple[str, ast.AST, str, Any]]:
    """(function, node, what the edit does, the new operator or number), in the source's order."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for node in (n for statement in function.body for n in _inside(statement)):
                for told, new in _edits(node):
                    yield function.name, node, told, new


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    """A node and what is in it, but for functions of their own, errors, types and bounds."""
    bound = isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "relative"
    if bound or isinstance(node, (ast.FunctionDef, ast.Raise, ast.AnnAssign)):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _inside(child)


def _edits(node: ast.AST) -> Iterator[tuple[str, Any]]:
    operator = getattr(node, "op", None)
    if isinstance(node, ast.Compare):
        operator = node.ops[0]
    if type(operator) in SWAPPED:
        new = SWAPPED[type(operator)]
        yield f"{type(operator).__name__} to {new.__name__}", new()
    if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) < SMALL:
        yield f"{node.value} to {node.value + 1}", node.value + 1
    if isinstance(node, ast.Constant) and type(node.value) is float and node.value:
        yield f"{node.value} times 1.001", node.value * 1.001


def mutants() -> Iterator[Mutant]:
    """All of them."""
    for contract, layers in LAYERS.items():
        for layer, modules in layers.items():
            for spec in modules:
                module, _, chosen = spec.partition(":")
                wanted = chosen.split(",") if chosen else None
                tree = ast.parse((ORACLES / f"{module}.py").read_text())
                for place, (function, node, told, _) in enumerate(sites(tree)):
                    if wanted is None or function in wanted:
                        yield Mutant(contract, layer, module, function, node.lineno, told, place)


class Edited(SourceFileLoader):
    """Loads a module's source with one edit, at its `place`."""

    def get_code(self, fullname: str) -> Any:
        tree = ast.parse(Path(self.path).read_text())
        _, node, _, new = list(sites(tree))[self.place]
        if isinstance(node, ast.Compare):
            node.ops[0] = new
        else:
            setattr(node, "value" if isinstance(node, ast.Constant) else "op", new)
        return compile(tree, self.path, "exec")


@dataclass
class Finder:
    """Finds the mutated module before anybody else does."""

    name: str
    place: int

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self.name:
            return None
        file = str(ORACLES / f"{name.rpartition('.')[2]}.py")
        loader = Edited(name, file)
        loader.place = self.place
        return importlib.util.spec_from_file_location(name, file, loader=loader)


class First:
    """A plugin that brings in the edit and keeps the name of the first test that fails."""

    def __init__(self, edit: Finder | None) -> None:
        self.edit, self.name = edit, ""

    def pytest_sessionstart(self) -> None:
        if self.edit:  # before pytest's own hook, which finds what an installed plugin belongs to
            sys.meta_path.insert(0, self.edit)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.name:
            self.name = report.nodeid.rpartition("tests/")[2]

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed and not self.name:
            self.name = f"{report.nodeid} cannot be imported"


def noticed_by(mutant: Mutant | None, files: tuple[str, ...]) -> str:
    """The test that fails for it, or "". The oracles must not be imported yet in this process."""
    with os.fdopen(os.memfd_create("test"), "r+") as told:
        if not (child := os.fork()):
            _in_child(mutant, files, told)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
            return f"does not end within {PATIENCE} s"
        told.seek(0)
        return told.read()


def _in_child(mutant: Mutant | None, files: tuple[str, ...], told: Any) -> None:
    import pytest

    first = First(mutant and Finder(f"tightrope.oracles.{mutant.module}", mutant.place))
    resource.setrlimit(resource.RLIMIT_CPU, (PATIENCE, PATIENCE))
    try:
        os.chdir(HERE.parent)
        quiet = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--no-header"]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            code = pytest.main([*quiet, *(str(HERE / f) for f in files)], plugins=[first])
        told.write(first.name or ("" if code == 0 else f"pytest ends with {int(code)}"))
        told.flush()
    finally:
        os._exit(0)


def preload() -> None:
    """Import what every child needs and no mutant is in."""
    heavy = ("numpy", "torch", "scipy.special", "hypothesis", "pytest", "flint", "mpmath")
    for name in (*heavy, "tightrope.budget", "tightrope.contract"):
        importlib.import_module(name)
