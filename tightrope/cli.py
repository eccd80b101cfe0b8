"""The command line: `tightrope run`, `init`, `list`, `replay`, `doctor`, verbs kept elsewhere."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Sequence
from typing import NoReturn

from tightrope import __version__, audit, gate, init, power_command, report_writer, workers
from tightrope.profiles import PROFILES, patience, positive

LAWS = "tightrope.properties"
RESTARTS = 1000  # workers: a kernel may crash under every law, and all of them are to be told
INTERPRETER_SECONDS = 60.0  # what `dev` may take where kernels are interpreted


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status (pytest's where pytest ran)."""
    arguments, extra = _split(sys.argv[1:] if argv is None else list(argv))
    try:
        options = _parser().parse_args(arguments)
    except SystemExit as stop:  # argparse's own status for wrong usage is pytest's for Ctrl-C
        return 4 if stop.code else 0
    options.extra = extra
    try:
        return int(options.do(options))
    except KeyboardInterrupt:
        return 2
    except (
        ImportError, LookupError, ValueError, OSError, RuntimeError, argparse.ArgumentTypeError
    ) as error:  # fmt: skip
        print(f"tightrope: {error}", file=sys.stderr)
        return 4


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """What stands behind `--` goes to pytest as it is."""
    if "--" in words:
        at = words.index("--")
        return words[:at], words[at + 1 :]
    return words, []


def _parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="tightrope",
        description="Checks your kernels for position embeddings and attention against every law "
        "of their operation, and shows the smallest case on which one fails.",
    )
    top.add_argument("--version", action="version", version=f"tightrope {__version__}")
    known = "run | init | list | replay | doctor | bench | report | audit | power"
    verbs = top.add_subparsers(required=True, metavar=known)
    behind = "Options of pytest go behind `--`: tightrope run -- --junitxml=junit.xml"
    about = "check implementations against every law of their contracts"
    run = verbs.add_parser("run", help=about, description=about.capitalize() + ".", epilog=behind)
    run.set_defaults(do=do_run)
    run.add_argument(
        "--profile", choices=tuple(PROFILES), default="dev",
        help="examples a law: dev 25 (default), ci 100, the same in every run, nightly 2000",
    )  # fmt: skip
    run.add_argument(
        "--examples", type=positive, metavar="N", help="examples a law, in place of the profile's"
    )
    run.add_argument(
        "--no-shrink", action="store_true", help="report the first failure found, as drawn"
    )
    run.add_argument(
        "--max-seconds", type=float, metavar="N", help="share N seconds over the laws; 0: no limit"
    )
    run.add_argument("--report", metavar="FILE", help="write results to FILE (JSON)")
    run.add_argument(
        "-k", dest="keyword", metavar="EXPRESSION", help="only matching laws (pytest's -k)"
    )
    run.add_argument("--seed", type=int, metavar="N", help="Hypothesis's seed")
    gate.options(run)
    report_writer.verb(verbs)
    again = "run the failures of a report again, exactly"
    replay = verbs.add_parser(
        "replay", help=again, description=again.capitalize() + ".", epilog=behind
    )
    replay.set_defaults(do=do_replay)
    replay.add_argument("file", help="a report, or a failure file that a run named")
    replay.add_argument(
        "--only", default="", metavar="TEXT", help="only failures whose name contains TEXT"
    )
    replay.add_argument("--script", metavar="DIR", help="write a script that needs no tightrope")
    for verb in (run, replay):
        verb.add_argument(
            "--dtype", action="append", default=[], metavar="DTYPE",
            help="only this dtype, such as bfloat16; repeatable (default: all that are supported)",
        )  # fmt: skip
        verb.add_argument(
            "--device", choices=("cuda", "cpu"),
            help="run kernels there; cpu: on Triton's interpreter (default: a GPU if there is one)",
        )  # fmt: skip
        verb.add_argument(
            "--require-gpu", action="store_true", help="no CUDA device is an error, not a fallback"
        )
        gate.record(verb)
        verb.add_argument(
            "--workers", type=int, metavar="N",
            help="processes (default: one a core, at most 16); 0: this one, where nothing outlives "
            "a kernel that crashes or hangs",
        )  # fmt: skip
    init.verb(verbs)
    listing = verbs.add_parser("list", help="contracts, implementations and their limits")
    listing.set_defaults(do=do_list)
    for verb in (run, replay, listing):
        verb.add_argument(
            "--impl", action="append", default=[], metavar="WHAT",
            help="what is under test: MODULE (acme_adapter), FILE.py (path/acme_adapter.py), or "
            "MODULE:NAME for one of its implementations, or peers (other people's); repeatable ("
            "default: $TIGHTROPE_IMPL, installed entry points, or the bundled kernels)",
        )  # fmt: skip
    doctor = verbs.add_parser("doctor", help="what this machine can and cannot prove")
    doctor.set_defaults(do=do_doctor)
    bench = verbs.add_parser("bench", help="speed against peers, in one run, on a GPU")
    bench.add_argument(
        "operation", nargs="?", default="comparison",
        choices=("comparison", "pope_attention", "attention", "rope", "gradients"),
        help="default comparison: attention without positions, with RoPE and with PoPE, beside "
        "PyTorch's and installed peers",
    )  # fmt: skip
    bench.add_argument("--json", metavar="FILE", help="write all numbers to FILE")
    bench.add_argument(
        "--picture", metavar="FILE.png", help="draw runtime and memory against length"
    )
    bench.add_argument(
        "--sweep", action="store_true", help="time every configuration too (not in the comparison)"
    )
    bench.add_argument(
        "--only", metavar="SHAPE", help="only shapes that start so, such as 1x8x4096x64"
    )
    bench.set_defaults(do=do_bench)
    audit.add_command(verbs)
    power_command.add_command(verbs)
    return top


