"""The PoPE kernels where equality is exact: points of q and k, then attention, byte for byte."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from attention_calls import HOME, normal, same
from pope_calls import Tensors, alike, points, polar, scores
from pope_replays import exact_turn, expanded, light
from torch.utils._python_dispatch import TorchDispatchMode

from tightrope.attention_tiles import Config
from tightrope.impls.attention import attention
from tightrope.impls.pope_attention import pope_attention
from tightrope.impls.pope_attention_expanded import pope_attention_expanded
from tightrope.pope_angles_call import tables, written
from tightrope.pope_attention_call import tile_for

SMALL = Config(16, 16, 4, 1)
WAYS = pytest.mark.parametrize(
    "kernel", [pope_attention, pope_attention_expanded], ids=["light", "expanded"]
)
# Rows whose first tile holds nothing that they see.
LATE = {"causal": True, "window_size": (2, None)}
SHAPES = pytest.mark.parametrize(
    ("shape", "options"),
    [
        ({}, {"causal": True, "q_offset": 14}),
        ({"delta": 2, "head_dim": 40, "dtype": "bfloat16"}, {"window_size": (14, 20)}),
        ({"delta": 4, "rotary_dim": 17, "head_dim": 17, "per_batch": True}, LATE),
        ({"rotary_dim": 1, "head_dim": 33, "head_dim_v": 24, "inv_freq": "float64"}, {}),
        ({"delta": 4, "num_kv_heads": 4, "rotary_dim": 23, "dtype": "float32", "head_dim": 40}, {}),
        ({"rotary_dim": 96, "head_dim": 100, "start": 1000, "dtype": "bfloat16"}, {}),
        ({"seqlen_k": 0}, {"causal": True}),
        ({"seqlen_q": 0, "delta": 2}, {}),
        ({"batch": 0, "per_batch": True}, {}),
    ],
    ids=str,
)


def attended(tensors: Tensors, pair: Any, **options: Any) -> Any:
    options = {"softmax_scale": tensors["q"].shape[3] ** -0.5, **options}
    return attention(*pair, tensors["v"], blocks=SMALL, **options)


@WAYS
@SHAPES
def test_it_is_points_and_then_attention(
    kernel: Any, shape: dict[str, Any], options: dict[str, Any]
) -> None:
    tensors = polar(**shape)
    form = "precise" if shape.get("dtype") == "float32" else "short"
    pair = light(tensors, form) if kernel is pope_attention else expanded(tensors)
    sink = normal(4, dtype=shape.get("dtype", "float16"))
    rest = {"softcap": 5.0, "softmax_scale": 0.4, "sink": sink, "out_dtype": torch.float32}
    for more in (options, {**options, **rest}):
        found = kernel(**tensors, blocks=SMALL, **more)
        assert alike(found, attended(tensors, pair, **more), tensors["k"].shape[2])


@pytest.mark.parametrize("form", ["precise", "short", "half"])
def test_every_softplus_is_as_declared(form: str) -> None:
    tensors = polar(delta=4, head_dim=24)
    options: dict[str, Any] = {"causal": True, "q_offset": 17, "form": form, "blocks": SMALL}
    found = pope_attention(**tensors, **options)
    pair = light(tensors, form)
    points_then = attended(tensors, pair, causal=True, q_offset=17)
    assert alike(found, points_then, tensors["k"].shape[2])


def test_the_replay_is_particular() -> None:
    """What it replays is visible in the bits: of tables, phases and softplus."""
    tensors = polar(delta=2)
    found = pope_attention(**tensors, blocks=SMALL, out_dtype=torch.float32)
    for wrong in (
        expanded(tensors), light(tensors, "precise"),
        light({**tensors, "delta": -tensors["delta"]}, "short"),
        light({**tensors, "delta": None}, "short"),
        light({**tensors, "k_positions": tensors["k_positions"] + 1}, "short"),
    ):  # fmt: skip
        assert not same(found, attended(tensors, wrong, out_dtype=torch.float32))


@WAYS
@pytest.mark.parametrize("delta", [None, 2, 4])
def test_scores_are_those_of_the_formula(kernel: Any, delta: int | None) -> None:
    """lse against float64, at what float16 can cost.

    With r = 2^-11, the rounding of a point, a table's 2^-12 and as much twice over for a turn by
    delta, of each side and coordinate, relative to the magnitude: 4 r. |x| + |y| is at most
    sqrt(2) times that, so a score is off by 2 * 4 r sqrt(2) (1 + 4 r) sum mu mu, 12 r sum mu mu.
    """
    tensors = polar(delta=delta, head_dim=24, rotary_dim=24, start=-9)
    _, lse = kernel(**tensors)
    each = tensors["q"].shape[1] // tensors["k"].shape[1]
    sizes = [points(tensors[n], tensors, n).abs() for n in ("q", "k")]
    most = (sizes[0] @ sizes[1].repeat_interleave(each, 1).mT).amax(-1) * 24**-0.5
    exact = (scores(tensors) * 24**-0.5).logsumexp(-1)
    assert ((lse.double() - exact).abs() <= 12 * 2**-11 * most + 2**-20 * exact.abs()).all()
    if delta is not None:
        other = (scores({**tensors, "delta": -tensors["delta"]}) * 24**-0.5).logsumexp(-1)
        assert ((lse.double() - other).abs() > 12 * 2**-11 * most).any()


LONG = [0, 1, -1, 2**17 - 1, 2**20, -(2**20), 2**24 + 1, 2**31 - 1, 2**31 + 7, 2**40, -(2**40) - 3]


@pytest.mark.parametrize("inv_freq", ["float32", "float64"])
@pytest.mark.parametrize("sign", [-1, 1])
def test_tables_hold_the_nearest_float16_at_any_position(inv_freq: str, sign: int) -> None:
    given = polar(rotary_dim=7, inv_freq=inv_freq)["inv_freq"] ** -sign
    found = torch.tensor(LONG, device=HOME), torch.tensor(LONG[:8], dtype=torch.int32, device=HOME)
    launched = written(tables(given, *found, False), given, *found)
    for positions, table in zip(found, launched, strict=True):
        numbers = np.array(positions.tolist(), dtype=object)[:, None]
        pair = exact_turn(numbers, np.array(given.tolist(), dtype=object))
        assert same(table, [x.half() for x in pair])


@WAYS
def test_strides_do_not_matter(kernel: Any) -> None:
    tensors, options = polar(delta=4, per_batch=True, head_dim=24), {"blocks": SMALL}
    usual = kernel(**tensors, **options)
    given = {n: x for n, x in tensors.items() if torch.is_tensor(x)}
    every_other = {n: torch.stack([x, x], -1)[..., 0] for n, x in given.items()}
    wide = {n: torch.cat([x, x], -1)[..., : x.shape[-1]] for n, x in given.items()}
    heads_inside = {
        n: x.transpose(-3, -2).contiguous().transpose(-3, -2) if x.ndim == 4 else x
        for n, x in given.items()
    }
    for odd in (every_other, wide, heads_inside):
        assert same(kernel(**odd, **options), usual)


@WAYS
def test_positions_alike_for_all_sequences_may_be_given_once(kernel: Any) -> None:
    tensors = polar(delta=2)
    usual = kernel(**tensors)
    for repeated in (lambda x: x.expand(2, -1), lambda x: x.repeat(2, 1)):
        given = {n: repeated(x) if "positions" in n else x for n, x in tensors.items()}
        assert same(kernel(**given), usual)


@WAYS
def test_positions_at_one_address_may_differ(kernel: Any) -> None:
    """In number, in stride, in dtype: one table does for both only if nothing does."""
    every = torch.arange(80, device=HOME)
    words = torch.arange(80, dtype=torch.int32, device=HOME)
    for q, k in (
        (every[:20], every[:37]), (every[:20], every[:40:2]), (every[:40:2], every[:20]),
        (words[:20], words.view(torch.int64)[:20]),
    ):  # fmt: skip
        tensors = polar(seqlen_k=len(k)) | {"q_positions": q, "k_positions": k}
        apart = {**tensors, "q_positions": q.clone()}
        assert same(kernel(**tensors), kernel(**apart))


@WAYS
def test_positions_turn_and_indices_mask(kernel: Any) -> None:
    """A causal mask does not move with positions."""
    tensors = polar()
    usual = kernel(**tensors, causal=True)
    backwards = {n: x.flip(0) if "positions" in n else x for n, x in tensors.items()}
    out, lse = kernel(**backwards, causal=True)
    assert not same([out, lse], usual)
    # the first row sees one key only, whatever the angle between them
    group = tensors["v"].repeat_interleave(2, 1)
    assert torch.equal(out[:, :, 0], group[:, :, 0])


@WAYS
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_slots_that_no_row_sees_may_hold_anything(kernel: Any, bad: float) -> None:
    """Of 20 rows from key 3 on, a window of 2 sees keys 1 to 22."""
    tensors = polar()
    options = {"causal": True, "window_size": (2, None), "q_offset": 3}
    clean = kernel(**tensors, **options)
    spoilt = {n: tensors[n].clone() for n in ("k", "v")}
    for x in spoilt.values():
        x[:, :, 0], x[:, :, 23:] = bad, bad
    assert same(kernel(**{**tensors, **spoilt}, **options), clean)


@WAYS
def test_offsets_in_a_tensor_are_those_of_its_sequences(kernel: Any) -> None:
    tensors = polar(per_batch=True, delta=2)
    offsets = torch.tensor([17, -5], dtype=torch.int32, device=HOME)
    out, lse = kernel(**tensors, q_offset=offsets, causal=True, blocks=SMALL)
    for i, n in enumerate([17, -5]):
        kept = ("inv_freq", "delta")
        alone = {m: x if m in kept else x[i : i + 1] for m, x in tensors.items()}
        found = kernel(**alone, q_offset=n, causal=True, blocks=SMALL)
        assert same([out[i : i + 1], lse[i : i + 1]], found)


class Allocated(TorchDispatchMode):
    """Counts the bytes of the tensors that torch makes while it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        given = {x.untyped_storage().data_ptr() for x in args if torch.is_tensor(x)}
        new = torch.is_tensor(found) and found.untyped_storage().data_ptr() not in given
        if new and found.numel():
            self.bytes.append(found.numel() * found.element_size())
        return found


