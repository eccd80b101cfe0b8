"""A failure that one machine found is the first case of the next: Hypothesis's shared databases."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from contextlib import contextmanager

import pytest
from test_plugin import ROOT, adapter, run

RARE = "assert not (q.shape[1] >= 2 and q.shape[0] >= 2), 'rare'"  # not what comes first
WORDS = ("-k", "matches_oracle", "--no-shrink")


@contextmanager
def redis_server(folder):
    """A server of the system's packages on a free port, ended and waited for."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    server = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
    try:
        until = time.time() + 20
        while time.time() < until:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield f"127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(20)


def found_here_and_there(tmp_path, **database):
    """Two machines with their own folders: the first searches, the second tries one example."""
    for name in ("here", "there", "alone"):
        folder = tmp_path / name
        folder.mkdir()
        adapter(folder, extra=RARE)
        shutil.copy(ROOT / "docs/ci/shared_database.py", folder)
    more = ("--", "-p", "shared_database")
    first = run(tmp_path / "here", *WORDS, "--examples=25", *more, **database)
    assert first.returncode == 1, first.stdout + first.stderr
    second = run(tmp_path / "there", *WORDS, "--examples=1", *more, **database)
    assert second.returncode == 1, second.stdout + second.stderr
    assert re.search(r"AssertionError: rare", second.stdout)


def test_a_folder(tmp_path):
    found_here_and_there(tmp_path, EXAMPLES_FOLDER=str(tmp_path / "examples"))
    assert list((tmp_path / "examples").rglob("*"))
    alone = run(tmp_path / "alone", *WORDS, "--examples=1")
    assert alone.returncode == 0, alone.stdout  # it is the database that knew


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="no redis-server is installed")
def test_a_redis_server(tmp_path):
    with redis_server(tmp_path) as address:
        found_here_and_there(tmp_path, EXAMPLES_REDIS=address)
    assert not os.path.exists(tmp_path / "dump.rdb")
