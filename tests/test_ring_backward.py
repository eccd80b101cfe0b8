"""The backward pass of ring attention in real processes (gloo): right, and refusing bad input."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_ring import drawn

from tightrope import autograd_ring
from tightrope.compare import budgets
from tightrope.device import current, to_numpy
from tightrope.implementation import bundled
from tightrope.impls.ring_attention_backward import ring_attention_backward
from tightrope.oracles.ring_attention_backward import CONTRACT, RingAttentionBackwardCase
from tightrope.ring_pool import packed, pool, spread
from tightrope.verdict import judge

CASES = 8  # a ring length; each is some tens of launches in every rank


def judged(impl, case):
    inputs = CONTRACT.inputs(case)
    outputs, spent = impl(case, inputs), budgets(impl, case, inputs)
    for name in impl.outputs:
        found = judge(name, outputs[name], spent[name],
                      lambda at, name=name: CONTRACT.exact(case, inputs, name, at))  # fmt: skip
        assert found.ok, f"{case}: {found.message}"
    return outputs


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_cases_on_gloo_processes(ranks):
    limits = {"ranks": (ranks,), "size": ("small",)}
    found = drawn(bundled("ring_attention_backward", "triton").narrow(limits), CASES)
    assert len(found) == CASES
    assert {case.scheme for case in found} == {"contiguous", "zigzag"}
    for case in found:
        judged(bundled("ring_attention_backward", "triton"), case)


LONG = {"num_heads": 2, "seqlen_q": 37, "seqlen_k": 53, "causal": True, "q_offset": 16}


def test_one_rank_computes_the_bits_of_attention_backward():
    case = RingAttentionBackwardCase(**LONG, ranks=1)
    inputs, one = CONTRACT.inputs(case), bundled("attention_backward", "triton")
    plain = {n: x for n, x in CONTRACT.options(case).items() if n not in ("ranks", "scheme")}
    given = [torch.from_numpy(inputs[n]).to(current().kind)
             for n in ("dout", "q", "k", "v", "out", "lse")]  # fmt: skip
    found = judged(bundled("ring_attention_backward", "triton"), case)
    for name, x in zip(CONTRACT.outputs, one.fn(*given, **plain), strict=True):
        assert (to_numpy(x) == found[name]).all()


def test_gradients_of_keys_come_home_where_shards_are_of_unlike_lengths():
    """17 keys over 4 ranks zig-zag: shards of 4 and 5; only some ranks' rows see the last ones."""
    few = {**LONG, "seqlen_q": 5, "seqlen_k": 17, "q_offset": 12}
    case = RingAttentionBackwardCase(**few, ranks=4, scheme="zigzag", out_dtype="float32")
    found = judged(bundled("ring_attention_backward", "triton"), case)
    assert (np.abs(found["dv"]).max((0, 1, 3)) > 0).all()


def test_sums_in_sixteen_bits_are_worse_and_within_what_they_declare():
    case = RingAttentionBackwardCase(
        **{**LONG, "causal": False}, ranks=4, dtype="bfloat16", out_dtype="float32",
        num_kv_heads=2,
    )  # fmt: skip
    inputs = CONTRACT.inputs(case)
    x = [torch.from_numpy(inputs[n].astype(np.float32)) for n in ("dout", "q", "k", "v", "out")]
    x = [t.bfloat16() for t in x] + [torch.from_numpy(inputs["lse"])]
    x = [t.to(current().kind) for t in x]
    options = {n: v for n, v in CONTRACT.options(case).items() if n not in ("ranks", "scheme")}
    lengths = {"seqlen_q": case.seqlen_q, "seqlen_k": case.seqlen_k}
    promise = bundled("ring_attention_backward", "triton").promise(case, current())
    accepted = []
    for dtype in ("float32", "bfloat16"):
        spent = CONTRACT.budget(case, inputs, {**promise, "partial": dtype})
        for kept in (torch.float32, torch.bfloat16):
            more = {**options, **lengths, "out_dtype": torch.float32, "partial_dtype": kept}
            found = spread(ring_attention_backward, x, 4, "contiguous", more)
            accepted.append([spent[n].accepts(to_numpy(g)) for n, g in
                             zip(CONTRACT.outputs, found, strict=True)])  # fmt: skip
    assert accepted == [[True] * 3, [False] * 3, [True] * 3, [True] * 3]


