"""Kernels that cheat, stray or return strange things; right ones that must not be blamed."""

from __future__ import annotations

import math
import os
import unittest

import numpy as np
import pytest
import torch

from tightrope import blackbox
from tightrope.arena import MemoryFault
from tightrope.budget import Violation
from tightrope.device import prepare, run
from tightrope.frozen import freeze, text, thaw
from tightrope.implementation import Implementation, resolve
from tightrope.law import check_case
from tightrope.ledger import Ledger
from tightrope.oracles.rope import CONTRACT, RopeCase


@pytest.fixture(autouse=True)
def _own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("TIGHTROPE_STATE", str(tmp_path))
    monkeypatch.setattr(blackbox, "_descriptor", None)
    prepare("cpu")


def rotated(q, k, cos, sin, positions, make=torch.empty_like):
    c, s = (t[positions.long()].float()[:, None] for t in (cos, sin))
    half, outs = c.shape[-1], []
    for x in (q, k):
        y, a, b = make(x), x[..., :half].float(), x[..., half : 2 * half].float()
        y[..., :half], y[..., half : 2 * half] = a * c - b * s, b * c + a * s
        y[..., 2 * half :] = x[..., 2 * half :]
        outs.append(y)
    return outs


def check(kernel, **fields):
    """What `test_matches_oracle` does, for a kernel(q, k, cos, sin, positions)."""

    def adapter(*tensors, interleaved, inplace=False):
        return kernel(*tensors)

    shape = {"tokens": 3, "num_heads": 2, "num_kv_heads": 2, "head_dim": 16, "rotary_dim": 8}
    case = RopeCase(**{**shape, "dtype": "float16", **fields})
    impl = Implementation(contract_name="rope", name="attack", fn=adapter)
    inputs = CONTRACT.inputs(case)
    check_case(impl, case, inputs, impl(case, inputs))


RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID") or str(os.getpid())
MAKERS = {
    "empty": torch.empty_like,
    "empty with out": lambda x: torch.empty(x.shape, out=x.new_empty(0)),
    "empty_permuted": lambda x: torch.empty_permuted(
        x.shape, (1, 0, 2), dtype=x.dtype, device=x.device
    ),
    "zeros": torch.zeros_like,
    "full": lambda x: torch.full(x.shape, 7.0, dtype=x.dtype, device=x.device),
    "new_ones": lambda x: x.new_ones(x.shape),
    "clone": torch.clone,
    "method clone": lambda x: x.clone(),
    "parameter": lambda x: torch.nn.Parameter(torch.empty_like(x), requires_grad=False),
}


@pytest.mark.parametrize("maker", MAKERS)
def test_a_right_kernel_is_right_however_it_makes_its_outputs(maker):
    check(lambda *t: rotated(*t, make=MAKERS[maker]))


def test_a_right_kernel_may_return_what_has_a_gradient():
    check(lambda *t: [y.requires_grad_() for y in rotated(*t)])


@pytest.mark.parametrize("maker", ["empty", "zeros", "full", "new_ones", "method clone"])
@pytest.mark.parametrize("away", [0, 1000, 9000])
def test_a_stray_write_is_seen_near_and_far_from_any_output(maker, away):
    def astray(*tensors):
        q, k = rotated(*tensors, make=MAKERS[maker])
        torch.as_strided(k, (1,), (1,), k.storage_offset() + k.numel() + away).fill_(1.0)
        return q, k

    with pytest.raises(MemoryFault, match=f"{2 * away} bytes after an output of 192 bytes"):
        check(astray)


def test_inputs_and_unwritten_outputs_do_not_hide_behind_dlpack():
    with pytest.raises(MemoryFault, match="shares memory with an input"):
        check(lambda q, k, *_: (torch.from_dlpack(q), torch.from_dlpack(k)))
    with pytest.raises(MemoryFault, match="never written"):
        check(lambda q, k, *_: [torch.from_dlpack(torch.empty_like(x)) for x in (q, k)])


