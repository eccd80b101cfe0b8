"""The plugin for a bare checkout, and the interpreter where there is no GPU.

Installed, the entry point of the same name has loaded the plugin already.
"""

import os

from tightrope.workers import visible_gpus

pytest_plugins = ["tightrope.plugin"]

if not visible_gpus():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before any test module imports Triton
