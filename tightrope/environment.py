"""What this run stands on: versions and machine, by what they are."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from tightrope import __version__

PACKAGES = (
    "torch", "triton", "numpy", "scipy", "hypothesis", "pytest", "pytest-xdist",
    "pytest-timeout", "mpmath", "python-flint", "ml_dtypes", "rich",
)  # fmt: skip


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def environment() -> dict[str, Any]:
    """Versions, platform, and (if torch is loaded here) the device and its driver. JSON-able."""
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "packages": {"tightrope": __version__, **{p: installed(p) for p in PACKAGES}},
    }
    if "torch" in sys.modules:
        import torch

        if torch.cuda.is_available():
            major, minor = torch.cuda.get_device_capability()
            found["device"] = {
                "name": torch.cuda.get_device_name(), "count": torch.cuda.device_count(),
                "capability": f"{major}.{minor}", "cuda": torch.version.cuda, "driver": driver(),
            }  # fmt: skip
    return found


def driver() -> str | None:
    """The NVIDIA driver's version, None without one."""
    try:
        with open("/proc/driver/nvidia/version") as file:
            words = file.readline().split()
        return next((w for w in words if w[0].isdigit() and "." in w), None)
    except OSError:
        return None


INTERPRETED = (
    "run on Triton's interpreter: indexing, masks, strides and roundings are checked; races, "
    "approximate functions, shared memory and what the compiler does are not (`tightrope doctor`)"
)
