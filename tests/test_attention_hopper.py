"""The Hopper kernel of attention without a Hopper: its code simulated, judged by its own budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import hopper_calls
import numpy as np
import pytest
import simulated_gluon
import torch
from attention_calls import HOME, drawn, same
from hopper_calls import FUNCTIONS, NAMES, on_the_cpu
from hypothesis import Phase, given, settings

from tightrope.attention_hopper_call import promise
from tightrope.attention_hopper_tile import (
    MEMORY,
    WIDTHS,
    WIDTHS_V,
    Tile,
    check_tile,
    takes,
    tile_for,
)
from tightrope.attention_tiles import Config
from tightrope.implementation import Implementation, resolve
from tightrope.impls import attention_hopper as hopper
from tightrope.impls.attention import attention as triton_attention
from tightrope.law import strategy
from tightrope.oracles.attention import CONTRACT
from tightrope.oracles.attention_cases import AttentionCase
from tightrope.sequence_call import arithmetic

pytestmark = pytest.mark.skipif(
    HOME != "cpu", reason="simulated on the CPU; on a GPU the laws run the kernel itself"
)

Simulated = Callable[..., Any]
BASE = AttentionCase(
    num_heads=2, seqlen_q=140, seqlen_k=140, head_dim=64, head_dim_v=64, causal=True
)
ODD = replace(BASE, seqlen_q=70, seqlen_k=201)
CASES = {
    "square": BASE,
    "bfloat16, float32 out": replace(BASE, dtype="bfloat16", out_dtype="float32"),
    "bottom right": replace(ODD, q_offset=131, data="rising"),
    "hidden keys": replace(ODD, q_offset=40, hidden="nan"),
    "empty rows": replace(ODD, q_offset=-30, empty_rows=True, layout_q="transposed"),
    "not causal": replace(ODD, causal=False, layout_k="packed", layout_v="packed"),
    "batches, groups": replace(BASE, batch=2, num_heads=4, num_kv_heads=2, layout_q="sliced"),
    "one row": replace(ODD, seqlen_q=1, q_offset=200, data="spiking"),
    "doubled": replace(ODD, head_dim=128, q_offset=131, data="times_3"),
    "wide": replace(ODD, head_dim=256, head_dim_v=128, q_offset=131, data="falling"),
}
TWO = Tile(128, 64, 2, 2, False, False, True, 2, 240)
TILES = {
    "plain": TWO,
    "one slot": TWO._replace(KEYS=1, VALUES=1, BLOCK_N=128),
    "ahead": TWO._replace(PIPELINED=True, VALUES=3),
    "overlapped": TWO._replace(OVERLAPPED=True, KEYS=3),
    "in registers": TWO._replace(OVERLAPPED=True, Q_SHARED=False),
    "one group": TWO._replace(CONSUMERS=1, BLOCK_M=64, RESIDENT=2),
    "three groups": TWO._replace(CONSUMERS=3, BLOCK_M=192, OVERLAPPED=True),
    "long shares": TWO._replace(BLOCK_M=256, PIPELINED=True),
}


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> Simulated:
    return on_the_cpu(monkeypatch)


def verdicts(run: Simulated, case: AttentionCase, tile: Tile | None = None) -> list[Any]:
    """Of out and lse, by the budget of the kernel's promise, or of what this tile makes of it."""
    told = promise if tile is None else lambda c, d: arithmetic(c, d, tile.BLOCK_N)
    return hopper_calls.verdicts(CONTRACT, case, told, run, tile=tile)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_it_is_within_its_budget(simulated: Simulated, case: AttentionCase) -> None:
    for verdict in verdicts(simulated, case):
        assert verdict.ok, verdict.message


@pytest.mark.parametrize("tile", TILES.values(), ids=TILES)
def test_every_form_of_program_computes_the_same(simulated: Simulated, tile: Tile) -> None:
    for verdict in verdicts(simulated, CASES["bottom right"], tile=tile):
        assert verdict.ok, verdict.message
    q, k, v = drawn(batch=2, seqlen_q=70, seqlen_k=70, head_dim=64, head_dim_v=64)
    twice = [simulated(q, k, v, causal=True, tile=tile) for _ in range(2)]
    assert same(*twice)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["plain", "ahead", "overlapped", "in registers", "one slot"])
