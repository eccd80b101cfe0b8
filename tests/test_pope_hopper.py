"""The Hopper kernel without a Hopper: its Python code simulated and judged by its own budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import hopper_calls
import numpy as np
import pytest
import simulated_gluon
import torch
import triton
import triton.language as tl
from attention_calls import HOME, same
from pope_calls import polar
from pope_hopper_calls import FUNCTIONS, NAMES, assembly, on_the_cpu

from tightrope.attention_hopper_call import sizes
from tightrope.impls.pope_attention_hopper import pope_attention_hopper
from tightrope.oracles.pope_attention import CONTRACT
from tightrope.oracles.pope_attention_cases import PopeAttentionCase
from tightrope.pope_hopper_call import promise
from tightrope.pope_hopper_tile import LONE, MANY, SOME, WIDE, Tile, tile_for
from tightrope.softplus import ABSOLUTE, ULPS, softplus
from tightrope.softplus_hopper import PAIR

pytestmark = pytest.mark.skipif(
    HOME != "cpu", reason="simulated on the CPU; on a GPU the laws run the kernel itself"
)

Simulated = Callable[..., Any]
BASE = PopeAttentionCase(
    batch=1, num_heads=2, num_kv_heads=1, seqlen_q=140, seqlen_k=140, head_dim=64, head_dim_v=64,
    rotary_dim=64, causal=True,
)  # fmt: skip
ODD = replace(BASE, seqlen_q=70, seqlen_k=201)
CASES = {
    "square": BASE,
    "bfloat16, float32 out": replace(BASE, dtype="bfloat16", out_dtype="float32", delta="heads"),
    "bottom right, delta": replace(
        ODD, q_offset=131, delta="kv_heads", positions="offset", start=7
    ),
    "hidden keys": replace(ODD, q_offset=40, hidden="nan", delta="heads", delta_data="wide"),
    "empty rows": replace(ODD, q_offset=-30, empty_rows=True, layout_q="transposed"),
    "not causal": replace(ODD, causal=False, layout_k="packed", layout_v="packed"),
    "per batch": replace(
        BASE, batch=2, num_kv_heads=2, positions="per_batch", start=1000, data="delicate"
    ),
    "one row": replace(ODD, seqlen_q=1, q_offset=200, data="thresholds", position_dtype="int32"),
    "wide": replace(ODD, head_dim=128, head_dim_v=128, rotary_dim=128, q_offset=131, data="rising"),
    "random": replace(BASE, positions="random", exponent_sign=1, inv_freq_dtype="float64"),
}  # fmt: skip
FEW = Tile(128, 64, 64, 3, 3, 3, True, False, 2, 1, 200, 104)
TILES = {
    "lone": LONE,
    "some": SOME,
    "many": MANY,
    "two producers": FEW._replace(PARTS=2, CHUNK=32, RAW=4, PIPELINED=False, Q_SHARED=True),
    "a loader": FEW._replace(LOADER=True),
    "a loader of two": FEW._replace(PARTS=2, CHUNK=16, RAW=3, LOADER=True),
    "small chunks": FEW._replace(CHUNK=16, RAW=1, KEYS=2, VALUES=2),
    "long tiles": FEW._replace(BLOCK_N=128, KEYS=1, VALUES=1, PIPELINED=False),
}


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> Simulated:
    return on_the_cpu(monkeypatch)


def verdicts(run: Simulated, case: PopeAttentionCase, **more: Any) -> list[Any]:
    return hopper_calls.verdicts(CONTRACT, case, promise, run, **more)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_it_is_within_its_budget(simulated: Simulated, case: PopeAttentionCase) -> None:
    for verdict in verdicts(simulated, case):
        assert verdict.ok, verdict.message


@pytest.mark.parametrize("tile", TILES.values(), ids=TILES)
def test_every_form_of_program_computes_the_same(simulated: Simulated, tile: Tile) -> None:
    for verdict in verdicts(simulated, CASES["bottom right, delta"], tile=tile):
        assert verdict.ok, verdict.message
    tensors = polar(64, batch=1, num_heads=2, head_dim=64, head_dim_v=64, seqlen_q=70, seqlen_k=70)
    options: dict[str, Any] = {"causal": True, "tile": tile}
    assert same(simulated(**tensors, **options), simulated(**tensors, **options))


@pytest.mark.parametrize(
    ("name", "wrong"),
    {
        "seen": lambda row, sizes: np.clip(row + sizes[8] + 2, 0, sizes[1]),
        "visible": lambda s, tile, whole, high, BLOCK_N: s,
        "LOWEST": -1.0,
        "softplus": lambda x, form: simulated_gluon.value(np.maximum(x, 0.0).astype(np.float32)),
    }.items(),
)
def test_a_wrong_part_is_noticed(
    simulated: Simulated,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    wrong: Any,
) -> None:
    monkeypatch.delitem(FUNCTIONS, name, raising=False)
    monkeypatch.setitem(NAMES, name, wrong)
    assert not all(v.ok for v in verdicts(simulated, CASES["square"]))


@pytest.mark.parametrize("name", ["signal", "await_emptied"])
def test_a_missing_signal_hangs_and_a_missing_wait_shows(
    simulated: Simulated,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    monkeypatch.delitem(FUNCTIONS, name)
    monkeypatch.setitem(NAMES, name, lambda bars, step, STAGES: None)
    monkeypatch.setattr(simulated_gluon, "PATIENCE", 0.5)
    try:
        noticed = not all(v.ok for v in verdicts(simulated, CASES["square"]))
    except (TimeoutError, AssertionError):  # a deadlock; a barrier signalled too often
        noticed = True
    assert noticed


@triton.jit
def half_kernel(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, softplus(tl.load(x + at), "half"))


def every_half() -> np.ndarray[Any, Any]:
    return np.arange(65536, dtype=np.uint16).view(np.float16)


def test_packed_softplus_is_the_form_half_bit_for_bit() -> None:
    x = every_half()
    given, out = torch.from_numpy(x.copy()), torch.empty(65536, dtype=torch.float16)
    half_kernel[(1,)](given, out, 65536)
    made, _ = assembly(PAIR.value, [x, np.ones_like(x), np.zeros_like(x)])
    assert np.array_equal(made, out.numpy(), equal_nan=True)
    assert np.isnan(made[np.isnan(x)]).all()


@pytest.mark.parametrize("ulps", [-2, 0, 2])
def test_packed_softplus_keeps_the_promise_of_its_form(ulps: int) -> None:
    x = every_half()
    x = x[np.isfinite(x)]
    made, _ = assembly(PAIR.value, [x, np.ones_like(x), np.zeros_like(x)], ulps)
    exact = np.logaddexp(x.astype(np.float64), 0.0)  # to a relative 2^-50 or so
    off, most = np.abs(made - exact), ULPS["half"] * 2.0**-24 * exact + ABSOLUTE["half"]
    assert (off <= most).all()
    assert (off > most / 4).any()


def test_a_pair_of_features_is_one_rounding_of_each_product() -> None:
    rng = np.random.default_rng(0)
    x, c, s = (rng.normal(size=4096).astype(np.float16) for _ in range(3))
    size, _ = assembly(PAIR.value, [x, np.ones_like(x), s])
    found = assembly(PAIR.value, [x, c, s])
    wide = size.astype(np.float32)  # products of 11 bits are exact
    for made, t in zip(found, (c, s), strict=True):
        assert np.array_equal(made, (wide * t.astype(np.float32)).astype(np.float16))


@pytest.mark.parametrize("tile", [LONE, SOME, MANY, WIDE])
@pytest.mark.parametrize(
    ("m", "n", "offset"), [(1, 1, 0), (300, 70, -40), (70, 300, 230), (64, 9, -64)]
)
def test_sizes_leave_no_task_out(tile: Tile, m: int, n: int, offset: int) -> None:
    q, k = torch.empty(3, 6, m, 64, device="meta"), torch.empty(3, 2, n, 64, device="meta")
    for processors in (1, 7, 132):
        found = sizes(q, k, True, offset, tile, processors, 256)
        tasks = 18 * -(-m // tile.BLOCK_M)
        assert found.programs <= min(tasks, processors * tile.RESIDENT)
        assert found.programs * found.turns >= tasks > found.programs * (found.turns - 1)
        assert found.together % 3 == 0
        assert found.seqlen_k == max(0, min(n, m + offset))
        assert sizes(q, k, False, offset, tile, processors, 256).seqlen_k == n


def test_the_table_holds_tiles_that_fit() -> None:
    found = {tile_for(h, n, 64, "float16") for h, n in ((8, 1024), (8, 4096), (128, 4096))}
    assert found == {LONE, SOME, MANY}
    for heads in (1, 8, 128):
        for width in (64, 128):
            tile = tile_for(heads, 4096, width, "bfloat16")
            assert not tile.HALF
            assert tile.bytes(width) <= 225 * 1024
            assert tile_for(heads, 4096, width, "float16") == tile._replace(HALF=True)


def test_rows_without_a_key_need_no_launch(simulated: Simulated) -> None:
    tensors = polar(64, head_dim=64, head_dim_v=64, seqlen_q=9, seqlen_k=9)
    out, lse = simulated(**tensors, causal=True, q_offset=-9)
    assert not out.any()
    assert (lse == -torch.inf).all()
    none = polar(64, head_dim=64, head_dim_v=64, seqlen_q=9, seqlen_k=0)
    assert same(simulated(**none), (out, lse))


def test_elsewhere_it_is_refused() -> None:
    with pytest.raises(ValueError, match="device: expected"):
        pope_attention_hopper(**polar(64, head_dim=64, head_dim_v=64))
