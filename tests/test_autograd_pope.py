"""PoPE attention under autograd: gradients by the kernels, near those of the formula in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attention_calls import HOME, normal, same, seen
from pope_calls import points, polar
from pope_replays import light, shifted
from test_attention_backward_kernels import INF, MASKS
from test_pope_backward_kernels import FULL, NAMES, Given, given

from tightrope import autograd
from tightrope.impls.pope_attention import pope_attention
from tightrope.impls.pope_attention_backward import pope_attention_backward

SHAPES: dict[str, Given] = {
    "no phase": {},
    "a phase a kv head": {"delta": 2, "rotary_dim": 24, "head_dim": 24},
    "a phase a head": FULL,
    "no groups": {"delta": 4, "num_kv_heads": 4, "inv_freq": "float64", "start": -9},
}


def features(x: Given, leaves: Given) -> list[torch.Tensor]:
    """Points of q, turned back by delta, and of k, and plain features beside, in float64.

    Their values are those that the kernels round to, their derivatives those of the formula.
    """
    found = []
    width, heads = x["inv_freq"].shape[0], x["q"].shape[1]
    form = "precise" if x["q"].dtype == torch.float32 else "short"
    for name, replayed in zip("qk", light(x, form), strict=True):
        turned = points(leaves[name], x, name)
        if name == "q" and x["delta"] is not None:
            back = -shifted(leaves["delta"], heads)
            turned = turned * torch.complex(back.cos(), back.sin())
        spare = (replayed.shape[-1] - leaves[name].shape[-1] - width) // 2
        pair = [torch.nn.functional.pad(t, (0, spare)) for t in (turned.real, turned.imag)]
        exact = torch.cat([*pair, leaves[name][..., width:]], -1)
        found.append(exact + (replayed.double() - exact).detach())
    return found


def right(x: Given, cap: float | None, mask: torch.Tensor) -> tuple[Any, list[torch.Tensor]]:
    """Gradients in float64 of sum P (dout . v - D), lse and D held, and what rounding may change.

    With r = 2^-11: dS, of size P (|dout| |v| + |dout| |out|) = P most, or P, is rounded by r, a
    feature's own cos and sin by 2^-12 and as much again for the turn, their product with a sum by
    twice that at most, the result by r; the rest is float32: below 5 r together. |x| + |y| of a
    point is at most sqrt(2) times its magnitude.
    """
    r, group, scale = 2.0**-11, x["q"].shape[1] // x["k"].shape[1], x["q"].shape[3] ** -0.5
    leaves = {n: x[n].double().requires_grad_() for n in NAMES if x[n] is not None}
    rows, keys = features(x, leaves)
    s = rows @ keys.repeat_interleave(group, 1).mT * scale
    t = s if cap is None else cap * torch.tanh(s / cap)
    held = torch.where(x["lse"] == -INF, 0, x["lse"]).double()[..., None]
    p = torch.where(mask.to(HOME), (t - held).exp(), 0)
    dout, out = x["dout"].double(), x["out"].double()
    values = leaves["v"].repeat_interleave(group, 1)
    total = (p * (dout @ values.mT - (dout * out).sum(-1, keepdim=True))).sum()
    grads = torch.autograd.grad(total, list(leaves.values()))

    sides, polar_dim = [], x["inv_freq"].shape[0]
    for side in (x["q"].double(), x["k"].double().repeat_interleave(group, 1)):
        mu = torch.nn.functional.softplus(side[..., :polar_dim]) * 2**0.5
        sides.append(torch.cat([mu, side[..., polar_dim:].abs()], -1))
    p, loud = p.detach(), dout.abs()
    most = p * (loud @ values.detach().abs().mT + (loud * out.abs()).sum(-1, keepdim=True))
    of_rows, of_keys = scale * most @ sides[1], scale * most.mT @ sides[0]
    of_phases = (of_rows * sides[0])[..., :polar_dim].sum((0, 2))
    off = [of_rows, *(t.unflatten(1, (-1, group)).sum(2) for t in (of_keys, p.mT @ loud))]
    if x["delta"] is not None:
        off.append(of_phases.unflatten(0, (x["delta"].shape[0], -1)).sum(1))
    return grads, [5 * r * t for t in off]


@pytest.mark.parametrize(
    ("shape", "mask", "dtype"),
    [
        *zip(SHAPES, MASKS[1:5], ["float16"] * 4, strict=True),
        *zip(SHAPES, [*MASKS[3:5], *MASKS[1:3]], ["float32"] * 4, strict=True),
    ],
    ids=str,
)
def test_autograd_of_the_formula_is_near(shape: str, mask: Any, dtype: str) -> None:
    m, offset, options, sides = mask
    cap = 3.0 if shape == "a phase a head" else None
    options = {"softcap": cap, "q_offset": offset, **options}
    x = given(options, seqlen_q=m, dtype=dtype, **SHAPES[shape])
    expected, off = right(x, cap, seen(m, 37, offset, *sides))
    found = [grad for grad in pope_attention_backward(**x, **options) if grad is not None]
    for got, grad, size in zip(found, expected, off, strict=True):
        assert got.shape == grad.shape
        assert ((got.double() - grad).abs() <= size).all()
        assert not (grad.abs() <= size).all()  # nothing at all would not pass


def test_the_gradient_of_a_phase_has_a_sign_and_sums() -> None:
    """What the test above would not take: the other sign, or one sequence's part."""
    x = given(delta=2)
    grads, off = right(x, None, torch.ones(20, 37, dtype=torch.bool))
    one = {n: t if n in ("inv_freq", "delta") or t.ndim < 2 else t[:1] for n, t in x.items()}
    for wrong in (-grads[3], pope_attention_backward(**one)[3]):
        assert not ((wrong - grads[3]).abs() <= off[3]).all()


