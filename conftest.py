"""A bare checkout has no entry point; where tightrope is installed, this names the same plugin."""

from __future__ import annotations

pytest_plugins = ["tightrope.plugin"]