def do_run(options: argparse.Namespace) -> int:
    command = _pytest(options, ["--pyargs", LAWS])
    seconds = options.max_seconds
    if (
        seconds is None
        and options.profile == "dev"
        and not options.examples
        and _interpreted(options)
    ):
        seconds = INTERPRETER_SECONDS
    if seconds:
        command.append(f"--tightrope-max-seconds={seconds:g}")
    command.append(f"--tightrope-profile={options.profile}")
    if options.examples:
        command.append(f"--tightrope-examples={options.examples}")
    if options.no_shrink:
        command.append("--tightrope-no-shrink")
    if options.report:
        command.append(f"--tightrope-report={options.report}")
    if options.keyword:
        command += ["-k", options.keyword]
    command += gate.words(options)
    if options.seed is not None:
        if options.profile == "ci":
            raise ValueError("--seed has no effect under --profile=ci, which is derandomized")
        command.append(f"--hypothesis-seed={options.seed}")
    return _execute(command + options.extra)


def do_replay(options: argparse.Namespace) -> int:
    from tightrope.replay import read, targets

    if options.script:
        from tightrope.replay_script import do_script

        return do_script(options)
    specs, homes = targets(read(options.file, options.only))
    options.impl = options.impl or specs
    options.workers = options.workers or 0
    command = _pytest(options, ["--pyargs", *homes])
    command.append(f"--tightrope-replay={options.file}")
    if options.only:
        command.append(f"--tightrope-only={options.only}")
    return _execute(command + options.extra)


def _interpreted(options: argparse.Namespace) -> bool:
    return options.device == "cpu" or not (options.require_gpu or workers.visible_gpus())


def _pytest(options: argparse.Namespace, what: list[str]) -> list[str]:
    """The pytest command that the options of `run` and `replay` stand for."""
    from tightrope.options import dtype

    command = [
        sys.executable, "-m", "pytest", "-p", "tightrope.plugin", *what, "-q", "--tb=short", "-rN",
    ]  # fmt: skip
    profile = getattr(options, "profile", "dev")
    count = workers.workers() if options.workers is None else options.workers
    if count > 0:
        command += ["-n", str(count), f"--max-worker-restart={RESTARTS}"]
    seconds = patience(profile, getattr(options, "examples", None))
    command += [f"--timeout={seconds}", "--timeout-method=thread"]
    command += [f"--tightrope-impl={i}" for i in options.impl]
    command += [f"--tightrope-dtype={dtype(d)}" for d in options.dtype]
    if options.device:
        command.append(f"--tightrope-device={options.device}")
    if options.require_gpu:
        command.append("--tightrope-require-gpu")
    if options.record:
        command.append(f"--tightrope-record={options.record}")
    return command


def _execute(command: list[str]) -> NoReturn:
    print("$", shlex.join(["python", *command[1:]]), flush=True)
    environment = {**os.environ, "TIGHTROPE_BEGAN": str(time.time())}
    # pytest takes this process's place: signals reach it, so that Ctrl-C leaves a report behind
    os.execve(command[0], command, environment)


def do_list(options: argparse.Namespace) -> int:
    from tightrope.device import prepare
    from tightrope.listing import listing
    from tightrope.subjects import chosen, under_test

    prepare()
    listing(under_test(chosen(options.impl, ())))
    return 0


def do_doctor(options: argparse.Namespace) -> int:
    from tightrope.doctor import examine

    return examine()


def do_bench(options: argparse.Namespace) -> int:
    from tightrope.bench import bench

    picture = options.picture
    return bench(options.operation, options.json, options.sweep, options.only, picture)
