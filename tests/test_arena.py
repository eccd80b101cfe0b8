"""Every stray write shows, whatever the layout; nothing else does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tightrope.arena import BAND, GUARD, POISON, Arena, MemoryFault, unwritten
from tightrope.formats import stored
from tightrope.layouts import LAYOUTS, place

DTYPES = ("float16", "bfloat16", "float32", "float64")


def arrays(dtype="float16", tokens=3, heads=2, features=4):
    x = np.arange(tokens * heads * features).reshape(tokens, heads, features) + 1.0
    return {"q": stored(x, dtype), "positions": np.arange(tokens)}


def arena(layout="contiguous", dtype="float16", **shape):
    given = arrays(dtype, **shape)
    if layout == "expanded":
        given["q"][...] = given["q"][:, :1]
    made = Arena(given, {"q": layout, "positions": "contiguous"}, "cpu")
    made.upload()
    return made, given


def check(made, written=()):
    made.check(made.download(), dict.fromkeys(written, ""))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_argument_has_its_values_its_strides_and_its_gaps(layout, dtype):
    made, given = arena(layout, dtype)
    q = made.argument("q")
    assert q.stride() == place(layout, (3, 2, 4)).strides
    assert torch.equal(q.double(), torch.from_numpy(given["q"].astype(np.float64)))
    if layout in ("strided", "sliced", "packed"):
        around = torch.as_strided(
            q, (4,), (1,), q.storage_offset() + (1 if layout == "strided" else 8)
        )
        assert around[0].isnan()
    check(made)


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "expanded"])
def test_an_in_place_change_is_allowed_where_it_is_announced(layout):
    made, _ = arena(layout)
    made.argument("q").mul_(2)
    check(made, written=("q",))
    with pytest.raises(MemoryFault, match="input q was changed"):
        check(made)


@pytest.mark.parametrize("step", [-1, -BAND // 2 + 1, 24, 24 + BAND // 2 - 33])
def test_a_write_next_to_an_input_is_found(step):
    made, _ = arena()
    q = made.argument("q")
    torch.as_strided(q, (1,), (1,), q.storage_offset() + step).fill_(1.0)
    with pytest.raises(MemoryFault, match="guard band"):
        check(made, written=("q",))


def test_a_write_into_a_gap_is_found():
    made, _ = arena("sliced")
    q = made.argument("q")
    torch.as_strided(q, (1,), (1,), q.storage_offset() + 5).fill_(0.0)
    with pytest.raises(MemoryFault, match="input q was changed: byte 10"):
        check(made, written=("q",))


def test_adding_zero_to_a_guard_band_is_seen_where_it_flushes():
    subnormal = np.array([GUARD, GUARD], np.uint16)
    assert 0 < subnormal.view(np.float16)[0] < 2.0**-14
    assert 0 < float(subnormal.view(np.float32)[0]) < 2.0**-126


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_output_starts_poisoned_and_counts_what_is_missing(dtype):
    made, _ = arena(dtype=dtype)
    out = made.allocate((3, 5), (5, 1), getattr(torch, dtype))
    assert out.isnan().all()
    out[:2] = 1.0
    words = made.download()[0].view(stored([0.0], dtype).dtype)
    start = made.allocations[0].start // out.itemsize
    assert unwritten(words[start : start + 15]) == 5
    out[2] = 1.0
    check(made)


@pytest.mark.parametrize("step", [-1, 15])
def test_a_write_next_to_an_output_is_found(step):
    made, _ = arena()
    out = made.allocate((3, 5), (5, 1), torch.float16)
    torch.as_strided(out, (1,), (1,), out.storage_offset() + step).fill_(POISON)
    with pytest.raises(MemoryFault, match="an output of 30 bytes"):
        check(made)


def test_outputs_larger_than_the_room_get_a_chunk_of_their_own():
    made, _ = arena()
    sizes = [1 << 14, 1 << 16, 1 << 18, 3]
    outs = [made.allocate((n,), (1,), torch.float32) for n in sizes]
    for index, out in enumerate(outs):
        out.fill_(float(index))
    assert len(made.chunks) > 1
    assert [float(o.mean()) for o in outs] == [0.0, 1.0, 2.0, 3.0]
    check(made)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tensors_without_elements_have_a_place_too(layout):
    made, _ = arena(layout, tokens=0)
    assert made.argument("q").shape == (0, 2, 4)
    made.allocate((0, 2), (2, 1), torch.float16)
    check(made)


def test_an_input_may_be_a_view_of_another():
    k = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    made = Arena({"k": k, "v": k[..., :2].copy()}, {"k": "sliced", "v": "view of k"}, "cpu")
    made.upload()
    whole, part = made.argument("k"), made.argument("v")
    assert part.data_ptr() == whole.data_ptr()
    assert part.stride() == whole.stride()
    assert torch.equal(part, whole[..., :2])
    check(made)
    part.add_(1)
    with pytest.raises(MemoryFault, match="input k was changed"):
        check(made)
