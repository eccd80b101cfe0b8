"""`python -m tightrope` in children of a process that has torch loaded: over a second saved a run.

A child is forked with torch in memory, and nothing of tightrope, Triton, pytest or Hypothesis; the
exec of pytest, which would drop torch again, is a call in the same process. As a script: the
process that forks, which reads a request a line and answers a pid, then its exit status.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from functools import cache

PURGED = ("tightrope", "pytest", "_pytest", "oracles", "impls", "properties")


@cache
def _server(owner):
    """One a process: owner is its id, so that a fork of this one starts its own."""
    return subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def _ask(server, request):
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    return json.loads(server.stdout.readline())


def tightrope(folder, words, env, timeout=300):
    """What `python -m tightrope WORDS` in `folder` did; TimeoutExpired after its end was forced."""
    server = _server(os.getpid())
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        files = [f"/proc/{os.getpid()}/fd/{f.fileno()}" for f in (out, err)]
        pid = _ask(server, {"folder": str(folder), "words": words, "env": env, "files": files})
        late = threading.Event()
        clock = threading.Timer(timeout, lambda: (late.set(), os.kill(pid, signal.SIGKILL)))
        clock.start()
        status = json.loads(server.stdout.readline())
        clock.cancel()
        out.seek(0), err.seek(0)
        done = subprocess.CompletedProcess(words, status, out.read(), err.read())
    if late.is_set():
        raise subprocess.TimeoutExpired(words, timeout, done.stdout, done.stderr)
    return done


def _serve():
    import torch  # noqa: F401 - what children are spared

    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            return request
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    return None


def _pytest(_, command, environment):
    """In place of os.execve."""
    os.environ.clear()
    os.environ.update(environment)
    for name in [n for n in sys.modules if n.partition(".")[0] in PURGED]:
        del sys.modules[name]
    sys.argv = command[2:]
    runpy.run_module("pytest", run_name="__main__", alter_sys=True)


def _become(request):
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["env"])
    for number, path in enumerate(request["files"], 1):
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.execve = _pytest
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [request["folder"], *filter(None, paths)]
    sys.argv = ["tightrope", *request["words"]]
    runpy.run_module("tightrope", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    wanted = _serve()
    if wanted is not None:
        _become(wanted)
