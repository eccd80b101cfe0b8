"""Imported once by the process that ranks fork from: what takes seconds, and starts no CUDA."""

from __future__ import annotations

import os

import torch.distributed

if os.environ.get("TIGHTROPE_DEVICE") == "cpu":
    from tightrope.device import prepare

    prepare("cpu")

import triton

__all__ = ["torch", "triton"]
