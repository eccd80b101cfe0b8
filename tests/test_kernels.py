"""The bundled kernels at the edges of what their callers may hand over, against the torch twin.

Both promise the same roundings, so that bytes are compared.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tightrope.device import current

HOME = current().kind

from tightrope.impls import rope as triton_rope  # noqa: E402  (Triton after `current`)
from tightrope.impls import rope_table, rope_torch  # noqa: E402

gpu = pytest.mark.skipif(HOME == "cpu", reason="needs a GPU")
Tensors = dict[str, torch.Tensor]


def drawn(
    tokens: int = 5, heads: int = 4, kv_heads: int = 2, head_dim: int = 32,
    rotary_dim: int = 32, dtype: str = "bfloat16", table: str = "float32",
) -> Tensors:  # fmt: skip
    gen = torch.Generator().manual_seed(tokens)

    def normal(kind: str, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=gen).to(getattr(torch, kind)).to(HOME)

    return {
        "q": normal(dtype, tokens, heads, head_dim),
        "k": normal(dtype, tokens, kv_heads, head_dim),
        "cos": normal(table, 11, rotary_dim // 2),
        "sin": normal(table, 11, rotary_dim // 2),
        "positions": torch.randint(0, 11, (tokens,), generator=gen).to(HOME),
    }


def equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Byte for byte, NaN payloads and signs of zero included."""
    return a.shape == b.shape and torch.equal(
        a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)
    )


def agree(tensors: Tensors, **options: Any) -> bool:
    """Kernel and twin on the same values, the twin's contiguous."""
    plain = {n: t.clone(memory_format=torch.contiguous_format) for n, t in tensors.items()}
    expected = rope_torch.rope(**plain, **options)
    return all(map(equal, triton_rope.rope(**tensors, **options), expected))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize(
    ("tokens", "heads", "kv_heads", "head_dim", "rotary_dim", "dtype", "table"),
    [
        (1, 1, 1, 2, 2, "float32", "float16"), (5, 6, 3, 6, 2, "float16", "bfloat16"),
        (33, 7, 7, 5, 4, "bfloat16", "float32"), (3, 9, 3, 72, 72, "float64", "float32"),
        (9, 40, 8, 80, 64, "bfloat16", "bfloat16"), (2, 5, 1, 192, 192, "float64", "float64"),
        (7, 4, 4, 256, 2, "float16", "float32"), (0, 4, 2, 64, 64, "bfloat16", "float32"),
    ],
)  # fmt: skip
def test_odd_shapes(
    interleaved: bool, inplace: bool, tokens: int, heads: int, kv_heads: int, head_dim: int,
    rotary_dim: int, dtype: str, table: str,
) -> None:  # fmt: skip
    tensors = drawn(tokens, heads, kv_heads, head_dim, rotary_dim, dtype, table)
    assert agree(tensors, interleaved=interleaved, inplace=inplace)


def test_q_and_k_whose_elements_alternate_in_one_storage() -> None:
    tensors = drawn(kv_heads=4)
    both = torch.stack([tensors["q"], tensors["k"]], -1)
    views = {"q": both[..., 0], "k": both[..., 1]}
    assert agree({**tensors, **views}, interleaved=False, inplace=True)


def test_expanded_inputs_tables_and_positions() -> None:
    tensors = drawn()
    expanded = {
        "q": tensors["q"][:, :1, :1].expand(5, 4, 32), "k": tensors["k"][:1].expand(5, 2, 32),
        "cos": tensors["cos"][:1].expand(11, 16), "sin": tensors["sin"][:, :1].expand(11, 16),
        "positions": tensors["positions"][:1].expand(5),
    }  # fmt: skip
    assert agree(expanded, interleaved=True)


def test_strides_of_axes_of_one_element_mean_nothing() -> None:
    tensors = drawn(tokens=1, heads=1, kv_heads=1)
    odd = {
        "q": tensors["q"].as_strided((1, 1, 32), (7, 3, 1)),
        "k": tensors["k"].as_strided((1, 1, 32), (0, 5, 1)),
        "positions": tensors["positions"].as_strided((1,), (9,)),
    }
    assert agree({**tensors, **odd}, interleaved=False, inplace=True)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_tail_keeps_every_bit(dtype: str) -> None:
    tensors = drawn(head_dim=64, dtype=dtype)
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensors["q"].element_size()]
    info = torch.iinfo(bits)
    payload = torch.randint(info.min, info.max, tensors["q"].shape, dtype=bits)
    quiet = {"float16": 0x7C01, "bfloat16": 0x7F81, "float32": 0x7F800001}
    payload[:, :, 40] = quiet.get(dtype, 0x7FF0000000000001)  # signalling NaN
    tensors["q"][..., 32:] = payload.to(HOME).view(getattr(torch, dtype))[..., 32:]
    for interleaved in (False, True):
        out, _ = triton_rope.rope(**tensors, interleaved=interleaved)
        assert equal(out[..., 32:], tensors["q"][..., 32:])


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_modes_without_autograd(mode: Any) -> None:
    with mode():
        assert agree(drawn(), interleaved=False, inplace=True)
        assert agree(drawn(), interleaved=False)