OPTIONS: list[Given] = [
    {},
    {"causal": True, "q_offset": 17, "softmax_scale": 0.3},
    {"window_size": (5, 2), "softcap": 4.0},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_gradients_are_the_kernel_s(options: Given) -> None:
    tensors = polar(delta=4, head_dim=24, head_dim_v=40)
    wanted = {n: x.clone().requires_grad_() if n in NAMES else x for n, x in tensors.items()}
    out, lse = autograd.pope_attention(**wanted, **options)
    assert not lse.requires_grad
    dout = normal(*out.shape, seed=5)
    out.backward(dout)
    assert same((out, lse), pope_attention(**tensors, **options))
    state = {"dout": dout, "out": out.detach(), "lse": lse}
    expected = pope_attention_backward(**state, **tensors, **options)
    assert same([wanted[n].grad for n in NAMES], expected)


def test_without_a_phase_features_alone_are_trained() -> None:
    tensors = polar()
    tensors["q"].requires_grad_()
    autograd.pope_attention(**tensors, causal=True)[0].sum().backward()
    assert tensors["q"].grad.any()
    assert tensors["k"].grad is None


@pytest.mark.parametrize("name", ["inv_freq", "q_positions"])
def test_angles_that_want_a_gradient_are_refused(name: str) -> None:
    tensors = polar(delta=2)
    tensors[name] = tensors[name].double().requires_grad_()
    with pytest.raises(ValueError, match=rf"^{name}.requires_grad: expected False"):
        autograd.pope_attention(**tensors)


def test_second_gradients_are_refused() -> None:
    tensors = polar(delta=2)
    tensors["delta"].requires_grad_()
    out, _ = autograd.pope_attention(**tensors)
    with pytest.raises(ValueError, match=r"^create_graph: expected False"):
        torch.autograd.grad(out.sum(), tensors["delta"], create_graph=True)


def test_phases_and_features_train_together() -> None:
    """A step of gradient descent on each lowers a loss that depends on all of them."""
    tensors = polar(delta=2, seqlen_k=20, dtype="float32")
    target = normal(*tensors["q"].shape, dtype="float32", seed=7)

    def loss(**moved: torch.Tensor) -> torch.Tensor:
        given = {**tensors, **moved}
        return (autograd.pope_attention(**given, causal=True)[0] - target).square().sum()

    leaves = {n: tensors[n].clone().requires_grad_() for n in NAMES}
    before = loss(**leaves)
    for (name, x), step in zip(
        leaves.items(), torch.autograd.grad(before, list(leaves.values())), strict=True
    ):
        assert loss(**{name: x.detach() - 0.001 * step}) < before
