"""The package as others get it: wheel built from the sdist, editable install, bare checkout.

Each runs in a virtual environment of its own that borrows this environment's third-party packages,
so that nothing is downloaded, and none of its tightrope. Commands start away from the project.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {"tightrope": "tightrope"} | {
    folder: f"tightrope/{folder}" for folder in ("impls", "oracles", "properties")
}
FILES = ("pyproject.toml", "README.md", "LICENSE", "conftest.py", "constraints.txt")
PIP = ("-m", "pip", "--disable-pip-version-check", "--quiet")
OFFLINE = ("--no-deps", "--no-build-isolation", "--no-index", "--ignore-installed")

ADAPTER = """
import torch

from tightrope import implements


@implements(
    "rope",
    name="acme",
    interleaved=(False,),
    inplace=(False,),
    dtype=("float32",),
    where=("out_dtype=input",),
)
def acme(q, k, cos, sin, positions, *, interleaved, inplace=False, out_dtype=None):
    c, s = (table[positions.long()].float()[:, None, :] for table in (cos, sin))
    width = c.shape[-1]

    def rotate(x):
        a, b, rest = x[..., :width], x[..., width : 2 * width], x[..., 2 * width :]
        return torch.cat((a * c - b * s, b * c + a * s, rest), dim=-1)

    return rotate(q), rotate(k)
"""


@dataclass(frozen=True)
class Installed:
    """A way to have tightrope: its Python, the folder to stand in, and how pytest finds laws."""

    python: Path
    cwd: Path
    laws: tuple[str, ...]

    def run(self, *args: str) -> str:
        """Run Python with these arguments; output of both streams. Fails with it on an error."""
        return run([str(self.python), *args], self.cwd)


def run(command: list[str], cwd: Path) -> str:
    private = ("PYTEST_", "TIGHTROPE_", "PYTHONPATH", "VIRTUAL_ENV", "COV_")
    env = {name: v for name, v in os.environ.items() if not name.startswith(private)}
    done = subprocess.run(
        command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, f"{' '.join(command)}\nexit code {done.returncode}\n{output}"
    return output


def environment(where: Path) -> Path:
    """A virtual environment that sees this one's packages except tightrope; its interpreter."""
    borrowed = where / "borrowed"
    borrowed.mkdir(parents=True)
    for site in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(site).iterdir():
            if "tightrope" not in entry.name and entry.suffix != ".pth":
                (borrowed / entry.name).symlink_to(entry)
    venv.create(where, with_pip=False, symlinks=True)
    python = where / "bin" / "python"
    own = run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], where)
    (Path(own.strip()) / "borrowed.pth").write_text(f"{borrowed}\n")
    return python


def copy_of_the_tree(where: Path) -> Path:
    """The files a build reads; building in place would leave its droppings in the checkout."""
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for folder in PACKAGES:
        shutil.copytree(ROOT / folder, where / folder, ignore=ignore)
    for name in FILES:
        shutil.copy(ROOT / name, where / name)
    return where


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as `build` makes it: sdist first, wheel from the unpacked sdist."""
    tree = copy_of_the_tree(tmp_path_factory.mktemp("source"))
    out = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(tree)], out)
    assert len(list(out.glob("tightrope-*.tar.gz"))) == 1
    return next(out.glob("*.whl"))


@pytest.fixture(params=["wheel", "editable", "checkout"])
def installed(request: pytest.FixtureRequest, tmp_path: Path) -> Installed:
    python = environment(tmp_path / "env")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    if request.param == "wheel":
        source = [str(request.getfixturevalue("wheel"))]
    else:
        tree = copy_of_the_tree(tmp_path / "tree")
        if request.param == "checkout":
            return Installed(python, tree, ("properties",))
        source = ["--editable", str(tree)]
    run([str(python), *PIP, "install", *OFFLINE, *source], elsewhere)
    return Installed(python, elsewhere, ("--pyargs", "tightrope.properties"))


def test_the_wheel_holds_the_tree_and_nothing_else(wheel: Path) -> None:
    expected = {
        f"{package}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, package in PACKAGES.items()
        for path in (ROOT / folder).rglob("*.py")
    }
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    metadata = {name for name in names if name.split("/")[0].endswith(".dist-info")}
    assert {name for name in names - metadata if name.endswith(".py")} == expected
    assert {name for name in names - metadata if not name.startswith("tightrope/")} == set()
    assert "tightrope/py.typed" in names
    assert any(name.endswith("/LICENSE") for name in metadata)


def test_it_works_from_where_it_is(installed: Installed) -> None:
    """Imports, command line, plugin options, collection, and a stranger's kernel on workers."""
    modules = "tightrope, tightrope.impls, tightrope.oracles, tightrope.properties"
    where = installed.run("-c", f"import {modules}; print(tightrope.__file__)")
    assert str(ROOT / "tightrope") not in where

    main = "from tightrope.cli import main; raise SystemExit(main(['--help']))"
    assert "replay" in installed.run("-c", main)
    script = installed.python.with_name("tightrope")
    if script.exists():
        assert "replay" in run([str(script), "--help"], installed.cwd)
    assert "--tightrope-impl" in installed.run("-m", "pytest", "--help")

    collected = installed.run("-m", "pytest", "--collect-only", "-q", *installed.laws)
    assert "test_matches_oracle[rope" in collected

    (installed.cwd / "acme_adapter.py").write_text(ADAPTER)
    report = installed.run(
        "-m", "pytest", "-n", "2", "--tightrope-impl=acme_adapter.py", "-k", "test_matches_oracle",
        *installed.laws,
    )  # fmt: skip
    assert "acme" in report
    assert " passed" in report


def test_only_the_entry_point_or_the_checkout_loads_the_plugin(installed: Installed) -> None:
    found = "entry_points(group='pytest11', name='tightrope.plugin')"
    ask = f"from importlib.metadata import entry_points; print(len({found}))"
    bare = installed.laws == ("properties",)
    assert installed.run("-c", ask).strip() == ("0" if bare else "1")
    assert installed.python.with_name("tightrope").exists() != bare


def test_an_editable_install_sees_a_new_file(tmp_path: Path) -> None:
    python, tree = environment(tmp_path / "env"), copy_of_the_tree(tmp_path / "tree")
    run([str(python), *PIP, "install", *OFFLINE, "--editable", str(tree)], tmp_path)
    (tree / "oracles" / "fresh.py").write_text("seen = 1\n")
    run([str(python), "-c", "import tightrope.oracles.fresh"], tmp_path)