def test_many_tokens_of_few_rotated_features_stay_within_tritons_tile() -> None:
    assert agree(drawn(40_000, 2, 2, 256, 2, "float32"), interleaved=False)
    positions = torch.arange(200_000, device=HOME)
    cos, _ = rope_table.exact(positions, rotary_dim=32, rope_theta=1e4)
    assert cos.shape == (200_000, 16)


class Noted:
    """A stand-in for one of a plan's launches."""

    def __init__(self, launch: Any) -> None:
        self.launch, self.calls = launch, 0

    def __call__(self, *tensors: torch.Tensor) -> None:
        self.calls += 1
        self.launch(*tensors)


def test_one_plan_serves_any_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Same metadata: the aligned build where addresses allow it, the general one elsewhere."""
    monkeypatch.setattr(triton_rope, "_PLANS", {})
    tensors = drawn()
    assert agree(tensors, interleaved=False)
    ((key, plan),) = triton_rope._PLANS.items()
    general, aligned = Noted(plan.general), Noted(plan.aligned)
    triton_rope._PLANS[key] = plan._replace(general=general, aligned=aligned)
    assert agree(tensors, interleaved=False)
    assert (general.calls, aligned.calls) == (0, 1)
    for name in ("q", "k", "cos", "sin"):
        shifted = torch.empty(tensors[name].numel() + 1, dtype=tensors[name].dtype, device=HOME)
        moved = shifted[1:].view_as(tensors[name]).copy_(tensors[name])
        assert agree({**tensors, name: moved}, interleaved=False)
    assert (general.calls, aligned.calls) == (4, 1)
    assert len(triton_rope._PLANS) == 1


def test_plans_are_forgotten_before_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_rope, "_PLANS", dict.fromkeys(range(4096)))
    assert agree(drawn(), interleaved=False)
    assert len(triton_rope._PLANS) == 1


def test_a_tile_may_be_given() -> None:
    tensors = drawn(tokens=9)
    usual = triton_rope.rope(**tensors, interleaved=False)
    for tile in (triton_rope.Config(2, 1, 4), (16, 8, 4)):
        assert all(map(equal, triton_rope.rope(**tensors, interleaved=False, blocks=tile), usual))


@gpu
@pytest.mark.parametrize("interleaved", [False, True])
def test_strides_past_32_bits(interleaved: bool) -> None:
    """Tokens of q and rows of the table lie more than 2^31 elements apart."""
    tensors = drawn(tokens=2)
    far = 2**31 + 64
    room = torch.empty(far + 4 * 32, dtype=torch.bfloat16, device=HOME)
    q = room.as_strided((2, 4, 32), (far, 32, 1)).copy_(tensors["q"])
    rows = torch.empty(far + 32, dtype=torch.bfloat16, device=HOME)
    cos, sin = (rows.as_strided((2, 16), (far, 1), at) for at in (0, 16))
    cos.copy_(tensors["cos"][:2])
    sin.copy_(tensors["sin"][:2])
    positions = torch.tensor([1, 0], device=HOME)
    given = {"q": q, "k": tensors["k"], "cos": cos, "sin": sin, "positions": positions}
    assert agree(given, interleaved=interleaved, inplace=True)


@gpu
def test_a_recorded_graph_reads_what_lies_there_at_its_replay() -> None:
    tensors = drawn()
    triton_rope.rope(**tensors, interleaved=False)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = triton_rope.rope(**tensors, interleaved=False)
    tensors["q"].mul_(2)
    tensors["positions"].copy_(tensors["positions"].flip(0))
    graph.replay()
    torch.cuda.synchronize()
    assert all(map(equal, outs, rope_torch.rope(**tensors, interleaved=False)))


@gpu
def test_another_stream_is_respected() -> None:
    tensors, stream = drawn(tokens=4096), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        tensors["q"].mul_(2)  # late, so that a launch on another stream would overtake it
        out, _ = triton_rope.rope(**tensors, interleaved=False)
    torch.cuda.synchronize()
    assert equal(out, rope_torch.rope(**tensors, interleaved=False)[0])
