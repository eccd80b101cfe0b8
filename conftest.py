"""The plugin for a bare checkout, and the interpreter where kernels do not run on a GPU.

Installed, the entry point of the same name has loaded the plugin already.
"""

import os

from tightrope.workers import visible_gpus

pytest_plugins = ["tightrope.plugin"]

if visible_gpus() and os.environ.get("TIGHTROPE_DEVICE") != "cpu":
    # A process interprets kernels or compiles them; TIGHTROPE_DEVICE=cpu is the way to these here.
    collect_ignore_glob = ["tests/test_interpreter_*.py"]
else:
    os.environ["TRITON_INTERPRET"] = "1"  # before any test module imports Triton
