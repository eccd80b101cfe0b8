"""The packed, paged and merging kernels where equality is exact: bytes against bytes.

`attention`, called for every sequence alone, says what is right; all walk over keys in the same
tiles, so that not a bit may differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from attention_calls import HOME, normal, same
from sequence_calls import LENGTHS, NAN, int32, one_by_one, packed, paged

from tightrope import attention_tiles, sequence_call
from tightrope.impls.attention import attention
from tightrope.impls.attention_paged import attention_paged, attention_paged_split
from tightrope.impls.attention_varlen import attention_varlen
from tightrope.impls.merge_attention import merge_attention

SMALL = attention_tiles.Config(16, 16, 4, 1)
INF = float("inf")
OPTIONS: list[dict[str, Any]] = [
    {},
    {"causal": True},
    {"causal": True, "softcap": 3.0, "softmax_scale": 0.3},
    {"window_size": (5, None), "causal": True},
    {"window_size": (17, 2), "out_dtype": torch.float32},
    {"causal": True, "q_offset": int32(0, 3, -9, 39, 1, 0, 2)},
]
Call = Callable[..., tuple[torch.Tensor, torch.Tensor]]


def varlen(tensors: dict[str, torch.Tensor], **options: Any) -> Any:
    return attention_varlen(**tensors, blocks=SMALL, **options)


def pages_of(size: int) -> Call:
    return lambda tensors, **options: attention_paged(
        **paged(tensors, size), blocks=SMALL, **options
    )


CALLS = {"varlen": varlen, "pages of 16": pages_of(16), "pages of 3": pages_of(3)}
CALLED = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@CALLED
@pytest.mark.parametrize(
    ("dtype", "sink"),
    [("float16", False), ("float16", True), ("bfloat16", True), ("float32", False)],
)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_sequences_are_those_of_attention(
    call: Call, options: dict[str, Any], dtype: str, sink: bool
) -> None:
    """Rows past the last sequence are empty, whatever k and v hold there."""
    tensors = packed(dtype=dtype)
    rest = {**options, "sink": normal(4, dtype=dtype) if sink else None}
    out, lse = call(tensors, **rest)
    for rows, expected in one_by_one(
        lambda *a, **o: attention(*a, blocks=SMALL, **o), tensors, rest
    ):
        assert same([out[rows], lse[:, rows]], expected)
    assert not out[-5:].any()
    assert (lse[:, -5:] == -INF).all()


@CALLED
def test_nothing_to_do(call: Call) -> None:
    for lengths, spare in (((), 0), ((), 4), (((0, 0), (0, 0)), 0), (((0, 3),), 0)):
        tensors = packed(lengths, spare)
        out, lse = call(tensors, sink=normal(4))
        assert (out.shape, lse.shape) == ((spare, 4, 24), (4, spare))
        assert not out.any()
        assert (lse == -INF).all()


@CALLED
@pytest.mark.parametrize("bad", [NAN, INF])
def test_keys_that_no_row_of_their_sequence_sees_may_hold_anything(call: Call, bad: float) -> None:
    """Of 3 rows that end at key 19, a window of 5 begins at key 12."""
    tensors, options = packed(), {"causal": True, "window_size": (5, None)}
    clean = call(tensors, **options)
    spoilt = {**tensors, "k": tensors["k"].clone(), "v": tensors["v"].clone()}
    spoilt["k"][:12], spoilt["v"][:12] = bad, bad
    assert same(call(spoilt, **options), clean)
    spoilt["v"][12] = bad
    assert not same(call(spoilt, **options), clean)


@CALLED
def test_offsets_and_lengths_may_be_columns(call: Call) -> None:
    offsets, tensors = int32(0, 3, -9, 39, 1, 0, 2), packed()
    expected = call(tensors, causal=True, q_offset=offsets, sink=normal(4))
    columns = {
        **tensors,
        **{n: torch.stack([tensors[n]] * 2, 1)[:, 0] for n in tensors if "cu" in n},
    }
    strided = torch.stack([offsets, -offsets], 1)[:, 0]
    sink = torch.stack([normal(4)] * 3, 1)[:, 1]
    assert same(call(columns, causal=True, q_offset=strided, sink=sink), expected)


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda x: x.transpose(0, -2).contiguous().transpose(0, -2),
    "every other": lambda x: torch.stack([x, x + 1], -1)[..., 0],
    "odd address": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
    "wide rows": lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("splits", [1, 2])
def test_strides_do_not_matter(layout: str, splits: int) -> None:
    """The contiguous call takes the aligned build; most of these take the general one."""
    tensors, options = packed(), {"causal": True, "blocks": SMALL}
    odd = {n: LAYOUTS[layout](x) if n in "qkv" else x for n, x in tensors.items()}
    assert same(attention_varlen(**odd, **options), attention_varlen(**tensors, **options))
    tensors = paged(tensors, 8)
    odd = {n: LAYOUTS[layout](x) if x.ndim > 2 else x for n, x in tensors.items()}
    odd["block_table"] = torch.stack([tensors["block_table"]] * 2, -1)[..., 0]
    plain = attention_paged(**tensors, splits=splits, **options)
    assert same(attention_paged(**odd, splits=splits, **options), plain)


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("page_size", [1, 32])
def test_neither_pages_nor_their_order_nor_the_tail_matter(page_size: int, splits: int) -> None:
    tensors, options = packed(), {"causal": True, "blocks": SMALL, "splits": splits}
    usual = attention_paged(**paged(tensors, 16), **options)
    for seed, tail in ((1, -1), (2, 0)):
        assert same(attention_paged(**paged(tensors, page_size, seed, tail), **options), usual)


DECODE = ((1, 70), (1, 1), (1, 33), (1, 0), (1, 48))


@pytest.mark.parametrize(("lengths", "splits"), [(LENGTHS, 2), (DECODE, 3), (DECODE, 9)])
def test_splits_merge_to_the_same_row(lengths: Any, splits: int) -> None:
    """In float32 and without a 16-bit P only the order of sums differs: 2^-18 of values near 1."""
    tensors = paged(packed(lengths, num_heads=16, dtype="float32"), 16)
    for options in (
        {"causal": True},
        {"window_size": (20, 3), "sink": normal(16, dtype="float32")},
    ):
        out, lse = attention_paged(**tensors, **options)
        out_2, lse_2 = attention_paged(**tensors, splits=splits, **options)
        assert (out - out_2).abs().max() <= 2**-18 * tensors["v_cache"].nan_to_num().abs().max()
        assert torch.equal(lse == -INF, lse_2 == -INF)
        assert ((lse - lse_2).nan_to_num(0.0).abs() <= 2**-18).all()


def test_a_row_within_one_split_is_the_unsplit_one_but_for_the_weight_1() -> None:
    tensors = paged(packed(((1, 16), (1, 9))), 16)
    usual = attention_paged(**tensors, blocks=SMALL)
    assert same(attention_paged_split(**tensors, blocks=SMALL), usual)


@pytest.mark.parametrize("call", [varlen, pages_of(16)], ids=["varlen", "paged"])
def test_the_order_and_number_of_programs_do_not_matter(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = packed()
    usual = call(tensors, causal=True)
    monkeypatch.setattr(attention_tiles, "L2_BYTES", 1)
    monkeypatch.setattr(sequence_call, "_PLANS", {})
    assert same(call(tensors, causal=True), usual)


@pytest.mark.skipif(HOME != "cpu", reason="on a GPU the order of a sum depends on the tile")
@pytest.mark.parametrize("rows", [32, 64])
def test_rows_of_a_tile_do_not_matter(rows: int) -> None:
    tensors, options = packed(num_heads=6), {"causal": True, "window_size": (9, None)}
    blocks = SMALL._replace(BLOCK_M=rows)
    pages = paged(tensors, 16)
    for kernel, arguments in ((attention_varlen, tensors), (attention_paged, pages)):
        usual = kernel(**arguments, blocks=SMALL, **options)
        assert same(kernel(**arguments, blocks=blocks, **options), usual)


def states(splits: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    return normal(splits, 7, 3, 24, dtype="float32"), normal(splits, 7, 3, dtype="float32") * 30


@pytest.mark.parametrize("lse", [-0.0, 0.0, 1e30, -1e30, 88.7, 1e-42])
@pytest.mark.parametrize("value", [-0.0, 1e-42, 3e38, -1.5])
def test_one_live_state_comes_out_bit_for_bit(lse: float, value: float) -> None:
    outs, lses = states()
    for alive in (0, 2, 4):
        held, levels = torch.full_like(outs, NAN), torch.full_like(lses, -INF)
        held[alive], levels[alive] = outs[alive], lses[alive]
        held[alive, 0], levels[alive, 0] = value, lse
        assert same(merge_attention(held, levels), [held[alive], levels[alive]])


def test_states_without_keys_merge_to_one() -> None:
    outs, lses = states()
    for splits in (0, 1, 5):
        held, levels = torch.full_like(outs[:splits], NAN), torch.full_like(lses[:splits], -INF)
        expected = torch.zeros_like(outs[0]), torch.full_like(lses[0], -INF)
        assert same(merge_attention(held, levels), expected)


def test_merged_strides_and_axes_do_not_matter() -> None:
    outs, lses = states()
    usual = merge_attention(outs, lses)
    odd = outs.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0)
    assert same(merge_attention(odd, torch.stack([lses] * 2, 2)[:, :, 1]), usual)
    flat = merge_attention(outs.flatten(1, 2), lses.flatten(1, 2))
    assert same([flat[0].view(7, 3, 24), flat[1].view(7, 3)], usual)
    four = merge_attention(outs[:, :, None], lses[:, :, None])
    assert same([x[:, 0] for x in four], usual)


def test_merged_halves_are_the_whole() -> None:
    """By definition in float64; float32 weights of 30 logits are granted 2^-16."""
    outs, lses = states(9)
    lses[3] = -INF
    out, lse = merge_attention(outs, lses)
    weights = lses.double().softmax(0)[..., None]
    assert ((weights * outs).sum(0) - out).abs().max() <= 2**-16 * outs.abs().max()
    assert (lses.double().logsumexp(0) - lse).abs().max() <= 2**-16
