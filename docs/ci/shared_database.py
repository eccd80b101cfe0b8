"""Hypothesis's examples shared by machines: what one of them found, all others try first.

Copy it beside your adapter, keep one of the three, and load it: tightrope run -- -p shared_database
The profile `ci` uses no database, so that it runs the same cases everywhere; dev and nightly do.
"""

import os
from pathlib import Path

from hypothesis import settings
from hypothesis.database import (
    DirectoryBasedExampleDatabase,
    ExampleDatabase,
    GitHubArtifactDatabase,
    MultiplexedDatabase,
    ReadOnlyDatabase,
)


def directory(path: str) -> ExampleDatabase:
    """A folder that all machines mount, or that a CI cache restores and saves."""
    return DirectoryBasedExampleDatabase(path)


def redis(host: str, port: int = 6379) -> ExampleDatabase:
    """A Redis server; needs `pip install hypothesis[redis]`."""
    from hypothesis.extra.redis import RedisExampleDatabase
    from redis import Redis

    return RedisExampleDatabase(Redis(host, port=port))


def artifact(owner: str, repository: str) -> ExampleDatabase:
    """What the nightly workflow uploaded, read only ($GITHUB_TOKEN); new finds stay here."""
    theirs = ReadOnlyDatabase(GitHubArtifactDatabase(owner, repository))
    return MultiplexedDatabase(DirectoryBasedExampleDatabase(Path(".hypothesis/examples")), theirs)


def chosen() -> ExampleDatabase:
    """The one that the environment names."""
    if "EXAMPLES_REDIS" in os.environ:
        host, _, port = os.environ["EXAMPLES_REDIS"].partition(":")
        return redis(host, int(port or 6379))
    if "EXAMPLES_REPOSITORY" in os.environ:
        return artifact(*os.environ["EXAMPLES_REPOSITORY"].split("/"))
    return directory(os.environ["EXAMPLES_FOLDER"])


settings.register_profile("shared", database=chosen())
settings.load_profile("shared")
