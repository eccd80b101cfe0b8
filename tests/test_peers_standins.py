"""Adapters of kernels that need a GPU: what they say to a library and make of its answer.

In the libraries' place are stand-ins, in float32, that follow the conventions of their
documentation: layouts, alignment of masks, what is off. A right library must pass the oracle.
"""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tightrope import impls
from tightrope.device import prepare
from tightrope.implementation import _REGISTERED, registered, resolve
from tightrope.law import check_case, strategy

CALLS: Counter[str] = Counter()


def attend(q, k, v, scale, seen, softcap=0.0):
    """(..., length, features) of equal heads; seen (seqlen_q, seqlen_k); out and lse, float32."""
    t = q.float() @ k.float().mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    t = softcap * torch.tanh(t / softcap) if softcap else t
    t = t.masked_fill(~seen, -torch.inf)
    lse = torch.logsumexp(t, -1)
    return torch.exp(t - lse[..., None]) @ v.float(), lse


def band(n, m, causal, left=-1, right=-1, offset=None):
    """Which of m keys n queries see, aligned at the bottom right unless an offset says else."""
    away = torch.arange(m)[None] - torch.arange(n)[:, None] - (m - n if offset is None else offset)
    right = 0 if causal else right
    return ((left < 0) | (away >= -left)) & ((right < 0) & (not causal) | (away <= right))


def flash_attn_func(q, k, v, *, softmax_scale, causal, window_size, softcap, return_attn_probs):
    assert return_attn_probs
    assert q.stride(-1) == k.stride(-1) == v.stride(-1) == 1
    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    seen = band(q.shape[1], k.shape[1], causal, *window_size)
    out, lse = attend(*(x.transpose(1, 2) for x in (q, k, v)), softmax_scale, seen, softcap)
    CALLS["flash_attn"] += 1
    return out.transpose(1, 2).to(q.dtype), lse, None


def single_prefill_with_kv_cache(q, k, v, *, causal, sm_scale, logits_soft_cap):
    assert q.ndim == 3
    assert q.is_contiguous()
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    seen = band(q.shape[0], k.shape[0], causal)
    heads = (x.transpose(0, 1) for x in (q, k, v))
    CALLS["flashinfer"] += 1
    return attend(*heads, sm_scale, seen, logits_soft_cap or 0.0)[0].transpose(0, 1).to(q.dtype)


def turn(x, cos, sin, interleaved):
    """x (tokens, heads, head_dim), cos and sin (tokens, rotary_dim/2), in float32."""
    half, y = cos.shape[1], x.clone()
    first = slice(0, 2 * half, 2) if interleaved else slice(0, half)
    second = slice(1, 2 * half, 2) if interleaved else slice(half, 2 * half)
    a, b, c, s = x[..., first].float(), x[..., second].float(), cos[:, None], sin[:, None]
    y[..., first], y[..., second] = a * c - b * s, b * c + a * s
    return y


def apply_rope_with_cos_sin_cache(positions, query, key, head_size, cos_sin_cache, is_neox):
    assert cos_sin_cache.dtype is torch.float32
    cos, sin = cos_sin_cache[positions.long()].chunk(2, -1)
    heads = (x.view(len(x), -1, head_size) for x in (query, key))
    CALLS["flashinfer rope"] += 1
    return [turn(x, cos, sin, not is_neox).flatten(1) for x in heads]


def rotary_embedding(x, cos, sin, *, interleaved, inplace):
    assert x.dtype == cos.dtype == sin.dtype
    assert cos.shape[0] >= x.shape[1]
    given, x = x, x.contiguous()
    n = x.shape[1]
    y = turn(x[0], cos[:n].float(), sin[:n].float(), interleaved)[None]
    CALLS["fla copies" if inplace and x is not given else "fla"] += 1
    return x.copy_(y) if inplace else y


def memory_efficient(query, key, value, *, attn_bias, scale, op):
    assert query.shape[2] == key.shape[2] == value.shape[2]
    n, m = query.shape[1], key.shape[1]
    assert op == "split-k" or query.shape[-1] % 8 == value.shape[-1] % 8 == 0
    seen = band(n, m, attn_bias is not None, offset=0)
    out, lse = attend(*(x.transpose(1, 2) for x in (query, key, value)), scale, seen)
    CALLS[op] += 1
    padded = torch.nn.functional.pad(lse, (0, -n % 32), value=torch.inf)
    return out.transpose(1, 2).to(query.dtype), padded


