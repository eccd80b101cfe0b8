"""Adapters for other layouts: kernels of ours that speak them pass, and views stay views."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tightrope import adapt
from tightrope.device import prepare
from tightrope.implementation import Implementation, bundled
from tightrope.law import check_case
from tightrope.oracles.attention import AttentionCase
from tightrope.oracles.rope import RopeCase

ROPE = RopeCase(
    tokens=6, num_heads=4, num_kv_heads=2, head_dim=32, rotary_dim=16, table_rows=64, seed=3
)
ATTENTION = AttentionCase(
    batch=2, num_heads=2, num_kv_heads=2, seqlen_q=5, seqlen_k=5, causal=True, seed=3
)


@pytest.fixture(autouse=True)
def _prepared():
    prepare()


def kernel(name):
    return bundled(name, "triton").fn


def holds(case, adapter):
    """What `test_matches_oracle` does, for an adapter that is written as users write it."""
    name = "rope" if isinstance(case, RopeCase) else "attention"
    impl = Implementation(contract_name=name, name="foreign", fn=adapter)
    inputs = impl.contract.inputs(case)
    check_case(impl, case, inputs, impl(case, inputs))


def test_batch_seq_heads():
    def theirs(q, k, v, **options):
        assert q.shape == (2, 5, 2, 16)
        out, lse = kernel("attention")(*(x.transpose(1, 2) for x in (q, k, v)), **options)
        return out.transpose(1, 2).contiguous(), lse

    def adapter(q, k, v, **options):
        out, lse = theirs(*map(adapt.seq_first, (q, k, v)), **options)
        return adapt.heads_first(out), lse

    holds(ATTENTION, adapter)
    holds(replace(ATTENTION, layout_q="strided", layout_k="transposed"), adapter)


def test_packed_qkv():
    def theirs(qkv, **options):
        assert qkv.shape == (2, 5, 3, 2, 16)
        return kernel("attention")(*(x.transpose(1, 2) for x in adapt.unpacked_qkv(qkv)), **options)

    holds(
        ATTENTION,
        lambda q, k, v, **options: theirs(
            adapt.packed_qkv(*map(adapt.seq_first, (q, k, v))), **options
        ),
    )


@pytest.mark.parametrize("interleaved", [False, True])
def test_tables_of_full_width(interleaved):
    def theirs(q, k, cos, sin, positions, **options):
        assert cos.shape == sin.shape == (64, 16)
        halves = (adapt.half_width(t, interleaved) for t in (cos, sin))
        return kernel("rope")(q, k, *halves, positions, **options)

    def adapter(q, k, cos, sin, positions, **options):
        wide = (adapt.full_width(t, interleaved) for t in (cos, sin))
        return theirs(q, k, *wide, positions, **options)

    holds(replace(ROPE, interleaved=interleaved), adapter)


def test_a_row_of_the_table_for_each_token():
    def theirs(q, k, cos, sin, **options):
        assert len(cos) == len(sin) == len(q)
        return kernel("rope")(q, k, cos, sin, torch.arange(len(q), device=q.device), **options)

    holds(
        replace(ROPE, positions="random"),
        lambda q, k, cos, sin, positions, **options: theirs(
            q, k, adapt.rows(cos, positions), adapt.rows(sin, positions), **options
        ),
    )


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("inplace", [False, True])
def test_batched_tokens_and_positions(batch, inplace):
    def theirs(q, k, cos, sin, positions, **options):
        assert q.shape[:2] == positions.shape == (batch, 6 // batch)
        flat = (x.flatten(0, 1) for x in (q, k))
        turned = kernel("rope")(*flat, cos, sin, positions.flatten(), **options)
        return [x.unflatten(0, (batch, -1)) for x in turned]

    def adapter(q, k, cos, sin, positions, **options):
        ids = adapt.batched(positions, batch)
        turned = theirs(*(adapt.batched(x, batch) for x in (q, k)), cos, sin, ids, **options)
        return [adapt.tokens(x) for x in turned]

    holds(replace(ROPE, inplace=inplace), adapter)


def test_fused_heads():
    def theirs(q, k, cos, sin, positions, **options):
        assert (q.shape, k.shape) == ((6, 4 * 32), (6, 2 * 32))
        heads = (x.unflatten(-1, (-1, 32)) for x in (q, k))
        return [x.flatten(-2) for x in kernel("rope")(*heads, cos, sin, positions, **options)]

    def adapter(q, k, *rest, **options):
        fused = theirs(*map(adapt.fused_heads, (q, k)), *rest, **options)
        return [adapt.split_heads(x, q.shape[-1]) for x in fused]

    holds(ROPE, adapter)
    holds(replace(ROPE, layout_q="strided"), adapter)


X = torch.arange(2 * 6 * 4 * 8.0).reshape(2, 6, 4, 8)


@pytest.mark.parametrize(
    ("there", "back", "x"),
    [
        (adapt.heads_first, adapt.seq_first, X),
        (adapt.seq_first, adapt.heads_first, X[:, ::2]),
        (lambda x: adapt.batched(x, 3), adapt.tokens, X[0]),
        (lambda x: adapt.batched(x, 2), adapt.tokens, torch.arange(6)),
        (adapt.batched, adapt.tokens, X[0, :0]),
        (adapt.fused_heads, lambda x: adapt.split_heads(x, 8), X),
    ],
)
def test_there_and_back_are_views(there, back, x):
    away = there(x)
    again = back(away)
    assert torch.equal(again, x)
    assert away.shape != x.shape or x.shape[1] == x.shape[2]
    assert away.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert (again.data_ptr(), again.stride()) == (x.data_ptr(), x.stride())


def test_packing_and_widening_are_copies_that_their_inverses_undo():
    q, k, v = X, X + 1, X + 2
    packed = adapt.packed_qkv(q, k, v)
    for one, other in zip((q, k, v), adapt.unpacked_qkv(packed), strict=True):
        assert torch.equal(one, other)
        assert one.data_ptr() != other.data_ptr()
        assert other.untyped_storage().data_ptr() == packed.untyped_storage().data_ptr()
    table = X[0, :, 0]
    for interleaved in (False, True):
        wide = adapt.full_width(table, interleaved)
        assert torch.equal(adapt.half_width(wide, interleaved), table)
    assert torch.equal(adapt.full_width(table, True)[:, :2], table[:, :1].expand(-1, 2))


def test_a_kernel_that_turns_a_copy_is_in_place_too():
    def adapter(q, k, *rest, **options):
        turned = kernel("rope")(q.contiguous(), k.contiguous(), *rest, **options)
        return [adapt.into(x, y) for x, y in zip((q, k), turned, strict=True)]

    holds(replace(ROPE, inplace=True, layout_q="strided"), adapter)
    held = X.clone()
    assert adapt.into(held, held.view(X.shape)) is held


def test_on_gpu_is_what_the_run_was_told(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("TIGHTROPE_DEVICE", "cpu")
    assert not adapt.on_gpu()
    monkeypatch.setenv("TIGHTROPE_DEVICE", "cuda")
    assert adapt.on_gpu()


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: adapt.seq_first(X[0]), r"expected 4 axes, got 3: \[6, 4, 8\]"),
        (lambda: adapt.heads_first(X[0]), "expected 4 axes, got 3"),
        (lambda: adapt.packed_qkv(X, X[:1], X), "expected three equal shapes"),
        (lambda: adapt.unpacked_qkv(X), "expected 3 at axis -3, got"),
        (lambda: adapt.half_width(X[..., :3]), "expected an even width"),
        (lambda: adapt.full_width(X), "expected 2 or 3 axes, got 4"),
        (lambda: adapt.rows(X, torch.arange(2)), "expected 2 axes, got 4"),
        (lambda: adapt.batched(X[0], 4), "expected a multiple of 4 tokens, got 6"),
        (lambda: adapt.tokens(X[0, 0, 0]), "expected 2 or 3 or 4 axes, got 1"),
        (lambda: adapt.fused_heads(X[0, 0]), "expected 3 or 4 axes, got 2"),
        (lambda: adapt.split_heads(X[0, 0], 3), "expected a multiple of 3 features, got 8"),
    ],
)
def test_a_wrong_shape_is_told(call, told):
    with pytest.raises(ValueError, match=told):
        call()
