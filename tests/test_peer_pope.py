"""pope-pytorch as a peer: its conventions are converted, and what it cannot do is not hidden."""

from __future__ import annotations

import importlib.util
import math
import sys
from dataclasses import replace
from functools import wraps
from unittest.mock import patch

import pytest
import torch

from tightrope.compare import budgets
from tightrope.contract import contract
from tightrope.device import prepare
from tightrope.implementation import Implementation, registered
from tightrope.impls import peer_pope_pytorch as peer
from tightrope.oracles.pope_attention_cases import PopeAttentionCase

pytest.importorskip("PoPE_pytorch", reason="the peer is PyPI's pope-pytorch")

CASE = PopeAttentionCase(
    batch=2, num_heads=4, num_kv_heads=2, seqlen_q=5, seqlen_k=21, q_offset=16, causal=True,
    head_dim=24, head_dim_v=24, rotary_dim=17, positions="offset", start=1000, delta="heads",
    seed=1,
)  # fmt: skip
CASES = {
    "all at once": CASE,
    "a delta a kv head": replace(CASE, delta="kv_heads", causal=False),
    "no delta": replace(CASE, delta="none", rotary_dim=24),
    "decode": replace(CASE, seqlen_q=1, q_offset=20, num_heads=3, num_kv_heads=1),
    "square": replace(CASE, seqlen_q=33, seqlen_k=33, q_offset=0, num_heads=2),
    "a start a sequence": replace(CASE, positions="per_batch"),
    "any positions": replace(CASE, positions="random", start=0),
    "any positions, every key": replace(CASE, positions="random", start=0, causal=False),
    "no key": replace(CASE, seqlen_q=0, seqlen_k=0, q_offset=0),
}


@pytest.fixture(autouse=True)
def on_the_cpu():
    if peer.ON_GPU:
        pytest.skip("runs its kernel on the interpreter; on a GPU it is put to the laws")
    prepare()


def interpreted(function):
    """Its kernels behind the adapter, with one tile, which it asks the driver for elsewhere."""
    adapter = peer._adapter(function, "fused", True)

    @wraps(adapter)
    def run(*tensors, **options):
        with patch(f"{peer.KERNELS}._filter_configs", lambda configs, *_: configs[-1:]):
            return adapter(*tensors, **options)

    return run


def fused(dtypes=("float16", "bfloat16", "float32")):
    return Implementation(
        contract_name="pope_attention", name="fused", fn=interpreted(peer.attention),
        returns=("out",), arithmetic=peer._fused_promise, limits={"dtype": dtypes},
    )  # fmt: skip


def in_torch(operation="pope_attention"):
    mine = {(i.contract_name, i.name): i for i in registered(peer.__name__)}
    return mine[operation, "pope-pytorch-torch"]


def accepted(impl, case):
    """Whether out is within the budget of what the peer declares."""
    inputs = contract("pope_attention").inputs(case)
    return budgets(impl, case, inputs)["out"].accepts(impl(case, inputs)["out"])


@pytest.mark.parametrize("name", CASES)
def test_its_torch_path_computes_the_contract(name):
    assert accepted(in_torch(), replace(CASES[name], dtype="float32"))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, "float16") for name in CASES)]
    + [(name, dtype) for dtype in ("bfloat16", "float32") for name in ("all at once", "square")],
)
def test_its_kernel_computes_the_contract(name, dtype):
    assert accepted(fused(), replace(CASES[name], dtype=dtype))


@pytest.mark.parametrize(
    ("forgotten", "name"),
    [
        ("order", "all at once"),
        ("order", "a delta a kv head"),
        ("delta", "all at once"),
        ("delta", "decode"),
    ],
)
def test_a_convention_that_is_not_converted_shows(forgotten, name, monkeypatch):
    call = peer.call

    def unconverted(q, k, v, inv_freq, delta, positions, **options):
        if forgotten == "delta":
            return call(q, k, v, inv_freq, None, positions, **options)
        order = torch.arange(4).view(2, 2).T.flatten()  # its own inverse
        return call(q[:, order], k, v, inv_freq, delta, positions, **options)[:, order]

    monkeypatch.setattr(peer, "call", unconverted)
    assert not accepted(in_torch(), replace(CASES[name], dtype="float32"))


def drawn(n, m, heads=2, kv_heads=2, dtype=torch.float32, width=16):
    torch.manual_seed(0)
    sizes = ((heads, n), (kv_heads, m), (kv_heads, m))
    q, k, v = (torch.randn(1, *size, width).to(dtype) for size in sizes)
    return q, k, v, 10_000.0 ** (-torch.arange(width) / width)


@pytest.mark.parametrize("q_offset", [1, 3, -1])
def test_queries_that_are_not_the_last_tokens_are_refused(q_offset):
    given = (*drawn(5, 7), None, torch.arange(2, 7), torch.arange(7))
    with pytest.raises(ValueError, match=r"q_offset: expected seqlen_k - seqlen_q >= 0"):
        peer.attention(False, *given, q_offset=q_offset)


def test_delta_is_clamped_to_one_turn():
    delta = torch.tensor([[-7.0, -1.0, 0.5]])
    turned = peer.angles(torch.ones(3), delta, torch.arange(2)).bias
    assert turned.tolist() == [[torch.tensor(-2 * math.pi).item(), -1.0, 0.0]]
    kinds = contract("pope_attention").domain["delta_data"]
    assert set(kinds) - set(in_torch().limits["delta_data"]) == {"wide"}


# What follows is wrong in release 0.2.1, or refused; the module's docstring says what is done
# about it. A release that mends one fails here, and may then be allowed more.


def test_its_torch_path_takes_no_16_bit_tensors():
    q, k, v, inv_freq = drawn(3, 3, dtype=torch.float16)
    with pytest.raises(RuntimeError, match="same dtype"):
        peer.call(q, k, v, inv_freq, None, torch.arange(3), causal=True, fused=False)


def test_its_torch_path_masks_the_top_left_and_its_kernel_the_bottom_right():
    q, k, v, inv_freq = drawn(2, 3)
    given = (q, k, v, inv_freq, None, torch.arange(3))
    masks = {"top left": torch.ones(2, 3).tril(0), "bottom right": torch.ones(2, 3).tril(1)}
    right = {n: peer.call(*given, mask=m.bool(), fused=False) for n, m in masks.items()}
    found = {"torch": peer.call(*given, causal=True, fused=False)}
    found["kernel"] = interpreted(peer.attention)(
        q, k, v, inv_freq, None, torch.arange(1, 3), torch.arange(3), causal=True, q_offset=1
    )
    nearest = {
        name: min(right, key=lambda n: float((out - right[n]).abs().max()))
        for name, out in found.items()
    }
    assert nearest == {"torch": "top left", "kernel": "bottom right"}


def test_heads_behind_tokens_need_equal_numbers():
    q, k, v, inv_freq = drawn(3, 3, heads=4, kv_heads=2)
    by_token = (x.transpose(1, 2) for x in (q, k, v))
    with pytest.raises(RuntimeError, match="must match the size"):
        peer.call(
            *by_token, inv_freq, None, torch.arange(3), heads_first=False, causal=True, fused=False
        )


def test_without_the_package_nothing_is_registered_and_the_reason_is_told():
    spec = importlib.util.spec_from_file_location("peer_alone", peer.__file__)
    module = importlib.util.module_from_spec(spec)
    with patch.dict(sys.modules, {"PoPE_pytorch": None}):
        spec.loader.exec_module(module)
    assert module.MISSING.startswith("pope-pytorch: import of PoPE_pytorch halted")
    assert registered("peer_alone") == []