def apply_rotary_emb(freqs, t, seq_dim):
    assert (freqs.ndim, t.ndim, seq_dim) == (3, 4, 1)
    x, rest = t[..., : freqs.shape[-1]], t[..., freqs.shape[-1] :]
    partner = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    CALLS["rotary"] += 1
    return torch.cat((x * freqs.cos() + partner * freqs.sin(), rest), -1).type(t.dtype)


class RotaryEmbedding(torch.nn.Module):
    def __init__(self, dim, theta):
        super().__init__()
        assert dim > 2
        self.freqs = theta ** -(torch.arange(0, dim, 2) / dim)

    def forward(self, t):
        CALLS["rotary table"] += 1
        return (t.float()[:, None] * self.freqs).repeat_interleave(2, -1)


def module(name, **names):
    made = ModuleType(name)
    vars(made).update(names, __path__=[])
    return {name: made}


FMHA = SimpleNamespace(
    memory_efficient_attention_forward_requires_grad=memory_efficient,
    attn_bias=SimpleNamespace(LowerTriangularMask=object),
    cutlass=SimpleNamespace(FwOp="cutlass"), triton_splitk=SimpleNamespace(FwOp="split-k"),
)  # fmt: skip
STAND_INS = {
    "flash_attn": module("flash_attn", flash_attn_func=flash_attn_func),
    "flashinfer": {
        **module("flashinfer", single_prefill_with_kv_cache=single_prefill_with_kv_cache),
        **module("flashinfer.rope", apply_rope_with_cos_sin_cache=apply_rope_with_cos_sin_cache),
    },
    "fla": {
        **module("fla"), **module("fla.modules"),
        **module("fla.modules.rotary", rotary_embedding=rotary_embedding),
    },
    "xformers": {
        **module("xformers"), **module("xformers.ops", fmha=FMHA),
        **module("xformers._cpp_lib", _built_with_cuda=True),
    },
    "rotary_embedding_torch": module(
        "rotary_embedding_torch",
        apply_rotary_emb=apply_rotary_emb,
        RotaryEmbedding=RotaryEmbedding,
    ),
}  # fmt: skip
CALLED = {
    "flash_attn": ["flash_attn"], "flashinfer": ["flashinfer", "flashinfer rope"],
    "fla": ["fla", "fla copies"], "xformers": ["cutlass", "split-k"],
    "rotary_embedding_torch": ["rotary", "rotary table"],
}  # fmt: skip


@pytest.fixture
def adapters(request, monkeypatch):
    """Implementations that an adapter registers where its library and a GPU are there."""
    prepare()
    for name, stand_in in STAND_INS[request.param].items():
        monkeypatch.setitem(sys.modules, name, stand_in)
    path = Path(impls.__path__[0]) / f"peer_{request.param}.py"
    spec = importlib.util.spec_from_file_location(f"stand_in_{request.param}", path)
    loaded = importlib.util.module_from_spec(spec)
    with monkeypatch.context() as there:
        there.setattr(torch.cuda, "is_available", lambda: True)
        there.delenv("TIGHTROPE_DEVICE", raising=False)
        spec.loader.exec_module(loaded)
    assert loaded.MISSING is None
    CALLS.clear()
    yield [resolve(impl) for impl in registered(loaded.__name__)]
    for key in [k for k, i in _REGISTERED.items() if i.module == loaded.__name__]:
        del _REGISTERED[key]


FEW = settings(
    max_examples=12, derandomize=True, database=None, deadline=None, phases=[Phase.generate]
)


@FEW
@given(st.data())
def holds(impl, data):
    case = data.draw(strategy(impl))
    inputs = impl.contract.inputs(case)
    check_case(impl, case, inputs, impl(case, inputs))


@pytest.mark.parametrize("adapters", STAND_INS, indirect=True)
def test_a_right_library_is_right_behind_its_adapter(adapters, request):
    for impl in adapters:
        sizes = {"size": ("small",)} if "size" in impl.contract.domain else {}
        holds(impl.narrow(sizes))
    wanted = CALLED[request.node.callspec.params["adapters"]]
    assert all(CALLS[name] for name in wanted), CALLS
