"""Gradients of PyTorch's `scaled_dot_product_attention` as peers of `attention_backward`.

One backend at a time, through autograd: it runs its own forward pass, and takes neither the given
out nor lse. Asked are square calls, causal by `is_causal`, without what it has no words for:
softcap and windows. Widths that differ are padded with zeros, which changes no logit and no sum.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad, scaled_dot_product_attention

from tightrope import Arithmetic, implements

ON_CPU = ("math", "flash")
BACKENDS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
# Of the CPU's vectorised exponentials (torch 2.13): as its forward pass, measured there.
CPU_EXP_ULP = {"float32": 20.0, "float16": 960.0, "bfloat16": 960.0}
ON_GPU = os.environ.get("TIGHTROPE_DEVICE") != "cpu" and torch.cuda.is_available()

Gradients = tuple[torch.Tensor, ...]


def gradients(
    backend: str, dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
    softmax_scale: float | None, causal: bool,
) -> Gradients:  # fmt: skip
    """dq, dk, dv with one backend forced; shapes as in `attention_backward`, rows as many as keys.

    RuntimeError is torch's, where the backend does not take the call.
    """
    leaves = [x.detach().clone(memory_format=torch.contiguous_format) for x in (q, k, v)]
    if not q.numel() or not k.numel():  # fused kernels refuse empty tensors: there is no key
        return tuple(torch.zeros_like(x) for x in leaves)
    width = -(-max(q.shape[3], v.shape[3]) // 8) * 8
    with torch.enable_grad(), sdpa_kernel([BACKENDS[backend]]):
        wanted = [x.requires_grad_() for x in leaves]
        query, key, value = (pad(x, (0, width - x.shape[3])) for x in wanted)
        if backend == "efficient":  # it knows no groups
            group = q.shape[1] // k.shape[1]
            key, value = (x.repeat_interleave(group, 1) for x in (key, value))
        out = scaled_dot_product_attention(
            query, key, value, is_causal=causal, enable_gqa=key.shape[1] != q.shape[1],
            scale=q.shape[3] ** -0.5 if softmax_scale is None else softmax_scale,
        )  # fmt: skip
        return torch.autograd.grad(out[..., : v.shape[3]], wanted, dout)


def _adapter(backend: str) -> Callable[..., Gradients]:
    def adapter(
        dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
        lse: torch.Tensor, *, softmax_scale: float | None = None, causal: bool = False,
    ) -> Gradients:  # fmt: skip
        return gradients(backend, dout, q, k, v, softmax_scale, causal)

    adapter.__name__ = f"torch_{backend}_backward"
    adapter.__doc__ = gradients.__doc__
    return adapter


def _register(backend: str) -> None:
    fused = ON_GPU and backend != "math"
    limits: dict[str, Any] = {
        "softcap": (None,), "window_left": (None,), "window_right": (None,),
        "offsets": ("int",), "hidden": ("finite",), "empty_rows": (False,),
    }  # fmt: skip
    if fused and backend in ("flash", "cudnn"):
        limits |= {"dtype": ("float16", "bfloat16")}
    if fused and backend == "cudnn":
        limits |= {"head_dim": range(1, 129), "head_dim_v": range(1, 129)}
        limits |= {"seqlen_k": range(2, 1025)}  # it refuses one key

    def promise(case: Any, device: Any) -> Arithmetic:
        on_cpu = backend == "flash" and device.kind == "cpu"
        return Arithmetic(exp_ulp=CPU_EXP_ULP[case.dtype]) if on_cpu else Arithmetic()

    implements(
        "attention_backward", name=f"torch-{backend}", where=("out_dtype=input", "square"),
        arithmetic=promise, **limits,
    )(_adapter(backend))  # fmt: skip


for name in BACKENDS:
    if ON_GPU or name in ON_CPU:
        _register(name)
