"""What only a GPU can show of the attention kernels: graphs, far addresses, every tile."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from tightrope.arithmetic import Arithmetic
from tightrope.attention_tiles import configs
from tightrope.implementation import registered
from tightrope.law import check_case
from tightrope.oracles.attention import CONTRACT, AttentionCase

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
MODULES = ("tightrope.impls.attention", "tightrope.impls.attention_key_outer")


def bundled(name="triton"):
    import importlib

    for module in MODULES:
        importlib.import_module(module)
    return next(i for m in MODULES for i in registered(m) if i.name == name)


def tensors(seed, *shapes, dtype=torch.float16):
    made = torch.Generator("cuda").manual_seed(seed)
    return [torch.randn(s, generator=made, device="cuda").to(dtype) for s in shapes]


@gpu
@pytest.mark.parametrize("name", ["triton", "triton-key-outer"])
def test_a_replayed_graph_repeats_the_call_and_sees_new_inputs(name):
    kernel = bundled(name).fn
    q, k, v = tensors(1, *[(2, 4, 300, 64)] * 3)
    kernel(q, k, v, causal=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = kernel(q, k, v, causal=True)
    for seed in (1, 2):
        for old, new in zip((q, k, v), tensors(seed, *[(2, 4, 300, 64)] * 3), strict=True):
            old.copy_(new)
        graph.replay()
        direct = kernel(q, k, v, causal=True)
        assert torch.equal(out, direct[0])
        assert torch.equal(lse, direct[1])


def far(tensor, row):
    """The same values with rows `row` elements apart: the last one beyond 2^31 elements."""
    *_, length, width = tensor.shape
    memory = torch.empty((length - 1) * row + width, dtype=tensor.dtype, device="cuda")
    view = torch.as_strided(memory, tensor.shape, (0, 0, row, 1))
    view.copy_(tensor)
    return view


@gpu
@pytest.mark.parametrize("name", ["triton", "triton-key-outer"])
def test_offsets_past_two_to_the_31_elements_are_right(name):
    kernel = bundled(name).fn
    q, k, v = tensors(3, *[(1, 1, 160, 64)] * 3)
    near = kernel(q, k, v, causal=True)
    row = 2**31 // 159 // 8 * 8 + 64
    for place in range(3):
        arguments = [far(x, row) if i == place else x for i, x in enumerate((q, k, v))]
        for a, b in zip(near, kernel(*arguments, causal=True), strict=True):
            assert torch.equal(a, b)


@gpu
@pytest.mark.parametrize(
    ("name", "dtype"),
    [*(("triton", d) for d in ("float16", "bfloat16", "float32")), ("triton-tf32x3", "float32")],
)
@pytest.mark.parametrize("width", [40, 64, 128, 256])
def test_every_entry_of_the_table_is_right(name, dtype, width):
    kernel = bundled(name)
    size = 4 if dtype == "float32" else 2
    for tile in configs(width, size, torch.cuda.get_device_capability()):
        forced = replace(kernel, fn=partial(kernel.fn, blocks=tile), arithmetic=keys(kernel, tile))
        for seed, (n, m) in enumerate(((1, 300), (129, 257), (260, 130))):
            case = AttentionCase(
                num_heads=2, seqlen_q=n, seqlen_k=m, head_dim=width, head_dim_v=width, dtype=dtype,
                causal=seed > 0, q_offset=m - n, window_left=200 if seed == 1 else None, seed=seed,
                data=("normal", "spiking", "rising")[seed], empty_rows=True,
            )  # fmt: skip
            inputs = CONTRACT.inputs(case)
            check_case(forced, case, inputs, forced(case, inputs))


def keys(kernel, tile):
    """The kernel's promise with as many keys a block as this tile has."""
    return lambda case, device: Arithmetic(
        **{**kernel.promise(case, device), "block_k": tile.BLOCK_N}
    )
