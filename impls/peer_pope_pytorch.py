"""PyPI's pope-pytorch as peers of `pope_attention` and `pope_attention_backward`.

There are two: its torch path, and on a GPU its Triton kernels. Read in release 0.2.1. What its
conventions are, and what is done about them here:

- one table of angles, position times frequency in float32, for q and k: q takes its last rows. So
  queries are the last tokens (`bottom_right`). Where their positions are not those of the last
  keys, keys that a mask hides are put behind them.
- delta is one a head of q, clamped to [-2 pi, 0] and added to the key's angle: one a kv head is
  repeated. Head h of q reads kv head h modulo num_kv_heads: so q, delta and out are reordered.
  With heads behind tokens, kv heads that are fewer are not repeated but their tokens are.
- the kernel's `causal` is aligned at the bottom right, the torch path's at the top left unless
  there is one query: there a mask says what `causal` means here.
- cos, sin, magnitudes and features have q's dtype in the kernel; softplus is log(1 + exp(x)), x
  from 20 on. The torch path takes float32 only: of 16-bit q and k it makes float32 features, which
  PyTorch's attention refuses beside a 16-bit v.

Gradients come from autograd, which runs its own forward pass and takes neither the given out nor
lse. Of its kernel for them: sigmoids have q's dtype too, gradients of points are float32; dk and dv
of each query head are stored, then added up, dq and, over keys, phases are added by atomics in
float32. Products of float32 are TF32, for which gradients have no stage: 16-bit types only. The
clamp gives a phase beyond it no gradient.

No lse is returned. v has the width of q. Without the package nothing is registered; MISSING says
why. The kernel is tuned anew for each length: in laws its own switch, one tile, is set.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from inspect import signature
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch.nn.functional import pad

from tightrope import Arithmetic, implements
from tightrope.adapt import on_gpu
from tightrope.polar import EXPONENT_AS_CODED
from tightrope.validate import refuse

MISSING: str | None = None
try:
    from PoPE_pytorch import PoPE, flash_attn_with_pope
    from PoPE_pytorch.attention import TRITON_AVAILABLE
except ImportError as error:
    MISSING = f"pope-pytorch: {error}"

ON_GPU = on_gpu()
KERNELS = "PoPE_pytorch.triton_pope_flash_attn"
TORCH_EXP_ULP = 20.0  # of the exponential in the CPU's flash attention for float32, by its source


ROUNDED = dict.fromkeys(("table", "magnitude", "features"), "input")
# Of a sigmoid rounded to q's dtype: relative, in 2^-24, and beside, where it is subnormal.
SIGMOID = {"float16": (2.0**13 + 13, 2.0**-25), "bfloat16": (2.0**16 + 13, 2.0**-134)}


def angles(inv_freq: torch.Tensor, delta: torch.Tensor, positions: torch.Tensor) -> Any:
    """What its module PoPE makes of positions: angles of tokens, and the clamped delta.

    A stand-in for the module: to make one copies from the host, which no CUDA graph records.
    """
    module = SimpleNamespace(inv_freqs=inv_freq, bias=delta, device=inv_freq.device)
    return PoPE.forward(module, positions.to(inv_freq.dtype))


def call(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, inv_freq: torch.Tensor,
    delta: torch.Tensor | None, positions: torch.Tensor, *, heads_first: bool = True,
    **options: Any,
) -> torch.Tensor:  # fmt: skip
    """One call as its users make it, its own order of heads; options: causal, fused, mask..

    heads_first: (batch, heads, seqlen, head_dim); else (batch, seqlen, heads, head_dim), which the
    kernel takes without a copy and which needs equal numbers of heads: of others it would repeat
    the tokens. delta: (heads of q, rotary_dim) or None. positions: of the keys.
    """
    if delta is None:
        delta = inv_freq.new_zeros(q.shape[1 if heads_first else 2], inv_freq.shape[0])
    turning = angles(inv_freq, delta, positions)
    return flash_attn_with_pope(
        q, k, v, pos_emb=turning, head_dimension_at_first=heads_first, **options
    )


def attention(
    fused: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, inv_freq: torch.Tensor,
    delta: torch.Tensor | None, q_positions: torch.Tensor, k_positions: torch.Tensor, *,
    softmax_scale: float | None = None, causal: bool = False, q_offset: int = 0,
) -> torch.Tensor:  # fmt: skip
    """out (batch, num_heads, seqlen_q, head_dim) in q's dtype; arguments as the contract says.

    Raises ValueError for a q_offset other than seqlen_k - seqlen_q, or a negative one.
    """
    num_heads, seqlen_q, num_kv_heads, seqlen_k = (*q.shape[1:3], *k.shape[1:3])
    if q_offset != seqlen_k - seqlen_q or q_offset < 0:
        refuse("q_offset", "seqlen_k - seqlen_q >= 0", q_offset)
    if 0 in (*q.shape, *k.shape):  # nothing is to be computed
        return torch.zeros_like(q)
    group = num_heads // num_kv_heads
    order = torch.arange(num_heads, device=q.device).view(num_kv_heads, group).T.flatten()
    if delta is not None:
        delta = delta[order] if delta.shape[0] == num_heads else delta.repeat(group, 1)
    seen = torch.ones(seqlen_q, seqlen_k, dtype=torch.bool, device=q.device)
    seen = seen.tril(q_offset) if causal else seen
    if torch.equal(q_positions, k_positions[..., q_offset:]):
        flag = causal and (fused or seqlen_q == 1)
        mask = seen if causal and not flag else None
    else:  # the queries' positions follow the keys', as those of keys that no query sees
        mask, flag = pad(seen, (0, seqlen_q)), False
        k, v = (pad(x, (0, 0, 0, seqlen_q)) for x in (k, v))
        k_positions = torch.cat([k_positions, q_positions], -1)
    out = call(
        q[:, order], k, v, inv_freq, delta, k_positions, causal=flag, fused=fused,
        softmax_scale=softmax_scale, mask=mask,
    )  # fmt: skip
    return out[:, order.argsort()]


def gradients(
    fused: bool, dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
    out: torch.Tensor, lse: torch.Tensor, inv_freq: torch.Tensor, delta: torch.Tensor | None,
    q_positions: torch.Tensor, k_positions: torch.Tensor, *, softmax_scale: float | None = None,
    causal: bool = False, q_offset: int = 0,
) -> tuple[torch.Tensor | None, ...]:  # fmt: skip
    """dq, dk, dv and ddelta, None without delta; arguments as the contract says.

    Raises as `attention`.
    """
    wanted = [x.detach().clone().requires_grad_() for x in (q, k, v, delta) if x is not None]
    phase = None if delta is None else wanted[3]
    with torch.enable_grad():
        found = attention(
            fused, wanted[0], wanted[1], wanted[2], inv_freq, phase, q_positions, k_positions,
            softmax_scale=softmax_scale, causal=causal, q_offset=q_offset,
        )  # fmt: skip
    if found.requires_grad:
        grads = torch.autograd.grad(found, wanted, dout)
    else:  # nothing was to be computed
        grads = tuple(torch.zeros_like(x) for x in wanted)
    return grads if delta is not None else (*grads, None)


def _adapter(run: Callable[..., Any], name: str, fused: bool) -> Callable[..., Any]:
    """run(fused, ..) without its first argument; its kernels with one tile."""

    def adapter(*tensors: Any, **options: Any) -> Any:
        with patch(f"{KERNELS}._NO_AUTOTUNE", True) if fused else nullcontext():
            return run(fused, *tensors, **options)

    adapter.__signature__ = signature(partial(run, fused))  # type: ignore[attr-defined]
    adapter.__name__, adapter.__doc__ = name, run.__doc__
    return adapter


def _torch_promise(case: Any, device: Any) -> Arithmetic:
    """PyTorch chooses its attention: math or flash on the CPU, there also efficient on a GPU."""
    if device.kind == "cpu":
        return Arithmetic(exp_ulp=TORCH_EXP_ULP)
    return Arithmetic(dot_precision="tf32x3")


def _fused_promise(case: Any, device: Any) -> Arithmetic:
    """Magnitudes, cos and sin in q's dtype; float32 products as Triton's `tl.dot` has them."""
    return Arithmetic(**ROUNDED, dot_precision="tf32")


def _torch_gradients_promise(case: Any, device: Any) -> Arithmetic:
    """As in the forward pass; gradients have no stage for a GPU's three TF32 products."""
    exponential = {"exp_ulp": TORCH_EXP_ULP} if device.kind == "cpu" else {}
    return Arithmetic(**exponential, point_gradients="float32")


