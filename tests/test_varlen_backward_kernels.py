"""The bundled gradients of packed attention where equality is exact: bytes against bytes."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from attention_calls import HOME, normal, same
from sequence_calls import LENGTHS, NAN, int32, packed, starts
from test_attention_sequence_kernels import LAYOUTS
from varlen_backward_calls import given, one_by_one

from tightrope import attention_tiles, autograd_varlen, sequence_call, varlen_backward_call
from tightrope.attention_backward_tiles import Config, Tile
from tightrope.impls.attention_varlen import attention_varlen
from tightrope.impls.attention_varlen_backward import attention_varlen_backward

WORDING = re.compile(r"^[^:]+: expected .+, got .+$", re.DOTALL)
TILE = Tile(16, 16, 4, 1)
SMALL = Config(TILE, TILE)
OPTIONS: list[dict[str, Any]] = [
    {},
    {"causal": True},
    {"window_size": (3, 2)},
    {"causal": True, "softcap": 2.0, "softmax_scale": 0.3},
    {"causal": True, "q_offset": int32(17, 0, -3, 0, 5, 2, -20), "window_size": (20, None)},
]
NAMES = ("q", "k", "v")


def live(x: Any, grads: Any) -> list[torch.Tensor]:
    """Gradients of tokens that belong to a sequence."""
    ends = {n: int(x[f"cu_seqlens_{'q' if n == 'q' else 'k'}"][-1]) for n in NAMES}
    return [grad[: ends[n]] for n, grad in zip(NAMES, grads, strict=True)]


@pytest.mark.skipif(HOME != "cpu", reason="a GPU adds up rows of dout and out in other tiles")
@pytest.mark.parametrize(
    ("options", "dtype"),
    [*((o, "float16") for o in OPTIONS), (OPTIONS[1], "bfloat16"), (OPTIONS[3], "float32")],
)
def test_a_sequence_has_the_bits_that_it_has_alone(options: dict[str, Any], dtype: str) -> None:
    x = given(options, dtype=dtype)
    grads = attention_varlen_backward(**x, **options)
    for at, alone in one_by_one(x, options):
        assert same([grad[at[n]] for n, grad in zip(NAMES, grads, strict=True)], alone)


@pytest.mark.parametrize("options", OPTIONS[:2], ids=str)
def test_other_sequences_change_no_bit(options: dict[str, Any]) -> None:
    """Each sequence among others, whose number and length move the tiles, and in a call alone."""
    x = given(options)
    grads = attention_varlen_backward(**x, **options, blocks=SMALL)
    for i, lengths in enumerate(LENGTHS):
        rows, keys = (x[name][i : i + 2].tolist() for name in ("cu_seqlens_q", "cu_seqlens_k"))
        one = {n: x[n][slice(*rows)] for n in ("dout", "q", "out")}
        one |= {n: x[n][slice(*keys)] for n in ("k", "v")}
        one |= {"lse": x["lse"][:, slice(*rows)]}
        one |= {f"cu_seqlens_{n}": starts([size]) for n, size in zip("qk", lengths, strict=True)}
        alone = attention_varlen_backward(**one, **options, blocks=SMALL)
        mine = [g[slice(*s)] for g, s in zip(grads, (rows, keys, keys), strict=True)]
        assert same(mine, alone)


def test_tokens_of_no_sequence_get_zeros_whatever_they_hold() -> None:
    x = given({"causal": True})
    assert all(x[n][-5:].isnan().all() for n in ("dout", "q", "k", "v", "out"))
    for grad in attention_varlen_backward(**x, causal=True):
        assert (grad[-5:] == 0).all()
        assert grad.isfinite().all()


@pytest.mark.parametrize("lengths", [(), ((0, 5),), ((5, 0),), ((0, 0), (0, 0))], ids=str)
@pytest.mark.parametrize("spare", [0, 3])
def test_without_rows_or_keys_gradients_are_zero(lengths: Any, spare: int) -> None:
    x = given(lengths=lengths, spare=spare)
    for grad, name in zip(attention_varlen_backward(**x), NAMES, strict=True):
        assert grad.shape == x[name].shape
        assert (grad == 0).all()


def test_more_sequences_than_are_looked_up_at_once() -> None:
    lengths = [((i * 7) % 3, (i * 5) % 4) for i in range(140)]
    x = given({"causal": True}, lengths, num_heads=1, spare=1)
    wide = Config(Tile(32, 16, 4, 1), Tile(32, 16, 4, 1))
    grads = attention_varlen_backward(**x, causal=True, blocks=wide)
    if HOME == "cpu":
        for at, alone in list(one_by_one(x, {"causal": True}))[120:]:
            assert same([grad[at[n]] for n, grad in zip(NAMES, grads, strict=True)], alone)
    assert all(grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides_do_not_matter(layout: str) -> None:
    """The contiguous call takes the aligned build; most of these take the general one."""
    x = given({"causal": True})
    usual = attention_varlen_backward(**x, causal=True, blocks=SMALL)
    odd = {n: LAYOUTS[layout](t) if t.is_floating_point() else t for n, t in x.items()}
    odd |= {n: torch.stack([t] * 2, 1)[:, 0] for n, t in x.items() if "cu" in n}
    assert same(attention_varlen_backward(**odd, causal=True, blocks=SMALL), usual)
    assert same(attention_varlen_backward(**{**x, "k": odd["k"]}, causal=True, blocks=SMALL), usual)


def test_gradients_are_rounded_once_and_repeat() -> None:
    for dtype in ("float16", "bfloat16"):
        x = given({"causal": True}, dtype=dtype, head_dim=40)
        full = attention_varlen_backward(**x, causal=True, out_dtype=torch.float32)
        rounded = [grad.to(x["q"].dtype) for grad in full]
        for _ in range(2):
            assert same(attention_varlen_backward(**x, causal=True), rounded)


@pytest.mark.parametrize("together", [1, 2**40])
def test_the_order_of_programs_does_not_matter(
    together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = given({"causal": True}, num_heads=4, num_kv_heads=2)
    usual = attention_varlen_backward(**x, causal=True)
    monkeypatch.setattr(attention_tiles, "L2_BYTES", together)
    monkeypatch.setattr(sequence_call, "_PLANS", {})
    assert same(attention_varlen_backward(**x, causal=True), usual)


FAR = 2**30


@pytest.mark.parametrize("wild", [(0, 4, 3), (5, 0, 5), (-FAR, FAR, FAR), (FAR, -FAR, 2)])
def test_wild_starts_touch_nothing_outside(
    wild: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address that followed these numbers would lie in no memory of this process."""
    monkeypatch.setattr(varlen_backward_call, "check_starts_values", lambda *_: None)
    x = given(lengths=((3, 2), (1, 4)), spare=1)
    for name in ("cu_seqlens_q", "cu_seqlens_k"):
        grads = attention_varlen_backward(**{**x, name: int32(*wild)})
        assert [grad.shape for grad in grads] == [x[n].shape for n in NAMES]


