"""torch's backward passes as peers: registered where torch has them, right, and never asked more
than they can be told."""

from __future__ import annotations

import pytest
from attention_calls import HOME, normal

from tightrope.contract import contract
from tightrope.device import current
from tightrope.implementation import registered, resolve
from tightrope.impls import peer_torch_backward as peer

MINE = {i.name: i for i in registered("tightrope.impls.peer_torch_backward")}
SPEC = contract("attention_backward")


def test_every_backend_of_this_device_is_registered() -> None:
    wanted = peer.BACKENDS if HOME == "cuda" else peer.ON_CPU
    assert set(MINE) == {f"torch-{backend}" for backend in wanted}
    for impl in MINE.values():
        assert resolve(impl) is impl
        assert impl.where == ("out_dtype=input", "square")


@pytest.mark.parametrize("name", MINE)
def test_groups_and_unequal_widths_are_within_the_budget_and_wrong_ones_are_not(name: str) -> None:
    case = SPEC.case(
        num_heads=4, num_kv_heads=2, seqlen_q=9, seqlen_k=9, head_dim=24, head_dim_v=16,
        causal=True, dtype="bfloat16", seed=3,
    )  # fmt: skip
    inputs, impl = SPEC.inputs(case), MINE[name]
    budget = SPEC.budget(case, inputs, impl.promise(case, current()))
    outputs = impl(case, inputs)
    assert all(budget[grad].accepts(found) for grad, found in outputs.items())
    for grad, found in outputs.items():
        assert not budget[grad].accepts(found * found.dtype.type(2)), grad


@pytest.mark.parametrize("backend", peer.ON_CPU)
def test_without_rows_or_keys_gradients_are_zero(backend: str) -> None:
    q, k = normal(1, 2, 0, 16), normal(1, 1, 0, 16)
    grads = peer.gradients(backend, q, q, k, k, None, False)
    assert [g.shape for g in grads] == [q.shape, k.shape, k.shape]


@pytest.mark.skipif(HOME != "cpu", reason="a GPU has every backend")
def test_a_backend_that_is_not_there_refuses() -> None:
    """None takes its place."""
    q = normal(1, 2, 4, 16)
    with pytest.raises(RuntimeError):
        peer.gradients("efficient", q, q, q, q, None, False)