@pytest.mark.parametrize(
    "made",
    [
        torch.ones(3, 2, 15, dtype=torch.uint8),
        torch.ones(3, 2, 16, dtype=torch.float8_e4m3fn),
        torch.ones(3, 2, 16, dtype=torch.float16, device="meta"),
        torch.ones(3, 2, 16, dtype=torch.float16).to_sparse(),
    ],
)
def test_a_strange_tensor_is_a_finding_not_an_internal_error(made):
    with pytest.raises(Violation, match=r"q is a torch.*, expected a strided one of float64"):
        check(lambda *_: (made, made))


@pytest.mark.parametrize("skip", [unittest.SkipTest("no"), pytest.skip.Exception("no")])
def test_a_kernel_cannot_skip_a_case_within_its_limits(skip):
    def refuse(*_):
        raise skip

    with pytest.raises(Violation, match="on a case within its limits"):
        check(refuse)


@pytest.mark.parametrize("layout", ["contiguous", "packed", "sliced"])
@pytest.mark.parametrize("tokens", [0, 1, 3])
def test_in_place_may_return_a_view_of_the_same_elements(layout, tokens):
    def kernel(q, k, *rest):
        for x, y in zip((q, k), rotated(q, k, *rest), strict=True):
            x.copy_(y)
        return [x.unsqueeze(0).squeeze(0).view(x.shape) for x in (q, k)]

    check(kernel, inplace=True, layout_q=layout, layout_k=layout, tokens=tokens)


def test_a_case_that_failed_is_not_taken_for_one_that_runs():
    with pytest.raises(Violation, match="returned"):
        check(lambda *_: None)
    assert blackbox.last("main", RUN) is None


def test_a_record_of_an_earlier_run_is_no_record():
    impl = Implementation(contract_name="rope", name="x", fn=print)
    blackbox.record(impl, RopeCase())
    assert blackbox.last(blackbox.worker(), RUN) is not None
    assert blackbox.last(blackbox.worker(), "another run") is None


def test_any_drawn_value_can_be_recorded():
    blackbox.about(law="x", drawn={"case": freeze(RopeCase()), "n": np.int64(3), "s": {1.5}})
    impl = Implementation(contract_name="rope", name="x", fn=print)
    blackbox.record(impl, RopeCase())
    assert blackbox.last(blackbox.worker(), RUN)["drawn"]["n"] == 3


def test_json_is_strict_and_gives_back_what_was_drawn():
    assert text({"share": math.inf, "x": [math.nan, np.float32(2)]}) == (
        '{"share": "inf", "x": ["nan", 2.0]}'
    )
    assert thaw([1, [2, [3]]], CONTRACT) == (1, (2, (3,)))
    assert thaw(freeze(RopeCase(tokens=5)), CONTRACT) == RopeCase(tokens=5)


def test_a_report_to_a_device_file_does_not_replace_it(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    blackbox.write_atomically(tmp_path / "pipe", "text")
    assert os.read(reader, 9) == b"text"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()


def test_contradictory_limits_are_reported_with_the_decorators_place():
    limits = {"head_dim": (16,), "rotary_dim": (64,)}
    impl = Implementation(
        contract_name="rope", name="x", fn=print, source="adapter.py:7", limits=limits
    )
    with pytest.raises(ValueError, match=r"adapter.py:7: .*'x': no combination"):
        resolve(impl)


def test_shrinking_ends_but_what_failed_is_still_seen_to_fail():
    book = Ledger(deadline=0.0, end=0.0)
    book.begin({"case": RopeCase(tokens=3)})
    book.fail()
    assert not book.tired({"case": RopeCase(tokens=1)})
    book.shrink_until = 0.0
    assert book.tired({"case": RopeCase(tokens=1)})
    assert not book.tired({"case": RopeCase(tokens=3)})


def test_running_never_leaves_guarded_memory_to_what_may_be_resized():
    impl = Implementation(contract_name="rope", name="x", fn=lambda *t, **_: rotated(*t))
    case = RopeCase(tokens=0, dtype="float32")
    assert run(impl, case, CONTRACT.inputs(case))["q"].shape == (0, 1, 16)
