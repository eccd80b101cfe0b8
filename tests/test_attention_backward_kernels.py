"""The bundled gradients of attention where equality is exact: bytes against bytes; bad input.

How far they may be from the truth is for the laws and budgets; one test here compares with what
autograd makes of the plain formula in float64, so that the others do not compare wrong with wrong.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from attention_calls import drawn, normal, same, seen

from tightrope.device import current

HOME = current().kind

from tightrope import attention_backward_call, attention_tiles  # noqa: E402
from tightrope.attention_backward_tiles import Config, Tile, config  # noqa: E402
from tightrope.impls.attention import attention  # noqa: E402
from tightrope.impls.attention_backward import attention_backward  # noqa: E402

INF, NAN = float("inf"), float("nan")
WORDING = re.compile(r"^[^:]+: expected .+, got .+$", re.DOTALL)
TILE = Tile(16, 16, 4, 1)
Given = dict[str, Any]
MASKS: list[tuple[int, int, Given, tuple[int | None, int | None]]] = [
    # seqlen_q, q_offset, options, (left, right) that they mean
    (37, 0, {"causal": True}, (None, 0)),
    (20, 17, {"causal": True}, (None, 0)),
    (50, -13, {"causal": True}, (None, 0)),
    (37, 0, {"window_size": (3, 18)}, (3, 18)),
    (17, 60, {"window_size": (40, 2), "causal": True}, (40, 0)),
    (20, 0, {}, (None, None)),
]


def given(options: Given | None = None, **sizes: Any) -> Given:
    """dout, and q, k, v with what `attention` makes of them."""
    q, k, v = drawn(**sizes)
    out, lse = attention(q, k, v, **(options or {}))
    dout = normal(*out.shape, dtype=str(q.dtype).removeprefix("torch."), seed=3)
    return {"dout": dout, "q": q, "k": k, "v": v, "out": out, "lse": lse}


def plain(x: Given, scale: float, cap: float | None, mask: torch.Tensor) -> list[torch.Tensor]:
    """Gradients of sum P (dout . v - D), lse and D held, by autograd in float64, and of the same
    with every product, sum and slope taken by its size: what relative errors multiply.
    """
    q, k, v = (x[n].double().cpu().requires_grad_() for n in "qkv")
    dout, out, lse = (x[n].double().cpu() for n in ("dout", "out", "lse"))
    keys, values = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
    s = q @ keys.mT * scale
    t = s if cap is None else cap * torch.tanh(s / cap)
    p = torch.where(mask, (t - torch.where(lse == -INF, 0, lse)[..., None]).exp(), 0)
    d = (dout * out).sum(-1, keepdim=True)
    found = torch.autograd.grad((p * (dout @ values.mT - d)).sum(), (q, k, v))
    sizes = p.detach() * (dout.abs() @ values.abs().mT + (dout * out).abs().sum(-1, keepdim=True))
    group = (k.shape[0], k.shape[1], -1, *k.shape[2:3])
    per_key = sizes.mT.reshape(*group[:2], q.shape[1] // k.shape[1], k.shape[2], -1)
    weights = p.detach().mT.reshape_as(per_key)

    def summed(by: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return (by @ rows.abs().reshape(*by.shape[:3], rows.shape[2], -1)).sum(2)

    bounds = [scale * (sizes @ keys.abs()), scale * summed(per_key, q), summed(weights, dout)]
    return [*found, *(b.detach() for b in bounds)]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("cap", [None, 3.0])
@pytest.mark.parametrize("mask", MASKS[1:4], ids=str)
def test_autograd_in_float64_is_near(mask: Any, cap: float | None, dtype: str) -> None:
    """P, dS and the output are rounded to dtype; float32 work is granted 2^-16 of the sizes."""
    m, offset, options, sides = mask
    options = {"softmax_scale": 0.3, "softcap": cap, "q_offset": offset, **options}
    x = given(options, seqlen_q=m, dtype=dtype, head_dim=24, head_dim_v=40)
    found = plain(x, 0.3, cap, seen(m, 37, offset, *sides))
    grain = torch.finfo(getattr(torch, dtype)).eps + 2.0**-16
    for got, expected, size in zip(
        attention_backward(**x, **options), found[:3], found[3:], strict=True
    ):
        assert ((got.double().cpu() - expected).abs() <= grain * size).all()


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_a_row_and_a_key_do_not_feel_their_tiles(mask: Any) -> None:
    m, offset, options, _ = mask
    options = {**options, "q_offset": offset}
    x = given(options, seqlen_q=m)
    usual = attention_backward(**x, **options)
    wide = Config(Tile(64, 16, 4, 1), Tile(32, 16, 4, 1))
    assert same(attention_backward(**x, **options, blocks=wide), usual)


@pytest.mark.parametrize(("mask", "bad"), [*zip(MASKS, [NAN, INF] * 3, strict=True)], ids=str)
def test_what_no_row_sees_may_hold_anything_and_gets_nothing(mask: Any, bad: float) -> None:
    m, offset, options, sides = mask
    options = {**options, "q_offset": offset}
    x = given(options, seqlen_q=m)
    nobody = ~seen(m, 37, offset, *sides).any(0).to(HOME)
    spoilt = {n: x[n].masked_fill(nobody[:, None], bad) for n in ("k", "v")}
    usual = attention_backward(**x, **options)
    assert same(attention_backward(**{**x, **spoilt}, **options), usual)
    assert all((grad[:, :, nobody] == 0).all() for grad in usual[1:])


def test_an_empty_row_gets_and_gives_nothing() -> None:
    options: Given = {"causal": True, "q_offset": -9}
    x = given(options, seqlen_q=20)
    assert (x["lse"][:, :, :9] == -INF).all()
    usual = attention_backward(**x, **options)
    assert (usual[0][:, :, :9] == 0).all()
    louder = {**x, "dout": torch.cat([x["dout"][:, :, :9] * 64, x["dout"][:, :, 9:]], 2)}
    assert same(attention_backward(**louder, **options), usual)


LAYOUTS = {
    "transposed": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "every other": lambda x: torch.stack([x, x + 1], -1)[..., 0],
    "odd address": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
}
GENERAL = ("every other", "odd address")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides_do_not_matter(layout: str) -> None:
    """The contiguous call takes the aligned build; most of these take the general one."""
    x = given({"causal": True}, batch=2)
    usual = attention_backward(**x, causal=True)
    if HOME != "cpu" and layout in GENERAL:
        pytest.skip("a GPU build has its own bits; test_strided_equals_contiguous judges them")
    odd = {name: LAYOUTS[layout](t) for name, t in x.items()}
    assert same(attention_backward(**odd, causal=True), usual)
    assert same(attention_backward(**{**x, "dout": odd["dout"]}, causal=True), usual)


def test_offsets_in_a_tensor_are_those_of_its_sequences() -> None:
    offsets = torch.tensor([17, -5, 0], dtype=torch.int32, device=HOME)
    x = given({"causal": True, "q_offset": offsets}, batch=3)
    whole = attention_backward(**x, causal=True, q_offset=offsets)
    for i, n in enumerate(offsets.tolist()):
        one = {name: t[i : i + 1] for name, t in x.items()}
        alone = attention_backward(**one, causal=True, q_offset=n)
        assert same([grad[i : i + 1] for grad in whole], alone)


def test_a_group_adds_up_in_float32_head_by_head() -> None:
    """One key and few-bit numbers: all sums are exact, so that the heads' own gradients add up."""
    x = given(num_heads=6, num_kv_heads=2, seqlen_k=1, seqlen_q=5, dtype="float32")
    x = {name: (t * 4).round() / 4 for name, t in x.items()} | {"lse": x["lse"] * 0}
    x["q"] = x["q"] * 0  # logits are 0, weights 1
    dk, dv = attention_backward(**x)[1:]
    repeated = {n: x[n].repeat_interleave(3, 1) for n in ("k", "v")}
    for whole, heads in zip((dk, dv), attention_backward(**{**x, **repeated})[1:], strict=True):
        assert same([whole], [heads.unflatten(1, (2, 3)).sum(2)])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gradients_are_rounded_once_and_repeat(dtype: str) -> None:
    x = given({"causal": True}, dtype=dtype, head_dim=40, head_dim_v=24)
    full = attention_backward(**x, causal=True, out_dtype=torch.float32)
    rounded = [grad.to(x["q"].dtype) for grad in full]
    assert same(attention_backward(**x, causal=True), rounded)
    assert same(attention_backward(**x, causal=True), rounded)


