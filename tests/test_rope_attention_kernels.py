"""The rotating attention kernels where equality is exact: rope, then attention, byte for byte."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attention_calls import HOME, drawn, normal, same

from tightrope.attention_tiles import Config
from tightrope.impls.attention import attention
from tightrope.impls.rope import rope
from tightrope.impls.rope_attention import rope_attention, rope_attention_rotated_k
from tightrope.rope_attention_call import tile_for

SMALL = Config(16, 16, 4, 1)
ROWS = 50
Tensors = dict[str, torch.Tensor]
WAYS = pytest.mark.parametrize(
    "rotating", [rope_attention, rope_attention_rotated_k], ids=["copy-free", "rotated k"]
)


def places(*shape: int, seed: int = 0, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    gen = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randint(0, ROWS, shape, generator=gen).to(dtype).to(HOME)


def turning(
    rotary_dim: int = 16, per_batch: bool = False, table: str = "float32", **shape: Any
) -> Tensors:
    """Arguments of rope_attention, with cos and sin independent of one another."""
    q, k, v = drawn(**{"batch": 2, "num_kv_heads": 2, "num_heads": 4, **shape})
    batch = (q.shape[0],) if per_batch else ()
    return {
        "q": q, "k": k, "v": v,
        "cos": normal(ROWS, rotary_dim // 2, dtype=table, seed=3),
        "sin": normal(ROWS, rotary_dim // 2, dtype=table, seed=4),
        "q_positions": places(*batch, q.shape[2]),
        "k_positions": places(*batch, k.shape[2], seed=1, dtype=torch.int32),
    }  # fmt: skip


def turned(x: torch.Tensor, tensors: Tensors, name: str, interleaved: bool) -> torch.Tensor:
    """x (batch, heads, seqlen, head_dim) by the kernel of `rope`."""
    result = torch.empty_like(x)
    for b, sequence in enumerate(x):
        tokens, positions = sequence.transpose(0, 1), tensors[f"{name}_positions"]
        row = positions if positions.ndim == 1 else positions[b]
        table = tensors["cos"], tensors["sin"]
        found, _ = rope(tokens, tokens, *table, row.contiguous(), interleaved=interleaved)
        result[b] = found.transpose(0, 1)
    return result


def in_two_steps(tensors: Tensors, interleaved: bool, **options: Any) -> Any:
    q, k = (turned(tensors[name], tensors, name, interleaved) for name in ("q", "k"))
    return attention(q, k, tensors["v"], blocks=SMALL, **options)


@WAYS
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ({}, {"causal": True}),
        ({"rotary_dim": 2, "head_dim": 2, "head_dim_v": 24, "table": "float16"}, {}),
        ({"rotary_dim": 16, "head_dim": 40, "dtype": "bfloat16"}, {"window_size": (9, 3)}),
        ({"rotary_dim": 6, "head_dim": 17, "per_batch": True}, {"causal": True, "q_offset": 17}),
        ({"rotary_dim": 64, "head_dim": 64, "dtype": "float32", "per_batch": True}, {}),
        ({"rotary_dim": 32, "head_dim": 80, "table": "bfloat16", "dtype": "bfloat16"}, {}),
        ({"rotary_dim": 24, "head_dim": 24, "seqlen_k": 0}, {"causal": True}),
        ({"rotary_dim": 16, "seqlen_q": 0}, {}),
        ({"batch": 0, "rotary_dim": 16}, {}),
    ],
    ids=str,
)
def test_it_is_rope_and_then_attention(
    rotating: Any, interleaved: bool, shape: dict[str, Any], options: dict[str, Any]
) -> None:
    tensors = turning(**shape)
    sink = normal(4, dtype=shape.get("dtype", "float16"))
    rest = {"softcap": 5.0, "softmax_scale": 0.4, "sink": sink, "out_dtype": torch.float32}
    for more in (options, {**options, **rest}):
        found = rotating(**tensors, interleaved=interleaved, blocks=SMALL, **more)
        assert same(found, in_two_steps(tensors, interleaved, **more))


@WAYS
@pytest.mark.parametrize("interleaved", [False, True])
def test_strides_do_not_matter(rotating: Any, interleaved: bool) -> None:
    tensors, options = turning(per_batch=True), {"interleaved": interleaved, "blocks": SMALL}
    usual = rotating(**tensors, **options)
    every_other = {n: torch.stack([x, x], -1)[..., 0] for n, x in tensors.items()}
    wide = {n: torch.cat([x, x], -1)[..., : x.shape[-1]] for n, x in tensors.items()}
    heads_inside = {
        n: x.transpose(1, 2).contiguous().transpose(1, 2) if x.ndim == 4 else x
        for n, x in tensors.items()
    }
    for odd in (every_other, wide, heads_inside):
        assert same(rotating(**odd, **options), usual)


@WAYS
def test_positions_turn_and_indices_mask(rotating: Any) -> None:
    """A causal mask does not move with positions; a shift of the table's rows changes nothing."""
    tensors = turning(seqlen_q=37)
    options = {"interleaved": False, "causal": True, "blocks": SMALL}
    usual = rotating(**tensors, **options)
    moved = {n: (x + 1) % ROWS if "positions" in n else x for n, x in tensors.items()}
    assert not same(rotating(**moved, **options), usual)
    moved |= {n: tensors[n].roll(1, 0) for n in ("cos", "sin")}
    assert same(rotating(**moved, **options), usual)


@WAYS
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_slots_that_no_row_sees_may_hold_anything(rotating: Any, bad: float) -> None:
    """Of 20 rows from key 3 on, a window of 2 sees keys 1 to 22."""
    tensors = turning()
    options = {"interleaved": True, "causal": True, "window_size": (2, None), "q_offset": 3}
    clean = rotating(**tensors, **options)
    spoilt = {n: tensors[n].clone() for n in ("k", "v")}
    for x in spoilt.values():
        x[:, :, 0], x[:, :, 23:] = bad, bad
    assert same(rotating(**{**tensors, **spoilt}, **options), clean)


@WAYS
def test_offsets_in_a_tensor_are_those_of_its_sequences(rotating: Any) -> None:
    tensors = turning(per_batch=True)
    options = {"interleaved": False, "causal": True, "blocks": SMALL}
    offsets = torch.tensor([17, -5], dtype=torch.int32, device=HOME)
    out, lse = rotating(**tensors, q_offset=offsets, **options)
    for i, n in enumerate([17, -5]):
        alone = {m: x if m in ("cos", "sin") else x[i : i + 1] for m, x in tensors.items()}
        assert same([out[i : i + 1], lse[i : i + 1]], rotating(**alone, q_offset=n, **options))


def test_tiles_that_turn_k_are_no_larger_than_those_that_do_not() -> None:
    for width in (64, 128, 256):
        for size in (2, 4):
            for gpu in (None, (8, 0), (9, 0)):
                plain, small = (tile_for(64, 4096, width, size, way, gpu) for way in (True, False))
                assert small.BLOCK_M == plain.BLOCK_M
                assert small.BLOCK_N <= plain.BLOCK_N
                assert small.num_stages <= plain.num_stages
