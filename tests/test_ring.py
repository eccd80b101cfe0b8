"""Ring attention in real processes (gloo): right, surviving what ranks do; wrong rings rejected."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest
import torch
import wrong_ring
from hypothesis import HealthCheck, Phase, given, settings
from test_wrong_kernels import rejected, run

from tightrope.compare import budgets
from tightrope.device import current, to_numpy
from tightrope.implementation import Implementation, bundled
from tightrope.impls.ring_attention import ring_attention
from tightrope.law import strategy
from tightrope.oracles.ring_attention import CONTRACT, RingAttentionCase
from tightrope.ring_pool import RanksLost, on_ranks, packed, pool
from tightrope.ring_rank import unpacked
from tightrope.verdict import judge

# kernel -> the law named for it; test_matches_oracle, where a kernel is not listed
NAMED = {
    "local_positions": "test_later_keys_of_any_rank_have_no_influence",
    "causal_by_local_index": "test_later_keys_of_any_rank_have_no_influence",
    "offset_of_the_next_rank": "test_later_keys_of_any_rank_have_no_influence",
    "keys_as_long_as_rows": "test_ranks_and_scheme_are_irrelevant",
    "merged_without_rescale": "test_the_order_of_ranks_is_irrelevant",
    "states_added": "test_ranks_and_scheme_are_irrelevant",
    "lse_of_the_last_state": "test_ranks_that_hold_the_same_row_agree",
    "lse_is_the_largest": "test_ranks_that_hold_the_same_row_agree",
    "empty_states_count": "test_ranks_without_a_visible_key_add_nothing",
    "last_shard_skipped": "test_the_order_of_ranks_is_irrelevant",
    "own_shard_skipped": "test_ranks_that_hold_the_same_row_agree",
    "own_shard_twice": "test_ranks_that_hold_the_same_row_agree",
    "stale_buffer": "test_the_order_of_ranks_is_irrelevant",
    "v_one_step_late": "test_the_order_of_ranks_is_irrelevant",
    "zigzag_runs_swapped": "test_ranks_without_a_visible_key_add_nothing",
    "lse_in_base_2": "test_ranks_and_scheme_are_irrelevant",
    "window_of_the_own_shard_only": "test_ranks_and_scheme_are_irrelevant",
}
RIGHT = "(-right- or -right_declared- or -right_partials_in_bfloat16-)"


def each_by_its_law() -> str:
    """What -k selects: every wrong ring under its own law."""
    listed = [f"{law} and -{kernel}-" for kernel, law in NAMED.items()]
    others = " or ".join((RIGHT, *(f"-{kernel}-" for kernel in NAMED)))
    return " or ".join(f"({w})" for w in (*listed, f"test_matches_oracle and not ({others})"))


def test_every_wrong_ring_is_rejected_by_the_law_named_for_it(tmp_path):
    words = ("--profile=ci", "--no-shrink", "-k", each_by_its_law())
    results = run(tmp_path, *words, module="wrong_ring.py")
    found = [r for r in results.values() if r.get("outcome") in ("passed", "failed")]
    assert len({r["implementation"] for r in found}) == 20
    survivors = [f"{r['implementation']} {r['dtype']}: {r['law']}" for r in found
                 if not rejected(r)]  # fmt: skip
    assert not survivors


def test_right_rings_pass_every_law(tmp_path):
    laws = f"{RIGHT} and (test_ring or matches_oracle)"
    words = ("--profile=ci", "--examples=10", "--no-shrink", "-k", laws)
    results = run(tmp_path, *words, module="wrong_ring.py")
    outcomes = {key: r["outcome"] for key, r in results.items()}
    assert set(outcomes.values()) == {"passed"}, outcomes


def drawn(impl, count):
    found = []

    @settings(max_examples=count, derandomize=True, database=None, deadline=None,
              suppress_health_check=list(HealthCheck), phases=[Phase.generate])  # fmt: skip
    @given(strategy(impl))
    def collect(case):
        found.append(case)

    collect()
    return found


def judged(impl, case):
    inputs = CONTRACT.inputs(case)
    outputs, spent = impl(case, inputs), budgets(impl, case, inputs)
    for name in impl.outputs:

        def exact(at, name=name):
            return CONTRACT.exact(case, inputs, name, at)

        verdict = judge(name, outputs[name], spent[name], exact)
        assert verdict.ok, f"{case}: {verdict.message}"


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_hundred_cases_on_gloo_processes(ranks):
    impl = bundled("ring_attention", "triton").narrow({"ranks": (ranks,), "size": ("small",)})
    found = drawn(impl, 100)
    assert len(found) == 100
    assert {case.scheme for case in found} == {"contiguous", "zigzag"}
    for case in found:
        judged(impl, case)


def distributed(ring):
    """An implementation whose ranks are processes that walk a ring of tests/wrong_ring.py."""

    def call(q, k, v, **options):
        return on_ranks(wrong_ring.distributed, q, k, v, ring=ring, **options)

    return Implementation(contract_name="ring_attention", name="walked", fn=call)


CASE = RingAttentionCase(
    ranks=3, scheme="contiguous", num_heads=2, seqlen_q=17, seqlen_k=31, causal=True, q_offset=14,
)  # fmt: skip


def test_a_ring_that_is_wrong_in_one_process_is_wrong_in_three():
    judged(distributed(wrong_ring.Ring()), CASE)
    for wrong in (wrong_ring.Ring(offset=wrong_ring.locally),
                  wrong_ring.Ring(steps=wrong_ring.all_but_the_last)):  # fmt: skip
        with pytest.raises(AssertionError, match="elements are wrong"):
            judged(distributed(wrong), CASE)


def sleeping(q, k, v, group, **options):
    if torch.distributed.get_rank(group) == 1:
        time.sleep(600)
    return ring_attention(q, k, v, group, **options)


def dying(q, k, v, group, **options):
    os._exit(3)


def failing(q, k, v, group, **options):
    if torch.distributed.get_rank(group) == 1:
        raise LookupError("no such thing")
    return ring_attention(q, k, v, group, **options)


def shards(ranks=2):
    x = packed(torch.zeros(1, 1, 4, 16, dtype=torch.float16))
    return [[x] * 3] * ranks


OPTIONS = {"seqlen_q": 8, "seqlen_k": 8, "scheme": "contiguous"}


@pytest.mark.parametrize(
    ("local", "told", "error", "patience"),
    [
        (sleeping, r"rank 0, 1 of 2 did not answer in 5 s", RanksLost, 5),
        (dying, r"rank \d of 2 died", RanksLost, 60),
        (failing, "LookupError: no such thing", RuntimeError, 60),
    ],
)
def test_a_rank_that_hangs_dies_or_fails_ends_the_call_and_the_next_one_runs(
    local, told, error, patience
):
    began = time.monotonic()
    with pytest.raises(error, match=told):
        pool(current().kind).call(local, shards(), OPTIONS, patience=patience)
    assert time.monotonic() - began < 30
    assert len(pool(current().kind).call(ring_attention, shards(), OPTIONS)) == 2


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"seqlen_k": 9}, "rows of k: expected 5 of 9 on rank 1 of 2, contiguous, got 4"),
        ({"scheme": "brick"}, "scheme: expected 'contiguous' or 'zigzag', got 'brick'"),
        ({"causal": 1}, "causal: expected True or False, got 1"),
        ({"q_offset": None}, "q_offset: expected an int, the same for all sequences, got None"),
        ({"partial_dtype": torch.bfloat16}, "partial_dtype: expected torch.float32 or"),
        ({"causal": True, "q_offset": 2**31 - 1}, "q_offset: expected a number of 32 bits less"),
    ],
)
def test_bad_input_is_refused_in_the_rank_before_anything_is_sent(change, told):
    with pytest.raises((TypeError, ValueError), match=told):
        pool(current().kind).call(ring_attention, shards(), {**OPTIONS, **change})


def slow(q, k, v, group, **options):
    time.sleep(2)
    return ring_attention(q, k, v, group, **options)


def test_an_interrupted_call_leaves_no_answers_for_the_next_one():
    def interrupt(*_):
        raise KeyboardInterrupt

    ones = [[packed(torch.ones(1, 1, 4, 16, dtype=torch.float16))] * 3] * 2
    pool(current().kind)  # started, so that the alarm meets the call
    old = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(KeyboardInterrupt):
            pool(current().kind).call(slow, ones, OPTIONS)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    first = pool(current().kind).call(ring_attention, shards(), OPTIONS)[0]
    assert not unpacked(first[0], current().kind).any()  # of zeros, not of ones


def test_ranks_of_another_kind_of_device_are_refused():
    other = {"cpu": "cuda", "cuda": "cpu"}[current().kind]
    with pytest.raises(ValueError, match=f"device: expected {current().kind}, .*, got {other}"):
        pool(other)


def test_ranks_beyond_the_pool_are_refused():
    x = torch.zeros(1, 1, 8, 16, dtype=torch.float16, device=current().kind)
    with pytest.raises(ValueError, match="ranks: expected 1 to 4, got 5"):
        on_ranks(ring_attention, x, x, x, ranks=5, scheme="contiguous")


def test_states_in_sixteen_bits_are_worse_and_within_what_they_declare():
    rng = np.random.default_rng(3)
    numbers = torch.from_numpy(rng.standard_normal((3, 1, 2, 40, 16)))
    x = list(numbers.bfloat16().to(current().kind))
    outs = [
        on_ranks(ring_attention, *x, ranks=4, scheme="contiguous", partial_dtype=dtype,
                 out_dtype=torch.float32)[0]
        for dtype in (torch.float32, torch.bfloat16)
    ]  # fmt: skip
    case = RingAttentionCase(
        ranks=4, dtype="bfloat16", out_dtype="float32", num_heads=2, num_kv_heads=2, seqlen_q=40,
        seqlen_k=40,
    )  # fmt: skip
    inputs = {n: to_numpy(t) for n, t in zip("qkv", x, strict=True)}
    promise = bundled("ring_attention", "triton").promise(case, current())
    accepted = []
    for dtype in ("float32", "bfloat16"):
        spent = CONTRACT.budget(case, inputs, {**promise, "partial": dtype})["out"]
        accepted.append([spent.accepts(to_numpy(out)) for out in outs])
    assert accepted == [[True, False], [True, True]]