def _fused_gradients_promise(case: Any, device: Any) -> Arithmetic:
    ulp, error = SIGMOID[case.dtype]
    return Arithmetic(
        **ROUNDED, sigmoid_ulp=ulp, sigmoid_error=error, point_gradients="float32",
        phase_sums="keys",
    )  # fmt: skip


LIMITS: dict[str, Any] = {
    "softcap": (None,),
    "sink": (False,),
    "window_left": (None,),
    "window_right": (None,),
    "q_offset": range((1 << 20) + 1),
    "empty_rows": (False,),
    "inv_freq_dtype": ("float32",),
    "delta_data": ("clamped", "zero"),
    "exponent_sign": (EXPONENT_AS_CODED,),  # its own; of others its angles in float32 say little
    "seqlen_k": range(3, 1 << 21),  # of one key or two out says little, and there is no lse
}
# Three roundings to bfloat16 a feature: where scores are large, their worst case excludes nothing.
MODEST = {"data": ("normal", "times_3", "outliers", "delicate", "thresholds")}


PEERS: dict[str, tuple[bool, dict[str, Any]]] = {
    "pope-pytorch-torch": (False, {"dtype": ("float32",)}),
    "pope-pytorch": (True, {"dtype": ("float16", "float32")}),
    "pope-pytorch-bf16": (True, {"dtype": ("bfloat16",), **MODEST}),
}


def _register(name: str, fused: bool, limits: dict[str, Any]) -> None:
    where, short = ("out_dtype=input", "bottom_right", "same_head_dim"), name.replace("-", "_")
    implements(
        "pope_attention", name=name, returns=("out",), where=where, **LIMITS, **limits,
        arithmetic=_fused_promise if fused else _torch_promise,
    )(_adapter(attention, short, fused))  # fmt: skip
    if fused:
        limits = {**limits, "dtype": tuple(x for x in limits["dtype"] if x != "float32")}
    differentiated = {n: x for n, x in LIMITS.items() if n != "sink"}
    implements(
        "pope_attention_backward", name=name, where=where, **differentiated, **limits,
        arithmetic=_fused_gradients_promise if fused else _torch_gradients_promise,
    )(_adapter(gradients, f"{short}_backward", fused))  # fmt: skip


if MISSING is None:
    for name, (fused, limits) in PEERS.items():
        if not fused or (ON_GPU and TRITON_AVAILABLE):
            _register(name, fused, limits)