def test_its_bits_are_those_of_the_kernel_in_triton(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch, name: str, dtype: str
) -> None:
    """With tiles of as many keys: every rounding and order is the same, however overlapped."""
    monkeypatch.setattr(simulated_gluon, "DOT_MODEL", "hopper")
    q, k, v = drawn(seqlen_q=70, seqlen_k=160, head_dim=64, head_dim_v=64, dtype=dtype)
    options: dict[str, Any] = {"causal": True, "q_offset": 60, "out_dtype": torch.float32}
    found, other = (
        simulated(q, k, v, tile=t, **options) for t in (TILES[name], TWO._replace(BLOCK_N=32))
    )
    blocks = Config(16, TILES[name].BLOCK_N, 4, 1)
    assert same(found, triton_attention(q, k, v, blocks=blocks, **options))
    assert not same(found, other)


@pytest.mark.parametrize(
    ("name", "wrong"),
    {
        "seen": lambda row, sizes: np.clip(row + sizes[8] + 2, 0, sizes[1]),
        "visible": lambda s, tile, whole, high, BLOCK_N: s,
        "LOWEST": -1.0,
        "rescaled": lambda p, alpha, acc, ring: (p.to(ring[1].dtype), acc),
        "owned": lambda first_row, tiles, sizes, ROWS, BLOCK_N: max(tiles - 1, 0),
    }.items(),
)
def test_a_wrong_part_is_noticed(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch, name: str, wrong: Any
) -> None:
    monkeypatch.delitem(FUNCTIONS, name, raising=False)
    monkeypatch.setitem(NAMES, name, wrong)
    assert not all(v.ok for v in verdicts(simulated, replace(BASE, data="rising")))


@pytest.mark.parametrize("tile", ["plain", "overlapped"])
@pytest.mark.parametrize("name", ["signal", "await_emptied", "await_filled"])
def test_a_missing_signal_hangs_and_a_missing_wait_shows(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch, name: str, tile: str
) -> None:
    monkeypatch.delitem(FUNCTIONS, name)
    monkeypatch.setitem(NAMES, name, lambda bars, step, STAGES: None)
    monkeypatch.setattr(simulated_gluon, "PATIENCE", 0.5)
    try:
        noticed = not all(v.ok for v in verdicts(simulated, CASES["batches, groups"], TILES[tile]))
    except (TimeoutError, AssertionError):  # a deadlock; a barrier signalled too often
        noticed = True
    assert noticed


def test_the_table_holds_tiles_that_fit() -> None:
    for heads, width, width_v, rows in product((1, 8, 128), WIDTHS, WIDTHS_V, (1, 1024, 4096)):
        tile = tile_for(heads, rows, width, width_v)
        check_tile(tile, width, width_v)
        assert tile.bytes(width, width_v) * tile.RESIDENT <= MEMORY


def test_what_it_takes_is_what_it_does_not_refuse() -> None:
    options = {"window_size": (None, None), "softcap": None, "sink": None, "bias": None}
    assert takes("float16", 64, 128, options, 3)
    assert takes("bfloat16", 256, 64, {**options, "window_size": None}, 0)
    for wrong in (
        ("float32", 64, 64, options, 0), ("float16", 96, 64, options, 0),
        ("float16", 64, 256, options, 0), ("float16", 64, 64, {**options, "softcap": 5.0}, 0),
        ("float16", 64, 64, {**options, "window_size": (3, None)}, 0),
        ("float16", 64, 64, {**options, "sink": object()}, 0),
        ("float16", 64, 64, options, None),
    ):  # fmt: skip
        assert not takes(*wrong)


def test_every_case_within_its_limits_is_one_that_it_takes(simulated: Simulated) -> None:
    limits = {**hopper.LIMITS}
    impl = resolve(
        Implementation(
            contract_name="attention", name="simulated", fn=simulated, arithmetic=promise,
            where=limits.pop("where"), limits=limits,
        )
    )  # fmt: skip

    @settings(max_examples=30, derandomize=True, database=None, phases=[Phase.generate])
    @given(strategy(impl.narrow({"size": ("small",)})))
    def taken(case: AttentionCase) -> None:
        options = CONTRACT.options(case)
        offset = options.pop("q_offset")
        assert takes(case.dtype, case.head_dim, case.head_dim_v, options, offset)

    taken()


def test_rows_without_a_key_need_no_launch(simulated: Simulated) -> None:
    q, k, v = drawn(seqlen_q=9, seqlen_k=9, head_dim=64, head_dim_v=128)
    out, lse = simulated(q, k, v, causal=True, q_offset=-9)
    assert out.shape == (1, 2, 9, 128)
    assert not out.any()
    assert (lse == -torch.inf).all()
    assert same(simulated(q, k[:, :, :0], v[:, :, :0]), (out, lse))


def test_elsewhere_it_is_refused() -> None:
    with pytest.raises(ValueError, match="device: expected"):
        hopper.attention_hopper(*drawn(head_dim=64, head_dim_v=64))