def learning(dout, q, k, v, group, **options):
    """Gradients as autograd finds them in a rank."""
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out, lse = autograd_ring.ring_attention(*leaves, group, **options)
    assert not lse.requires_grad
    out.backward(dout)
    return [*(x.grad for x in leaves), out.detach(), lse]


def test_autograd_finds_the_gradients_of_the_whole_in_every_rank():
    case = RingAttentionBackwardCase(**LONG, ranks=3, scheme="zigzag")
    inputs = CONTRACT.inputs(case)
    options = {n: v for n, v in CONTRACT.options(case).items() if n not in ("ranks", "scheme")}
    options |= {"seqlen_q": case.seqlen_q, "seqlen_k": case.seqlen_k}
    options.pop("out_dtype")
    given = [torch.from_numpy(inputs[n]).to(current().kind) for n in ("dout", "q", "k", "v")]
    *found, out, lse = spread(learning, given, 3, case.scheme, options)
    state = {"out": to_numpy(out), "lse": to_numpy(lse)}
    spent = budgets(bundled("ring_attention_backward", "triton"), case, {**inputs, **state})
    for name, x in zip(CONTRACT.outputs, found, strict=True):
        assert spent[name].accepts(to_numpy(x)), name


def twice(dout, q, k, v, group, **options):
    out, _ = autograd_ring.ring_attention(q.requires_grad_(), k, v, group, **options)
    return torch.autograd.grad(out, q, dout, create_graph=True)


def test_second_gradients_and_another_dtype_of_out_are_refused():
    zeros = [[packed(torch.zeros(1, 1, 4, 16, dtype=torch.float16))] * 4] * 2
    with pytest.raises(ValueError, match="create_graph: expected False"):
        pool(current().kind).call(twice, zeros, OPTIONS)
    with pytest.raises(ValueError, match="out_dtype: expected None"):
        pool(current().kind).call(twice, zeros, {**OPTIONS, "out_dtype": torch.float32})


def shards(**other):
    x = torch.zeros(1, 1, 4, 16, dtype=torch.float16)
    given = dict.fromkeys(("dout", "q", "k", "v", "out"), x)
    given |= {"lse": torch.zeros(1, 1, 4), **other}
    return [[packed(t) for t in given.values()]] * 2


OPTIONS = {"seqlen_q": 8, "seqlen_k": 8, "scheme": "contiguous"}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"seqlen_k": 9}, "rows of k: expected 5 of 9 on rank 1 of 2, contiguous, got 4"),
        ({"seqlen_q": 6}, "rows of q: expected 3 of 6 on rank . of 2, contiguous, got 4"),
        ({"scheme": "brick"}, "scheme: expected 'contiguous' or 'zigzag', got 'brick'"),
        ({"causal": 1}, "causal: expected True or False, got 1"),
        ({"q_offset": None}, "q_offset: expected an int"),
        ({"partial_dtype": torch.bfloat16}, "partial_dtype: expected torch.float32 or"),
        ({"causal": True, "q_offset": 2**31 - 1}, "q_offset: expected a number of 32 bits less"),
    ],
)
def test_bad_input_is_refused_in_the_rank_before_anything_is_sent(change, told):
    with pytest.raises((TypeError, ValueError), match=told):
        pool(current().kind).call(ring_attention_backward, shards(), {**OPTIONS, **change})


def test_a_state_that_is_not_of_these_rows_is_refused():
    short = torch.zeros(1, 1, 3)
    with pytest.raises(ValueError, match=r"lse.shape: expected \(1, 1, 4\), one a row of q"):
        pool(current().kind).call(ring_attention_backward, shards(lse=short), OPTIONS)
    assert len(pool(current().kind).call(ring_attention_backward, shards(), OPTIONS)) == 2
