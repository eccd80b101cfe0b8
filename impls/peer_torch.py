"""PyTorch's `scaled_dot_product_attention` as peers of `attention`, one backend at a time.

It returns no lse and knows no softcap, sink or window; `is_causal` means q_offset = 0 (rows and
keys aligned at the top left). Other masks go in as `attn_mask`, made here, boolean, or in q's
dtype where there is a bias. Not all backends take one. What a backend refuses of shapes (widths of
q and v that differ, a last stride other than 1, unaligned rows) is padded or copied here: that
changes no score. On the CPU there are two backends, math and flash; MISSING says why not more.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad, scaled_dot_product_attention

from tightrope import Arithmetic, implements
from tightrope.adapt import on_gpu

BACKENDS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
ON_GPU = on_gpu()
MISSING: dict[str, str] = {} if ON_GPU else dict.fromkeys(
    ("efficient", "cudnn"), "torch has this backend on CUDA devices only"
)  # fmt: skip

# The vectorised exponential of the CPU's flash kernel (torch 2.13, ATen/cpu/vec). For float32 its
# source says 20 ulp. For 16-bit inputs it is a cubic (Malossi et al. 2015) that is off by up to
# 898 * 2^-23, also at 0, plus 32 * 2^-23 by the word it is assembled in and 22 by its argument's.
CPU_EXP_ULP = {"float32": 20.0, "float16": 960.0, "bfloat16": 960.0}


def forced(backend: str) -> AbstractContextManager[Any]:
    """Within it PyTorch takes this backend or refuses; for the process, so not in threads."""
    return sdpa_kernel([BACKENDS[backend]])


def sdpa(
    backend: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *,
    softmax_scale: float | None = None, is_causal: bool = False,
    attn_mask: torch.Tensor | None = None, enable_gqa: bool = False,
) -> torch.Tensor:  # fmt: skip
    """One call with one backend forced; shapes as in `attention`, for heads that match.

    Raises ValueError for a mask together with is_causal: some backends apply both, others refuse.
    RuntimeError is torch's, where the backend does not take the call.
    """
    if attn_mask is not None and is_causal:
        raise ValueError("attn_mask: expected None with is_causal=True, got a tensor")
    with forced(backend):
        return scaled_dot_product_attention(
            q, k, v, attn_mask=attn_mask, dropout_p=0.0, is_causal=is_causal, scale=softmax_scale,
            enable_gqa=enable_gqa,
        )  # fmt: skip


def mask(
    q: torch.Tensor, k: torch.Tensor, causal: bool, q_offset: int | torch.Tensor,
    window_size: tuple[int | None, int | None], bias: torch.Tensor | None,
) -> torch.Tensor | None:  # fmt: skip
    """What `attn_mask` says: boolean, or the bias with -inf; None where every key is seen.

    Broadcastable to (batch, num_heads, seqlen_q, seqlen_k). Raises TypeError for a bias of another
    dtype than q's: a conversion would round it.
    """
    if bias is not None and bias.dtype != q.dtype:
        raise TypeError(f"bias.dtype: expected {q.dtype} as q, got {bias.dtype}")
    left, right = window_size
    if causal:
        right = 0 if right is None else min(right, 0)
    if left is None and right is None:
        return bias
    offset = torch.as_tensor(q_offset, device=q.device).reshape(-1, 1, 1, 1)
    row = torch.arange(q.shape[2], device=q.device)[:, None] + offset
    key = torch.arange(k.shape[2], device=q.device)
    seen = torch.ones((), dtype=torch.bool, device=q.device)
    if left is not None:
        seen = seen & (key >= row - left)
    if right is not None:
        seen = seen & (key <= row + right)
    return seen if bias is None else torch.where(seen, bias, -torch.inf)


def _fitting(backend: str, x: torch.Tensor, width: int) -> torch.Tensor:
    """x as the backend takes it: the last axis padded with zeros, its stride 1, rows aligned."""
    if backend == "math":
        return x
    if x.shape[-1] < width:
        return pad(x, (0, width - x.shape[-1]))
    unit = 16 // x.element_size() if x.is_cuda else 1
    outer = [s for n, s in zip(x.shape[:-1], x.stride()[:-1], strict=True) if n > 1]
    fits = x.stride(-1) == 1 and not any(s % unit for s in outer)
    if x.is_cuda:
        fits = fits and all(outer) and x.data_ptr() % 16 == 0
    return x if fits else x.clone(memory_format=torch.contiguous_format)


def attention(
    backend: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *,
    softmax_scale: float | None = None, causal: bool = False, q_offset: int | torch.Tensor = 0,
    window_size: tuple[int | None, int | None] | None = None, bias: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """out (batch, num_heads, seqlen_q, head_dim_v) in q's dtype; arguments as the contract says.

    A row without a key gives 0. Raises TypeError for a bias of another dtype than q's.
    """
    batch, num_heads, seqlen_q, head_dim = q.shape
    head_dim_v, group = v.shape[-1], num_heads // k.shape[1]
    if 0 in (*q.shape, *k.shape):  # fused kernels refuse empty tensors; nothing is to be computed
        return q.new_zeros(batch, num_heads, seqlen_q, head_dim_v)
    plain = isinstance(q_offset, int) and q_offset == 0
    window = window_size or (None, None)
    by_flag = causal and plain and bias is None and window == (None, None)
    given = None if by_flag else mask(q, k, causal, q_offset, window, bias)
    if backend == "efficient":  # it knows no groups, and no mask that is broadcast along the keys
        k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
        if given is not None:
            shape = (batch, num_heads, seqlen_q, k.shape[2])
            given = given.expand(shape).clone(memory_format=torch.contiguous_format)
    width = -(-max(head_dim, head_dim_v) // 8) * 8
    q, k, v = (_fitting(backend, x, width) for x in (q, k, v))
    out = sdpa(
        backend, q, k, v, is_causal=by_flag, attn_mask=given,
        softmax_scale=head_dim**-0.5 if softmax_scale is None else softmax_scale,
        enable_gqa=k.shape[1] != num_heads,
    )  # fmt: skip
    return out[..., :head_dim_v]


def _promise(backend: str, case: Any, device: Any) -> Arithmetic:
    """What each backend's source, or a comparison of bits, shows; the rest is left as granted.

    math (2.13, CPU, bit for bit): q and k are scaled in float32 by the root of the scale, the
    weights are normalised and stay float32. flash, CUDA: FlashAttention-2 on m16n8k16 instructions.
    efficient (its kernel_forward.h): m16n8k8, which the step of 16 does not describe; float32 as
    three TF32 products.
    """
    if backend == "math":
        return Arithmetic(p="float32")
    if backend == "flash" and device.kind == "cpu":
        return Arithmetic(exp_ulp=CPU_EXP_ULP[case.dtype])
    if backend == "flash" and device.capability == (9, 0):
        return Arithmetic(dot="hopper_mma")
    if backend == "efficient" and case.dtype == "float32":
        return Arithmetic(dot_precision="tf32x3")
    return Arithmetic()


def _limits(backend: str) -> dict[str, Any]:
    """What can be said to a backend on this device; a NaN in a slot that none sees would spread."""
    said: dict[str, Any] = {"softcap": (None,), "sink": (False,), "hidden": ("finite",)}
    if not ON_GPU or backend == "math":
        return {**said, "bias_dtype": ("input",)}
    if backend == "efficient":  # of rows without a key it promises nothing
        return {**said, "bias_dtype": ("input",), "empty_rows": (False,)}
    said |= {"dtype": ("float16", "bfloat16"), "empty_rows": (False,)}
    said |= {"bias": ("none",), "window_left": (None,), "window_right": (None,)}
    if backend == "cudnn":
        said |= {"head_dim": range(1, 129), "head_dim_v": range(1, 129)}
        said |= {"seqlen_k": range(2, 1025)}  # it refuses one key
    return said


def _adapter(backend: str) -> Callable[..., torch.Tensor]:
    def adapter(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, softmax_scale: float | None = None,
        causal: bool = False, q_offset: int | torch.Tensor = 0,
        window_size: tuple[int | None, int | None] | None = None,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        return attention(
            backend, q, k, v, softmax_scale=softmax_scale, causal=causal, q_offset=q_offset,
            window_size=window_size, bias=bias,
        )  # fmt: skip

    adapter.__name__ = f"torch_{backend}"
    adapter.__doc__ = attention.__doc__
    return adapter


def _register(backend: str) -> None:
    """One implementation; two where there is only `is_causal`, and that for square scores."""
    kinds: dict[str, tuple[str, dict[str, Any]]] = {"": ("", {})}
    if ON_GPU and backend in ("flash", "cudnn"):
        kinds = {"": ("square", {}), "-rectangular": ("no_offset", {"causal": (False,)})}
    for suffix, (where, more) in kinds.items():
        implements(
            "attention", name=f"torch-{backend}{suffix}", returns=("out",),
            where=("out_dtype=input", where) if where else ("out_dtype=input",),
            arithmetic=None if backend == "cudnn" else partial(_promise, backend),
            **{**_limits(backend), **more},
        )(_adapter(backend))  # fmt: skip


for name in BACKENDS:
    if name not in MISSING:
        _register(name)
