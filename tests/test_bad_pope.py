"""Bad input to the PoPE kernels: refused before a launch, with argument, expected and got."""

from __future__ import annotations

import math
import re
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from attention_calls import normal, same
from pope_calls import polar

from tightrope import pope_angles_call, sequence_call
from tightrope.implementation import bundled
from tightrope.impls.pope_attention import pope_attention
from tightrope.impls.pope_attention_expanded import pope_attention_expanded

WORDING = re.compile(r"^[^:]+: expected .+, got .+$", re.DOTALL)
GOOD = polar(delta=2, seqlen_q=3, seqlen_k=5)
FREQUENCIES, DELTA = GOOD["inv_freq"], GOOD["delta"]
KERNELS = {"light": pope_attention, "expanded": pope_attention_expanded}


def spoilt(tensor: torch.Tensor, number: float) -> torch.Tensor:
    found = tensor.clone()
    found[..., 3] = number
    return found


Wrong = dict[str, tuple[type[Exception], str, dict[str, Any]]]
WRONG: Wrong = {
    "no tensor": (TypeError, "q", {"q": 1.0}),
    "float64": (TypeError, "q.dtype", {"q": GOOD["q"].double()}),
    "k of another dtype": (TypeError, "k.dtype", {"k": GOOD["k"].bfloat16()}),
    "heads no multiple": (ValueError, "num_heads", {"q": GOOD["q"][:, :3]}),
    "frequencies a list": (TypeError, "inv_freq", {"inv_freq": [1.0] * 16}),
    "frequencies in half": (TypeError, "inv_freq.dtype", {"inv_freq": FREQUENCIES.half()}),
    "frequencies of heads": (ValueError, "inv_freq.shape", {"inv_freq": FREQUENCIES[None]}),
    "frequencies none": (ValueError, "rotary_dim", {"inv_freq": FREQUENCIES[:0]}),
    "rotary_dim above": (ValueError, "rotary_dim", {"inv_freq": normal(17).float().abs()}),
    "frequencies sparse": (TypeError, "inv_freq.layout", {"inv_freq": FREQUENCIES.to_sparse()}),
    "frequencies elsewhere": (
        ValueError, "inv_freq.device", {"inv_freq": FREQUENCIES.to("meta")},
    ),
    "delta a number": (TypeError, "delta", {"delta": 0.0}),
    "delta in half": (TypeError, "delta.dtype", {"delta": DELTA.half()}),
    "delta in double": (TypeError, "delta.dtype", {"delta": DELTA.double()}),
    "delta of all heads alike": (ValueError, "delta.shape", {"delta": DELTA[0]}),
    "delta of one head": (ValueError, "delta.shape", {"delta": DELTA[:1]}),
    "delta of fewer features": (ValueError, "delta.shape", {"delta": DELTA[:, :8]}),
    "delta elsewhere": (ValueError, "delta.device", {"delta": DELTA.to("meta")}),
    "positions in float": (
        TypeError, "q_positions.dtype", {"q_positions": GOOD["q_positions"].float()},
    ),
    "positions in int16": (
        TypeError, "k_positions.dtype", {"k_positions": GOOD["k_positions"].short()},
    ),
    "keys' positions": (ValueError, "q_positions.shape", {"q_positions": GOOD["k_positions"]}),
    "positions of one sequence": (
        ValueError, "k_positions.shape", {"k_positions": GOOD["k_positions"][None]},
    ),
    "three axes": (
        ValueError, "k_positions.shape", {"k_positions": GOOD["k_positions"][None, None]},
    ),
    "softcap 0": (ValueError, "softcap", {"softcap": 0.0}),
    "causal 1": (TypeError, "causal", {"causal": 1}),
    "sink of kv heads": (ValueError, "sink.shape", {"sink": normal(2)}),
    "out in bfloat16": (TypeError, "out_dtype", {"out_dtype": torch.bfloat16}),
    "tile a list": (TypeError, "blocks", {"blocks": [16, 16, 4, 1]}),
    "tile of two": (ValueError, "blocks", {"blocks": (16, 16)}),
    "validate 1": (TypeError, "validate", {"validate": 1}),
    "frequency 0": (ValueError, "inv_freq", {"inv_freq": spoilt(FREQUENCIES, 0.0)}),
    "frequency negative": (ValueError, "inv_freq", {"inv_freq": spoilt(FREQUENCIES, -1.0)}),
    "frequency nan": (ValueError, "inv_freq", {"inv_freq": spoilt(FREQUENCIES, math.nan)}),
    "frequency inf": (ValueError, "inv_freq", {"inv_freq": spoilt(FREQUENCIES, math.inf)}),
    "delta nan": (ValueError, "delta", {"delta": spoilt(DELTA, math.nan)}),
    "delta -inf": (ValueError, "delta", {"delta": spoilt(DELTA, -math.inf)}),
}  # fmt: skip
WAYS: Wrong = {
    "form unknown": (ValueError, "form", {"form": "fast"}),
    "half of bfloat16": (
        ValueError, "form",
        {"form": "half", **{n: GOOD[n].bfloat16() for n in ("q", "k", "v")}},
    ),
}  # fmt: skip
BROAD = polar(rotary_dim=120, head_dim=140, seqlen_q=3, seqlen_k=5)


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Stands for every launch of the kernels, whose plans of earlier calls are forgotten."""
    found = Mock()
    monkeypatch.setattr(sequence_call, "_PLANS", {})
    for module in (sequence_call, pope_angles_call):
        monkeypatch.setattr(module, "launcher", lambda *_, **__: found)
    return found


def _refused(kernel: Any, wrong: tuple[type[Exception], str, dict[str, Any]]) -> None:
    error, argument, changes = wrong
    with pytest.raises(error) as raised:
        kernel(**{**GOOD, "validate": True, **changes})
    assert WORDING.match(str(raised.value)), raised.value
    assert re.match(rf"{argument}\b", str(raised.value)), raised.value


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("what", WRONG)
def test_is_refused(name: str, what: str, launch: Mock) -> None:
    _refused(KERNELS[name], WRONG[what])
    assert not launch.called


@pytest.mark.parametrize("what", WAYS)
def test_a_way_that_there_is_not_is_refused(what: str, launch: Mock) -> None:
    _refused(pope_attention, WAYS[what])
    assert not launch.called


def test_rows_wider_than_attention_are_refused(launch: Mock) -> None:
    with pytest.raises(ValueError, match=r"^head_dim \+ rotary_dim: expected at most 256"):
        pope_attention_expanded(**BROAD)
    assert not launch.called
    pope_attention(**BROAD)
    assert launch.called


def test_the_calls_that_the_cases_spoil_are_accepted(launch: Mock) -> None:
    """Two tables and attention; the expansion, while attention is launched from elsewhere."""
    for kernel, count in ((pope_attention, 3), (pope_attention_expanded, 1)):
        launch.reset_mock()
        kernel(**GOOD)
        assert launch.call_count == count


@pytest.mark.parametrize("name", KERNELS)
def test_tensors_that_are_more_or_less_than_memory_are_refused(name: str) -> None:
    kernel = KERNELS[name]
    for what, tensor in GOOD.items():
        with pytest.raises(ValueError, match=r"^is_neg\(\): expected"):
            kernel(**{**GOOD, what: torch._neg_view(tensor)})
        if tensor.is_floating_point():
            with pytest.raises(ValueError, match=r"^requires_grad: expected"):
                kernel(**{**GOOD, what: tensor.clone().requires_grad_()})
    with pytest.raises(ValueError, match=r"^device: expected"):
        kernel(**{n: t.to("meta") for n, t in GOOD.items()})


@pytest.mark.parametrize("number", [math.nan, math.inf, -3.0e38])
def test_wild_numbers_touch_nothing_outside(number: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elements not looked at, as on a GPU: they choose words of 1/(2 pi), within the table."""
    monkeypatch.setattr("tightrope.pope_attention_call.check_values", lambda *_: None)
    monkeypatch.setattr("tightrope.pope_expand_call.check_values", lambda *_: None)
    wild = {"inv_freq": spoilt(FREQUENCIES, number), "delta": spoilt(DELTA, number)}
    for kernel in KERNELS.values():
        out, lse = kernel(**{**GOOD, **wild})
        assert (out.shape, lse.shape) == ((2, 4, 3, 16), (2, 4, 3))
        assert out.isfinite().all()
        usual = kernel(**GOOD)
        assert not same([out, lse], usual)


def test_a_bundled_kernel_that_there_is_not_is_named() -> None:
    assert bundled("attention", "triton").name == "triton"
    with pytest.raises(LookupError, match=r"registers no 'fast'; known: triton"):
        bundled("attention", "fast")
