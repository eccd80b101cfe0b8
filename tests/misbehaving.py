"""Kernels that endanger the process they run in, as an adapter for whole runs."""

ADAPTER = """
import ctypes
import os

import torch

from tightrope import implements

KEPT = []


def rotated(q, k, cos, sin, positions):
    c, s = cos[positions].float()[:, None], sin[positions].float()[:, None]

    def turn(x):
        half = c.shape[-1]
        y, a, b = x.clone(), x[..., :half], x[..., half : 2 * half]
        y[..., :half], y[..., half : 2 * half] = a * c - b * s, b * c + a * s
        return y

    return turn(q), turn(k)


def kernel(before):
    @implements(
        "rope", name=before.__name__, dtype=("float32",), interleaved=(False,), inplace=(False,),
        where=("out_dtype=input", "contiguous"), tokens=range(1, 17),
    )
    def adapter(*tensors, interleaved):
        before()
        return rotated(*tensors)


@kernel
def right():
    pass


@kernel
def segfaults():
    ctypes.string_at(0)


@kernel
def leaks():
    KEPT.append(torch.ones(1 << 27))


@kernel
def asks():
    torch.zeros(1 << 36, dtype=torch.uint8)


@kernel
def exits():
    raise SystemExit(0)


@kernel
def prints():
    print("hello")
    os.write(1, bytes(range(256)))


@kernel
def interrupts():
    raise KeyboardInterrupt


@kernel
def forks():
    os.fork()  # and the child runs on


@kernel
def says_what_utf_8_cannot():
    raise RuntimeError("\\udcff")
"""
