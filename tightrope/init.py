"""`tightrope init`: an adapter to fill in, made from a contract's signature."""

from __future__ import annotations

import argparse
import ast
import inspect
import shlex
import textwrap
from pathlib import Path
from typing import Any

from tightrope.contract import Contract, contract

TEMPLATES = Path(__file__).parent / "templates"
USUAL = ("softmax_scale", "causal")  # optional, but next to no kernel is without them
FIELDS = {"window_size": ("window_left", "window_right"), "q_offset": ("q_offset", "offsets")}


def verb(verbs: Any) -> None:
    """Add `init` to the command line's verbs."""
    told = "write an adapter for your kernel, to fill in"
    parser = verbs.add_parser("init", help=told, description=told.capitalize() + ".")
    parser.add_argument("contract", help="what your kernel computes, such as rope or attention")
    parser.add_argument(
        "file", nargs="?", metavar="FILE.py", help="default: CONTRACT_adapter.py, here"
    )
    parser.set_defaults(do=do_init)


def do_init(options: argparse.Namespace) -> int:
    """Write the file and print what to run next."""
    path = write(options.contract, options.file)
    impl = f"--impl={shlex.quote(str(path))}"
    print(f"{path}: fill in its last line; then, first the main law, then all of them:")
    print(f"  tightrope run {impl} -k matches_oracle")
    print(f"  tightrope run {impl}")
    return 0


def write(name_of_contract: str, file: str | Path | None = None) -> Path:
    """Write an adapter that runs, and fails until its body calls a kernel; returns its path.

    file: a Python file, `CONTRACT_adapter.py` in the working directory if None. Raises LookupError
    for an unknown contract, ValueError for a name that is no Python file's, FileExistsError for a
    file that is there.
    """
    spec = contract(name_of_contract)
    path = Path(file or f"{spec.name}_adapter.py")
    if path.suffix != ".py":
        raise ValueError(f"FILE: expected a name that ends in .py, got {str(path)!r}")
    text = render("adapter.py.jinja", file=path, **_words(spec, path.stem))
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError:
        raise FileExistsError(f"{path} exists and is left as it is; name another FILE") from None
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return path


def render(template: str, **words: Any) -> str:
    """A template of this package, filled in; a word that it lacks raises UndefinedError."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    folder = FileSystemLoader(TEMPLATES)
    source = Environment(loader=folder, undefined=StrictUndefined, keep_trailing_newline=True)
    return source.get_template(template).render(words)


def _words(spec: Contract, stem: str) -> dict[str, Any]:
    arguments = parameters(spec)
    kept = [a for a, optional in arguments.items() if not optional or a in USUAL]
    place = spec.positional or [*spec.inputs(spec.case())]
    tensors = [a for a in kept if a in place]
    named = [f"{a}=None" if a == "softmax_scale" else a for a in kept if a not in place]
    name, call = stem.removesuffix("_adapter"), [*tensors, *(["*"] if named else []), *named]
    lines = textwrap.wrap(", ".join(call), 96)
    return {
        "contract": spec.name,
        "name": name if name != spec.name else "mine",
        "limits": limits(spec, set(arguments) - set(kept)),
        "parameters": lines[0] if len(lines) == 1 else "\n    ".join(["", *lines]) + "\n",
        "shapes": inspect.cleandoc(spec.inputs.__doc__ or "").replace("\n", "\n    "),
        "lse": "lse" in spec.outputs,
        "outputs": ", ".join(spec.outputs),
    }


def parameters(spec: Contract) -> dict[str, bool]:
    """The arguments of a contract's signature, in its order: name -> whether it has a default."""
    call = spec.signature.partition("->")[0].strip()
    (function,) = ast.parse(f"def {call}: ...").body
    assert isinstance(function, ast.FunctionDef)
    plain = {a.arg: False for a in function.args.args}
    named = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    return {**plain, **{a.arg: default is not None for a, default in named}}


def limits(spec: Contract, off: set[str]) -> dict[str, str]:
    """Limits that leave out the arguments named in `off`, as Python; all dtypes before them."""
    plain = spec.case()
    fields = [f for a in sorted(off) for f in FIELDS.get(a, (a,))]
    values = {f: (getattr(plain, f),) for f in spec.domain if f in fields}
    given = {"dtype": tuple(spec.domain["dtype"]), **values}
    return {name: repr(some).replace("'", '"') for name, some in given.items()}