@pytest.mark.skipif(HOME == "cpu", reason="needs a GPU")
def test_a_recorded_graph_reads_what_lies_there_at_its_replay() -> None:
    x, graph = given({"causal": True}, head_dim=64, head_dim_v=64), torch.cuda.CUDAGraph()
    usual = attention_varlen_backward(**x, causal=True)
    with torch.cuda.graph(graph):
        recorded = attention_varlen_backward(**x, causal=True)
    for dout in (x["dout"].clone(), x["dout"].flip(1)):
        x["dout"].copy_(dout)
        graph.replay()
        torch.cuda.synchronize()
        assert same(recorded, attention_varlen_backward(**x, causal=True))
    assert not same(recorded, usual)


WRONG: dict[str, tuple[type[Exception], str, dict[str, Any]]] = {
    "no tensor": (TypeError, "dout", {"dout": 1.0}),
    "dout of another dtype": (TypeError, "dout.dtype", {"dout": normal(5, 2, 24).bfloat16()}),
    "dout as wide as q": (ValueError, "dout.shape", {"dout": normal(5, 2, 16)}),
    "out of other rows": (ValueError, "out.shape", {"out": normal(4, 2, 24)}),
    "out elsewhere": (ValueError, "out.device", {"out": normal(5, 2, 24).to("meta")}),
    "lse in 16 bits": (TypeError, "lse.dtype", {"lse": normal(2, 5)}),
    "lse tokens first": (ValueError, "lse.shape", {"lse": normal(5, 2, dtype="float32")}),
    "two widths": (ValueError, "k.shape", {"k": normal(6, 1, 8)}),
    "other sequences": (ValueError, "cu_seqlens_k.shape", {"cu_seqlens_k": int32(0, 6)}),
    "starts that fall": (ValueError, "cu_seqlens_q", {"cu_seqlens_q": int32(0, 4, 3)}),
    "too many keys": (ValueError, "cu_seqlens_k", {"cu_seqlens_k": int32(0, 4, 12)}),
    "an offset": (TypeError, "q_offset", {"q_offset": 3}),
    "softcap 0": (ValueError, "softcap", {"softcap": 0.0}),
    "no tiles": (TypeError, "blocks", {"blocks": 16}),
    "one tile": (ValueError, "blocks", {"blocks": (TILE,)}),
    "autograd": (ValueError, "requires_grad", {"q": normal(5, 2, 16).requires_grad_()}),
}


