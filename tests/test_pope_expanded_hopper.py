"""Expanded PoPE by way of the Hopper kernel of attention, which is simulated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import simulated_gluon
import torch
import triton
import triton.language as tl
from attention_calls import HOME, same
from hopper_calls import on_the_cpu, verdicts
from pope_calls import polar
from pope_hopper_calls import NAMES, points_on_the_cpu
from simulated_numbers import value

from tightrope import device, pope_expand_call
from tightrope.attention_hopper_call import promise
from tightrope.attention_hopper_tile import Tile, tile_for
from tightrope.attention_tiles import Config
from tightrope.implementation import Implementation
from tightrope.impls.pope_attention_expanded import pope_attention_expanded
from tightrope.oracles.pope_attention import CONTRACT
from tightrope.oracles.pope_attention_cases import PopeAttentionCase
from tightrope.softplus import softplus

pytestmark = pytest.mark.skipif(
    HOME != "cpu", reason="simulated on the CPU; on a GPU the laws run the kernel itself"
)

SHAPE = {"head_dim": 64, "head_dim_v": 64, "seqlen_q": 40, "seqlen_k": 70}
OPTIONS: dict[str, Any] = {"causal": True, "q_offset": 30, "out_dtype": torch.float32}
CASE = PopeAttentionCase(
    num_heads=2, seqlen_q=70, seqlen_k=70, head_dim=64, head_dim_v=64, rotary_dim=64, causal=True,
    delta="heads",
)  # fmt: skip
SMALL = Tile(128, 32, 2, 2, False, True, True, 2, 240)
Calls = list[tuple[str, tuple[Any, ...]]]


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Simulated kernels, bundled as long as the test lasts: who is called with which tensors."""
    calls: Calls = []

    def noted(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any, **options: Any) -> Any:
            calls.append((name, given))
            return run(*given, **options)

        return called

    found = Implementation(
        contract_name="attention", name="hopper", arithmetic=promise,
        fn=noted("points", on_the_cpu(monkeypatch)),
    )  # fmt: skip
    monkeypatch.setattr(pope_expand_call, "for_hopper", lambda: found)
    points_on_the_cpu(monkeypatch)
    run = noted("table", pope_expand_call.attend_to_points)
    monkeypatch.setattr(pope_expand_call, "attend_to_points", run)
    return calls


@triton.jit
def softplus_kernel(x, out, N: tl.constexpr, FORM: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, softplus(tl.load(x + at), FORM))


def exactly_softplus(x: Any, form: str) -> Any:
    """Triton's, on the interpreter."""
    given = torch.from_numpy(np.ascontiguousarray(x))
    out = torch.empty(given.shape, dtype=torch.float32)
    softplus_kernel[(1,)](given, out, given.numel(), form)
    return value(out.numpy())


@pytest.mark.parametrize(
    ("delta", "way", "q_shared"),
    [(None, "table", True), (2, "table", False), (4, "points", True)],
)
def test_its_bits_are_those_of_the_way_by_triton(
    hopper: Calls, monkeypatch: pytest.MonkeyPatch, delta: int | None, way: str, q_shared: bool
) -> None:
    """A phase of each query head turns queries exactly, which needs points of them."""
    monkeypatch.setattr(simulated_gluon, "DOT_MODEL", "hopper")
    monkeypatch.setitem(NAMES, "softplus", exactly_softplus)
    tensors = polar(64, delta=delta, per_batch=q_shared, **SHAPE)
    tile = SMALL._replace(Q_SHARED=q_shared)
    found = pope_attention_expanded(**tensors, blocks=tile, **OPTIONS)
    assert [name for name, _ in hopper] == [way]
    assert same(found, pope_attention_expanded(**tensors, blocks=Config(16, 32, 4, 1), **OPTIONS))
    assert len(hopper) == 1


def test_queries_and_keys_at_one_position_share_its_angles(hopper: Calls) -> None:
    tensors = polar(64, **{**SHAPE, "seqlen_q": 70})
    options = {**OPTIONS, "q_offset": 0}
    apart = pope_attention_expanded(**tensors, **options)
    tensors["k_positions"] = tensors["q_positions"]
    assert same(pope_attention_expanded(**tensors, **options), apart)


def test_widths_that_it_lacks_go_by_triton(hopper: Calls) -> None:
    tensors = polar(64, **{**SHAPE, "head_dim": 128})  # 64 plain features: points of 192
    pope_attention_expanded(**tensors, **OPTIONS)
    assert not hopper
    with pytest.raises(ValueError, match="blocks: expected None or a Config"):
        pope_attention_expanded(**tensors, blocks=SMALL, **OPTIONS)


def test_it_is_within_what_it_promises(hopper: Calls) -> None:
    told = pope_expand_call.promise(CASE, device.current())
    assert told["block_k"] == tile_for(2, 70, 128, 64).BLOCK_N
    for verdict in verdicts(CONTRACT, CASE, pope_expand_call.promise, pope_attention_expanded):
        assert verdict.ok, verdict.message
    assert hopper


def test_values_that_tma_cannot_read_are_copied(hopper: Calls) -> None:
    tensors = polar(64, **SHAPE)
    v = tensors["v"]
    aside = torch.empty(v.numel() + 1, dtype=v.dtype)[1:].view(v.shape).copy_(v)
    repeated = v[:, :1].expand(v.shape)
    for other, base in ((aside, v), (repeated, repeated.contiguous())):
        found = pope_attention_expanded(**{**tensors, "v": other}, **OPTIONS)
        given = hopper[-1][1][3]
        assert given.is_contiguous()
        assert given.data_ptr() % 16 == 0
        assert same(found, pope_attention_expanded(**{**tensors, "v": base}, **OPTIONS))
    pope_attention_expanded(**tensors, **OPTIONS)
    assert hopper[-1][1][3] is v


@pytest.mark.parametrize(
    "more",
    [
        {"softcap": 5.0}, {"window_size": (3, None)}, {"sink": torch.zeros(4)},
        {"q_offset": torch.zeros(2, dtype=torch.int32)}, {"blocks": (16, 16, 4, 1)},
    ],
    ids=lambda more: next(iter(more)),
)  # fmt: skip
def test_what_it_lacks_goes_by_triton(hopper: Calls, more: dict[str, Any]) -> None:
    pope_attention_expanded(**polar(64, **SHAPE), **{**OPTIONS, **more})
    assert not hopper