def test_the_light_kernel_allocates_a_quarter_of_its_outputs_at_most() -> None:
    """Self-attention of 8 heads of 64 in float16: tables for all, out and lse; nothing expanded."""
    shape = {"num_kv_heads": 8, "num_heads": 8, "batch": 1, "head_dim": 64, "head_dim_v": 64}
    tensors = polar(rotary_dim=64, seqlen_q=16, seqlen_k=16, **shape)
    tensors["q_positions"] = tensors["k_positions"]
    usual = pope_attention(**tensors)  # plans, which hold no memory
    with Allocated() as one:
        found = pope_attention(**tensors)
    outputs = [x.numel() * x.element_size() for x in usual]
    table = 2 * 16 * 64 * 2
    assert sorted(one.bytes) == sorted([*outputs, table])
    assert sum(one.bytes) <= 1.25 * sum(outputs)
    tensors["k_positions"] = tensors["k_positions"].clone()
    assert same(found, usual)
    assert same(pope_attention(**tensors), usual)
    with Allocated() as two:
        pope_attention(**tensors)
    assert sorted(two.bytes) == sorted([*outputs, table, table])
    with Allocated() as wide:
        pope_attention_expanded(**tensors)
    if HOME == "cpu":  # on Hopper q is expanded inside the kernel
        assert sorted(wide.bytes) == sorted([*outputs, 2 * outputs[0], 2 * outputs[0]])


def test_short_calls_and_few_heads_get_small_tiles() -> None:
    shapes = ((8, 16), (2, 512), (128, 4096))
    for gpu, width, size in product((None, (8, 0), (9, 0), (10, 0)), (64, 128, 256), (2, 4)):
        few, fewer, many = (tile_for(heads, rows, width, size, gpu) for heads, rows in shapes)
        assert few.BLOCK_M <= 16 <= fewer.BLOCK_M <= many.BLOCK_M
    assert tile_for(8, 4096, 64, 2, None) == SMALL