@pytest.mark.parametrize(("rows", "keys", "batch"), [(0, 5, 1), (5, 0, 1), (5, 5, 0)])
def test_without_rows_or_keys_gradients_are_zero(rows: int, keys: int, batch: int) -> None:
    x = given(batch=batch, seqlen_q=rows, seqlen_k=keys)
    for grad, name in zip(attention_backward(**x), "qkv", strict=True):
        assert grad.shape == x[name].shape
        assert (grad == 0).all()


@pytest.mark.parametrize("together", [1, 2**40])
def test_the_order_of_programs_does_not_matter(
    together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = given({"causal": True}, batch=2, num_heads=3, seqlen_q=40)
    usual = attention_backward(**x, causal=True)
    monkeypatch.setattr(attention_tiles, "L2_BYTES", together)
    monkeypatch.setattr(attention_backward_call, "_PLANS", {})
    assert same(attention_backward(**x, causal=True), usual)


@pytest.mark.skipif(HOME == "cpu", reason="needs a GPU")
def test_a_recorded_graph_reads_what_lies_there_at_its_replay() -> None:
    x = given({"causal": True}, seqlen_q=300, seqlen_k=300, head_dim=64, head_dim_v=64)
    attention_backward(**x, causal=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        grads = attention_backward(**x, causal=True)
    x["dout"].mul_(2)
    graph.replay()
    torch.cuda.synchronize()
    assert same(grads, attention_backward(**x, causal=True))


@pytest.mark.parametrize("capability", [None, (8, 0), (8, 9), (9, 0), (10, 0)])
@pytest.mark.parametrize("itemsize", [2, 4])
def test_every_width_has_tiles_that_delta_and_shift_are_padded_for(
    capability: tuple[int, int] | None, itemsize: int
) -> None:
    for width in (16, 64, 65, 128, 192, 256):
        for tile in config(width, itemsize, capability):
            powers = (tile.OWN, tile.WALKED, tile.num_warps)
            assert not any(n & (n - 1) for n in powers)
            assert min(tile.OWN, tile.WALKED) >= 16


WRONG: dict[str, tuple[type[Exception], str, Given]] = {
    "no tensor": (TypeError, "dout", {"dout": 1.0}),
    "dout of another dtype": (TypeError, "dout.dtype", {"dout": normal(1, 2, 20, 16).bfloat16()}),
    "dout as wide as q": (ValueError, "dout.shape", {"dout": normal(1, 2, 20, 24)}),
    "out of other rows": (ValueError, "out.shape", {"out": normal(1, 2, 19, 16)}),
    "out elsewhere": (ValueError, "out.device", {"out": normal(1, 2, 20, 16).to("meta")}),
    "lse in 16 bits": (TypeError, "lse.dtype", {"lse": normal(1, 2, 20)}),
    "lse of kv heads": (ValueError, "lse.shape", {"lse": normal(1, 1, 20, dtype="float32")}),
    "two widths": (ValueError, "k.shape", {"k": normal(1, 1, 37, 8)}),
    "softcap 0": (ValueError, "softcap", {"softcap": 0.0}),
    "q_offset": (TypeError, "q_offset", {"q_offset": 1.0}),
    "one tile": (ValueError, "blocks", {"blocks": (TILE,)}),
    "a flat tile": (TypeError, "blocks", {"blocks": TILE}),
    "an odd tile": (ValueError, "blocks", {"blocks": (TILE, Tile(24, 16, 4, 1))}),
    "autograd": (ValueError, "requires_grad", {"q": normal(1, 2, 20, 16).requires_grad_()}),
}


@pytest.mark.parametrize("what", WRONG)
def test_bad_input_is_refused(what: str) -> None:
    error, argument, changes = WRONG[what]
    with pytest.raises(error) as raised:
        attention_backward(**{**given(), **changes})
    assert WORDING.match(str(raised.value)), raised.value
    assert str(raised.value).startswith(argument), raised.value