@pytest.mark.parametrize("what", WRONG)
def test_bad_input_is_refused(what: str) -> None:
    error, argument, changes = WRONG[what]
    if "starts" in what or "many" in what:
        changes = {**changes, "validate": True}
    with pytest.raises(error) as raised:
        attention_varlen_backward(**{**given(lengths=((3, 2), (1, 4)), spare=1), **changes})
    assert WORDING.match(str(raised.value)), raised.value
    assert str(raised.value).startswith(argument), raised.value


@pytest.mark.parametrize("options", OPTIONS[2:4], ids=str)
def test_autograd_s_gradients_are_the_kernel_s(options: dict[str, Any]) -> None:
    x = packed(spare=0, num_heads=2, num_kv_heads=1)
    ends = [x.pop(f"cu_seqlens_{n}") for n in "qk"]
    tensors = [x[n].requires_grad_() for n in NAMES]
    out, lse = autograd_varlen.attention_varlen(*tensors, *ends, **options)
    assert not lse.requires_grad
    dout = normal(*out.shape, seed=5)
    out.backward(dout)
    plain = [t.detach() for t in tensors]
    assert same((out, lse), attention_varlen(*plain, *ends, **options))
    found = attention_varlen_backward(dout, *plain, out.detach(), lse, *ends, **options)
    assert same([t.grad for t in tensors], found)


def test_autograd_refuses_second_gradients_and_other_options() -> None:
    x = packed(((3, 4),), spare=0, dtype="float32")
    q = x["q"].requires_grad_()
    out, _ = autograd_varlen.attention_varlen(**x)
    with pytest.raises(ValueError, match=r"^create_graph: expected False"):
        torch.autograd.grad(out.sum(), q, create_graph=True)
    with pytest.raises(TypeError, match=r"^options: expected of softmax_scale, .*, got \['sink'\]"):
        autograd_varlen.attention_varlen(**x, sink=x["q"])


def test_what_is_nan_stays_in_its_sequence() -> None:
    x = given({"causal": True}, lengths=((3, 20), (17, 18), (2, 5)), spare=2)
    usual = attention_varlen_backward(**x, causal=True)
    for name in ("dout", "q", "k", "v", "out"):
        x[name][slice(21, 23) if name in ("k", "v") else slice(5, 8)] = NAN  # of the second one
    x["lse"][:, 5:8] = NAN
    found = attention_varlen_backward(**x, causal=True)
    for a, b, (first, last) in zip(found, usual, ((3, 20), (20, 38), (20, 38)), strict=True):
        assert same([a[:first], a[last:]], [b[:first], b[last:]])
        assert a[first:last].isnan().any()
