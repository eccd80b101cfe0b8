"""Kernels under autograd: gradients of the right tensors, by the kernels that are checked."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attention_calls import drawn, normal, same

from tightrope.device import current

HOME = current().kind

from tightrope import autograd  # noqa: E402  (Triton after `current`)
from tightrope.impls.attention import attention  # noqa: E402
from tightrope.impls.attention_backward import attention_backward  # noqa: E402
from tightrope.impls.rope_backward import rope_backward  # noqa: E402


def rotation(dtype: str = "float64", table: str = "float64") -> tuple[Any, Any]:
    """q and k that want gradients, of partly rotated heads, and the table with its rows."""
    q, k = (normal(2, 1, 3, dtype=dtype, seed=seed).requires_grad_() for seed in (3, 4))
    cos, sin = (normal(5, 1, dtype=table, seed=seed) for seed in (1, 2))
    return (q, k), (cos, sin, torch.tensor([4, 1], device=HOME))


@pytest.mark.parametrize("interleaved", [False, True])
def test_the_rotation_s_first_and_second_gradients_are_finite_differences(
    interleaved: bool,
) -> None:
    features, table = rotation()

    def turned(q: torch.Tensor, k: torch.Tensor) -> Any:
        return autograd.rope(q, k, *table, interleaved=interleaved)

    assert torch.autograd.gradcheck(turned, features)
    assert torch.autograd.gradgradcheck(turned, features, fast_mode=True)


def test_a_wrong_sign_fails_the_same_check() -> None:
    (q, k), table = rotation()

    class Forward(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor) -> Any:
            return autograd.rope(q, k, *table, interleaved=False)

        @staticmethod
        def backward(ctx: Any, dq: torch.Tensor, dk: torch.Tensor) -> Any:
            return autograd.rope(dq, dk, *table, interleaved=False)

    with pytest.raises(RuntimeError, match="Jacobian mismatch"):
        torch.autograd.gradcheck(Forward.apply, (q, k))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_rotation_s_gradients_are_the_kernel_s(dtype: str) -> None:
    (q, k), table = rotation(dtype, "float32")
    dq, dk = (normal(*x.shape, dtype=dtype, seed=7) for x in (q, k))
    torch.autograd.backward(autograd.rope(q, k, *table, interleaved=True), (dq, dk))
    assert same((q.grad, k.grad), rope_backward(dq, dk, *table, interleaved=True))


def test_a_result_left_unused_adds_nothing() -> None:
    (q, k), table = rotation()
    autograd.rope(q, k, *table, interleaved=False)[0].sum().backward()
    assert q.grad.any()
    assert not k.grad.any()


@pytest.mark.parametrize("name", ["cos", "sin"])
def test_a_table_that_wants_a_gradient_is_refused(name: str) -> None:
    (q, k), table = rotation()
    given = dict(zip(("cos", "sin", "positions"), table, strict=True))
    given[name] = given[name].requires_grad_()
    with pytest.raises(ValueError, match=rf"^{name}.requires_grad: expected False"):
        autograd.rope(q, k, **given, interleaved=False)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"causal": True, "q_offset": 17, "softmax_scale": 0.3},
    {"window_size": (5, 2), "softcap": 4.0},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_attention_s_gradients_are_the_kernel_s(options: dict[str, Any]) -> None:
    tensors = [x.requires_grad_() for x in drawn(head_dim_v=24)]
    out, lse = autograd.attention(*tensors, **options)
    assert not lse.requires_grad
    dout = normal(*out.shape, seed=5)
    out.backward(dout)
    plain = [x.detach() for x in tensors]
    assert same((out, lse), attention(*plain, **options))
    state = (out.detach(), lse)
    assert same([x.grad for x in tensors], attention_backward(dout, *plain, *state, **options))


def test_offsets_of_sequences_reach_the_gradient() -> None:
    q, k, v = (x.requires_grad_() for x in drawn(batch=2))
    offsets = torch.tensor([17, -50], dtype=torch.int32, device=HOME)
    autograd.attention(q, k, v, causal=True, q_offset=offsets)[0].sum().backward()
    assert k.grad[0].any()
    assert not k.grad[1].any()  # sees nothing


def test_second_gradients_of_attention_are_refused() -> None:
    q, k, v = (x.requires_grad_() for x in drawn(dtype="float32"))
    out, _ = autograd.attention(q, k, v)
    with pytest.raises(ValueError, match=r"^create_graph: expected False"):
        torch.autograd.grad(out.sum(), q, create_graph=True)


def test_rotation_and_attention_train_together() -> None:
    """A step of gradient descent on both lowers a loss that depends on q, k and v."""
    gen = torch.Generator().manual_seed(0)
    q, k, v, target = (torch.randn(9, 2, 16, generator=gen).to(HOME) for _ in range(4))
    angles = torch.arange(9.0, device=HOME)[:, None] * 0.3 ** torch.arange(8.0, device=HOME)
    table = (angles.cos(), angles.sin(), torch.arange(9, device=HOME))
    tensors = [x.requires_grad_() for x in (q, k, v)]

    def loss(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        turned = autograd.rope(q, k, *table, interleaved=False)
        heads = [x.transpose(0, 1)[None] for x in (*turned, v)]
        return (
            (autograd.attention(*heads, causal=True)[0][0].transpose(0, 1) - target).square().sum()
        )

    before = loss(*tensors)
    steps = torch.autograd.grad(before, tensors)
    for i, step in enumerate(steps):
        moved = [x.detach() - 0.01 * step if n == i else x.detach() for n, x in enumerate(tensors)]
        assert loss(*moved) < before
