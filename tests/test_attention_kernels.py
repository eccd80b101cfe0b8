"""The bundled attention kernels where equality is exact: bytes against bytes, whatever the tile.

How far they may be from the truth is for the laws and budgets; one test here compares with a plain
softmax in float64, so that the others do not compare wrong with wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from attention_calls import drawn, normal, same, seen

from tightrope.device import current

HOME = current().kind

from tightrope import attention_call, attention_tiles  # noqa: E402  (Triton after `current`)
from tightrope.impls import attention as query_outer  # noqa: E402
from tightrope.impls import attention_key_outer as key_outer  # noqa: E402

ATTENTIONS = pytest.mark.parametrize(
    "attend", [query_outer.attention, key_outer.attention], ids=["query outer", "key outer"]
)
Attend = Callable[..., tuple[torch.Tensor, torch.Tensor]]
SMALL = attention_tiles.Config(16, 16, 4, 1)
INF, NAN = float("inf"), float("nan")


MASKS: list[tuple[int, int, dict[str, Any], tuple[int | None, int | None]]] = [
    # seqlen_q, q_offset, options, (left, right) that they mean
    (37, 0, {"causal": True}, (None, 0)),
    (20, 17, {"causal": True}, (None, 0)),
    (50, -13, {"causal": True}, (None, 0)),
    (37, 0, {"window_size": (3, 18)}, (3, 18)),
    (33, 5, {"window_size": (0, None), "causal": True}, (0, 0)),
    (70, -20, {"window_size": (17, None)}, (17, None)),
    (17, 60, {"window_size": (40, 2), "causal": True}, (40, 0)),
    (20, 1, {"window_size": (None, 15)}, (None, 15)),
    (2, 200, {"window_size": (31, 31)}, (31, 31)),
]


@ATTENTIONS
@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_tiles_with_and_without_masks_agree(attend: Attend, mask: Any) -> None:
    """A mask by index is one by a bias of -inf, which runs every tile and masks none of them."""
    m, offset, options, (left, right) = mask
    q, k, v = drawn(seqlen_q=m)
    hidden = torch.zeros(1, 1, m, 37).masked_fill(~seen(m, 37, offset, left, right), -INF)
    by_bias = attend(q, k, v, bias=hidden.to(HOME), blocks=SMALL)
    nothing = torch.zeros(1, 1, 1, 1, device=HOME)
    assert same(attend(q, k, v, bias=nothing, q_offset=offset, blocks=SMALL, **options), by_bias)


@ATTENTIONS
@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_a_row_does_not_feel_its_tile(attend: Attend, mask: Any) -> None:
    m, offset, options, _ = mask
    q, k, v = drawn(seqlen_q=m)
    whole = attend(q, k, v, q_offset=offset, blocks=SMALL, **options)
    for first in {1, min(9, m - 1)}:
        rest = attend(q[:, :, first:], k, v, q_offset=offset + first, blocks=SMALL, **options)
        assert same(rest, [x[:, :, first:] for x in whole])


@ATTENTIONS
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("mask", MASKS[::2], ids=str)
def test_a_softmax_in_float64_is_near(attend: Attend, mask: Any, dtype: str) -> None:
    """Weights sum to 1: P and the output, each rounded to dtype, cost half an eps of max |v| each.

    float32 work is granted 2^-16.
    """
    m, offset, options, (left, right) = mask
    q, k, v = drawn(seqlen_q=m, dtype=dtype, head_dim=24, head_dim_v=40)
    out, lse = attend(q, k, v, q_offset=offset, softmax_scale=0.3, **options)
    q, k, v = (x.double().cpu() for x in (q, k, v))
    logits = (q @ k.mT * 0.3).masked_fill(~seen(m, 37, offset, left, right), -INF)
    bound = (torch.finfo(getattr(torch, dtype)).eps + 2**-16) * v.abs().max()
    expected = logits.softmax(-1).nan_to_num() @ v
    assert (out.cpu().double() - expected).abs().max() <= bound
    some = seen(m, 37, offset, left, right).any(-1)
    assert ((lse.cpu() - logits.logsumexp(-1)).abs() <= 2**-16)[..., some].all()
    assert torch.equal(lse.cpu() == -INF, ~some.expand(1, 2, m))


@ATTENTIONS
@pytest.mark.parametrize("rows", [1, 20])
def test_a_row_without_a_key_is_zero_or_its_sink(attend: Attend, rows: int) -> None:
    q, k, v = drawn(seqlen_q=rows)
    zero, sink = torch.zeros_like(q), torch.tensor([0.7, -3.0], device=HOME)
    log2e, ln2 = np.float32(1.4426950408889634), np.float32(0.6931471805599453)
    base2 = torch.tensor([np.float32(x) * log2e * ln2 for x in sink.tolist()], device=HOME)
    for kept, offset in ((37, -(2**31)), (0, 0), (37, -20), (37, 2**31 - 1)):
        options = {"causal": True, "q_offset": offset, "window_size": (37, None)}
        keys = k[:, :, :kept], v[:, :, :kept]
        nothing = lse_of = torch.full((1, 2, rows), -INF, device=HOME)
        assert same(attend(q, *keys, **options), [zero, nothing])
        lse_of = base2[None, :, None].expand(1, 2, rows)
        assert same(attend(q, *keys, sink=sink, **options), [zero, lse_of])


@ATTENTIONS
def test_the_farthest_offset_sees_all(attend: Attend) -> None:
    tensors = drawn()
    every = attend(*tensors)
    assert same(attend(*tensors, causal=True, q_offset=2**31 - 1), every)
    assert same(attend(*tensors, window_size=(None, 2**70), q_offset=-(2**31)), every)


@ATTENTIONS
@pytest.mark.parametrize(("batch", "rows"), [(0, 20), (2, 0)])
def test_no_rows_need_no_program(attend: Attend, batch: int, rows: int) -> None:
    out, lse = attend(*drawn(batch=batch, seqlen_q=rows, head_dim_v=24))
    assert (out.shape, lse.shape) == ((batch, 2, rows, 24), (batch, 2, rows))


@ATTENTIONS
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_slots_that_no_row_sees_may_hold_anything(attend: Attend, mask: Any, bad: float) -> None:
    m, offset, options, (left, right) = mask
    q, k, v = drawn(seqlen_q=m)
    nobody = ~seen(m, 37, offset, left, right).any(0).to(HOME)
    clean = attend(q, k, v, q_offset=offset, **options)
    spoilt = [x.masked_fill(nobody[:, None], bad) for x in (k, v)]
    assert same(attend(q, *spoilt, q_offset=offset, **options), clean)


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "every other": lambda x: torch.stack([x, x + 1], -1)[..., 0],
    "columns": lambda x: x.mT.contiguous().mT,
    "odd address": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
    "wide rows": lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
}


@ATTENTIONS
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_strides_do_not_matter(attend: Attend, layout: str, dtype: str) -> None:
    """The contiguous call takes the aligned build; most of these take the general one."""
    tensors, rest = drawn(batch=2, dtype=dtype), {"causal": True, "blocks": SMALL}
    bias = normal(2, 2, 20, 37, dtype=dtype)
    odd, odd_bias = [LAYOUTS[layout](x) for x in tensors], LAYOUTS[layout](bias)
    assert odd[0].stride() != tensors[0].stride() or layout == "odd address"
    assert same(attend(*odd, **rest), attend(*tensors, **rest))
    assert same(attend(*odd, bias=odd_bias, **rest), attend(*tensors, bias=bias, **rest))


@ATTENTIONS
def test_expanded_tensors_are_repeated_ones(attend: Attend) -> None:
    q, k, v = drawn(batch=2, num_heads=2, seqlen_q=15, num_kv_heads=2)
    k, v = k[:, :, :1].expand(2, 2, 37, 16), v[:1].expand(2, 2, 37, 16)
    sink = normal(1).expand(2)
    one = attend(q, k, v, sink=sink)
    assert same(one, attend(q, k.contiguous(), v.contiguous(), sink=sink.contiguous()))
    for shape in ((1, 1, 1, 37), (2, 1, 15, 1), (1, 2, 15, 37)):
        bias, full = normal(*shape), (2, 2, 15, 37)
        many = attend(q, k, v, bias=bias.expand(full).contiguous())
        assert same(attend(q, k, v, bias=bias), many)


@ATTENTIONS
def test_query_heads_share_their_kv_heads_in_blocks(attend: Attend) -> None:
    q, k, v = drawn(batch=2, num_heads=6, num_kv_heads=2)
    repeated = [x.repeat_interleave(3, 1) for x in (k, v)]
    assert same(attend(q, k, v, causal=True), attend(q, *repeated, causal=True))


@ATTENTIONS
def test_offsets_in_a_tensor_are_those_of_its_sequences(attend: Attend) -> None:
    tensors, offsets = drawn(batch=3), torch.tensor([17, -5, 0, 9], dtype=torch.int32, device=HOME)
    for column in (offsets[:3], torch.stack([offsets, offsets + 1], 1)[:3, 0]):
        out, lse = attend(*tensors, causal=True, q_offset=column)
        for i, n in enumerate([17, -5, 0]):
            alone = attend(*[x[i : i + 1] for x in tensors], causal=True, q_offset=n)
            assert same([out[i : i + 1], lse[i : i + 1]], alone)


@ATTENTIONS
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_padded_width_is_one_of_zeros(attend: Attend, dtype: str) -> None:
    q, k, v = drawn(head_dim=40, head_dim_v=24, dtype=dtype)
    options = {"softmax_scale": 0.2, "softcap": 5.0, "blocks": SMALL}
    out, lse = attend(q, k, v, **options)
    wide = attend(
        *[torch.nn.functional.pad(x, (0, 64 - x.shape[-1])) for x in (q, k, v)], **options
    )
    assert same([out, lse], [wide[0][..., :24], wide[1]])


@ATTENTIONS
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_output_is_rounded_once(attend: Attend, dtype: str) -> None:
    tensors = drawn(dtype=dtype)
    out, lse = attend(*tensors, causal=True, out_dtype=torch.float32)
    assert same(attend(*tensors, causal=True), [out.to(tensors[0].dtype), lse])


# On a GPU the two loops give one tile to warps in different ways (Triton 3.6, 16 rows: 2 by 2 and 4
# by 1), and with that go the orders in which a row is summed: its bits are the interpreter's alone.
@pytest.mark.skipif(HOME != "cpu", reason="on a GPU the order of a sum depends on the loop too")
@pytest.mark.parametrize("options", [{}, {"softcap": 4.0}, {"causal": True, "q_offset": -3}])
def test_both_schedules_meet(options: dict[str, Any]) -> None:
    """On one tile of keys in everything, on any number of them in lse: it takes the same steps."""
    options = {**options, "out_dtype": torch.float32, "blocks": SMALL}
    both = query_outer.attention, key_outer.attention
    a, b = (attend(*drawn(), sink=normal(2), **options) for attend in both)
    assert same(a[1:], b[1:])
    assert not same(a, b)
    assert same(*(attend(*drawn(seqlen_k=16), **options) for attend in both))


@pytest.mark.parametrize("together", [1, 2**40])
def test_the_order_of_programs_does_not_matter(
    together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = drawn(batch=2, num_heads=3, seqlen_q=40)
    usual = query_outer.attention(*tensors, causal=True)
    monkeypatch.setattr(attention_tiles, "L2_BYTES", together)
    monkeypatch.setattr(attention_call, "_PLANS", {})
    assert same(query_outer.attention(*tensors, causal=True), usual)


@pytest.mark.skipif(HOME != "cpu", reason="on a GPU the order of a sum depends on the tile")
@ATTENTIONS
def test_rows_of_a_tile_do_not_matter(attend: Attend) -> None:
    tensors = drawn(seqlen_q=70)
    usual = attend(*tensors, causal=True, q_offset=-7)
    for rows in (32, 64):
        assert same(attend(*tensors, causal=True, q_offset=-7, blocks=(rows, 16, 4, 1)), usual)
