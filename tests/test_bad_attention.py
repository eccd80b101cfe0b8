"""Bad input to the attention kernels is refused before a launch; odd but legal input is not."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from attention_calls import HOME, drawn

from tightrope import attention_call
from tightrope.impls import attention as query_outer
from tightrope.impls import attention_key_outer as key_outer
from tightrope.validate_attention import check_attention

ATTENTIONS = pytest.mark.parametrize(
    "attend", [query_outer.attention, key_outer.attention], ids=["query outer", "key outer"]
)
Attend = Callable[..., tuple[torch.Tensor, torch.Tensor]]
WORDING = re.compile(r"^[^:]+: expected .+, got .+$", re.DOTALL)
BATCH, HEADS, KV_HEADS, ROWS, KEYS, DIM, DIM_V = 2, 4, 2, 3, 5, 16, 24


def good(**changes: Any) -> dict[str, Any]:
    """Arguments of a call that is right, but for the changes."""
    q, k, v = drawn(BATCH, HEADS, KV_HEADS, ROWS, KEYS, DIM, DIM_V)
    return {"q": q, "k": k, "v": v, **changes}


def like(*shape: int, dtype: str = "float16", device: str = HOME) -> torch.Tensor:
    return torch.zeros(shape, dtype=getattr(torch, dtype), device=device)


def wide(dim: int) -> dict[str, torch.Tensor]:
    return {"q": like(BATCH, HEADS, ROWS, dim), "k": like(BATCH, KV_HEADS, KEYS, dim)}


def offsets(*numbers: int, dtype: str = "int32") -> torch.Tensor:
    return torch.tensor(numbers, dtype=getattr(torch, dtype), device=HOME)


def nested(tensor: torch.Tensor, layout: torch.layout = torch.strided) -> torch.Tensor:
    return torch.nested.nested_tensor([*tensor], layout=layout)


BLOCKS: list[tuple[type[Exception], Any]] = [
    *((TypeError, wrong) for wrong in ([16, 16, 4, 1], True, 0, 3, "abcd", (16, 16, True, 1))),
    *((TypeError, wrong) for wrong in ((16.0, 16, 4, 1), offsets(16, 16, 4, 1))),
    *((ValueError, wrong) for wrong in ((), (16, 16), (-16, 16, 4, 1), (16, 0, 4, 1))),
    *((ValueError, wrong) for wrong in ((8, 16, 4, 1), (16, 24, 4, 1), (16, 16, 3, 1))),
    (ValueError, (16, 16, 4, 0)),
]
META = {n: t.to("meta") for n, t in good().items()}
LONG = like(1, 1, 1, DIM).expand(BATCH, KV_HEADS, 2**31, DIM)
LONG_V = like(1, 1, 1, DIM_V).expand(BATCH, KV_HEADS, 2**31, DIM_V)

CAP = {"softcap": 1024.5}

WRONG: dict[str, tuple[type[Exception], str, dict[str, Any]]] = {
    # what: error, argument named first, changes
    "no tensor": (TypeError, "q", {"q": [1.0]}),
    "three axes": (ValueError, "q.shape", {"q": like(HEADS, ROWS, DIM)}),
    "integers": (TypeError, "q.dtype", {"q": like(BATCH, HEADS, ROWS, DIM, dtype="int32")}),
    "float64": (TypeError, "q.dtype", {"q": like(BATCH, HEADS, ROWS, DIM, dtype="float64")}),
    "k no tensor": (TypeError, "k", {"k": None}),
    "k of another dtype": (TypeError, "k.dtype", {"k": good()["k"].bfloat16()}),
    "v of another dtype": (TypeError, "v.dtype", {"v": good()["v"].float()}),
    "two batches": (ValueError, "k.shape", {"k": like(1, KV_HEADS, KEYS, DIM)}),
    "two widths": (ValueError, "k.shape", {"k": like(BATCH, KV_HEADS, KEYS, DIM + 1)}),
    "two lengths": (ValueError, "v.shape", {"v": like(BATCH, KV_HEADS, KEYS + 1, DIM_V)}),
    "k elsewhere": (ValueError, "k.device", {"k": META["k"]}),
    "v elsewhere": (ValueError, "v.device", {"v": META["v"]}),
    "heads no multiple": (ValueError, "num_heads", {"q": like(BATCH, 3, ROWS, DIM)}),
    "no heads": (ValueError, "num_heads", {"q": like(BATCH, 0, ROWS, DIM)}),
    "head_dim 0": (ValueError, "head_dim", wide(0)),
    "head_dim 257": (ValueError, "head_dim", wide(257)),
    "head_dim_v 257": (ValueError, "head_dim_v", {"v": like(BATCH, KV_HEADS, KEYS, 257)}),
    "too many keys": (ValueError, "seqlen_k", {"k": LONG, "v": LONG_V}),
    "scale a string": (TypeError, "softmax_scale", {"softmax_scale": "0.5"}),
    "scale True": (TypeError, "softmax_scale", {"softmax_scale": True}),
    "scale 0": (ValueError, "softmax_scale", {"softmax_scale": 0}),
    "scale negative": (ValueError, "softmax_scale", {"softmax_scale": -0.5}),
    "scale NaN": (ValueError, "softmax_scale", {"softmax_scale": float("nan")}),
    "scale infinite": (ValueError, "softmax_scale", {"softmax_scale": float("inf")}),
    "causal 1": (TypeError, "causal", {"causal": 1}),
    "window a number": (TypeError, "window_size", {"window_size": 3}),
    "window a tensor": (TypeError, "window_size", {"window_size": offsets(3, 0)}),
    "window an array": (TypeError, "window_size", {"window_size": np.array([3, 0])}),
    "window a list": (TypeError, "window_size", {"window_size": [3, None]}),
    "window of one": (ValueError, "window_size", {"window_size": (3,)}),
    "window negative": (ValueError, "window_size", {"window_size": (-1, 0)}),
    "window of floats": (TypeError, "window_size", {"window_size": (3.0, 0)}),
    "window of bools": (TypeError, "window_size", {"window_size": (None, True)}),
    "softcap 0": (ValueError, "softcap", {"softcap": 0.0}),
    "softcap negative": (ValueError, "softcap", {"softcap": -30.0}),
    "softcap above 1024": (ValueError, "softcap: expected None or a softcap in (0, 1024]", CAP),
    "softcap tiny": (ValueError, "softcap", {"softcap": 2.0**-61}),
    "softcap True": (TypeError, "softcap", {"softcap": True}),
    "softcap a tensor": (TypeError, "softcap", {"softcap": offsets(3)}),
    "offset a float": (TypeError, "q_offset", {"q_offset": 2.0}),
    "offset None": (TypeError, "q_offset", {"q_offset": None}),
    "offset of 33 bits": (ValueError, "q_offset", {"q_offset": 2**31}),
    "offset too few": (ValueError, "q_offset.shape", {"q_offset": offsets(1)}),
    "offset int64": (TypeError, "q_offset.dtype", {"q_offset": offsets(1, 2, dtype="int64")}),
    "offset elsewhere": (ValueError, "q_offset.device", {"q_offset": offsets(1, 2).to("meta")}),
    "bias a number": (TypeError, "bias", {"bias": 0.0}),
    "bias of two axes": (ValueError, "bias.shape", {"bias": like(ROWS, KEYS)}),
    "bias of kv heads": (ValueError, "bias.shape", {"bias": like(1, KV_HEADS, ROWS, KEYS)}),
    "bias boolean": (TypeError, "bias.dtype", {"bias": like(1, 1, ROWS, KEYS, dtype="bool")}),
    "bias elsewhere": (ValueError, "bias.device", {"bias": like(1, 1, 1, 1, device="meta")}),
    "sink of kv heads": (ValueError, "sink.shape", {"sink": like(KV_HEADS)}),
    "sink bfloat16": (TypeError, "sink.dtype", {"sink": like(HEADS, dtype="bfloat16")}),
    "sink elsewhere": (ValueError, "sink.device", {"sink": like(HEADS, device="meta")}),
    "out_dtype": (TypeError, "out_dtype", {"out_dtype": torch.bfloat16}),
    "out_dtype a string": (TypeError, "out_dtype", {"out_dtype": "float32"}),
    "validate 1": (TypeError, "validate", {"validate": 1}),
    "q sparse": (TypeError, "q.layout", {"q": good()["q"].to_sparse()}),
    "bias sparse": (TypeError, "bias.layout", {"bias": like(1, 1, ROWS, KEYS).to_sparse()}),
    "q nested": (TypeError, "q.layout", {"q": nested(good()["q"])}),
    "sink jagged": (TypeError, "sink.layout", {"sink": nested(like(HEADS, 1), torch.jagged)}),
    **{f"blocks {blocks}": (kind, "blocks", {"blocks": blocks}) for kind, blocks in BLOCKS},
}


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Programs of every launch of the kernels, whose memory of earlier calls is empty."""
    found: list[int] = []
    real = attention_call.launcher

    def watched(kernel: Any, device: Any, programs: int, *rest: Any) -> Callable[..., None]:
        launch = real(kernel, device, programs, *rest)

        def noted(*tensors: torch.Tensor) -> None:
            found.append(programs)
            launch(*tensors)

        return noted

    monkeypatch.setattr(attention_call, "launcher", watched)
    monkeypatch.setattr(attention_call, "_PLANS", {})
    return found


@ATTENTIONS
@pytest.mark.parametrize("what", WRONG)
def test_is_refused(attend: Attend, what: str, launches: list[int]) -> None:
    error, argument, changes = WRONG[what]
    with pytest.raises(error) as raised:
        attend(**good(**changes))
    assert WORDING.match(str(raised.value)), raised.value
    assert str(raised.value).startswith(argument), raised.value
    assert not launches


@ATTENTIONS
def test_the_call_that_the_cases_spoil_is_accepted(attend: Attend, launches: list[int]) -> None:
    out, lse = attend(**good())
    assert (out.shape, out.dtype) == ((BATCH, HEADS, ROWS, DIM_V), torch.float16)
    assert (lse.shape, lse.dtype) == ((BATCH, HEADS, ROWS), torch.float32)
    assert len(launches) == 1


@ATTENTIONS
def test_options_that_are_off_in_other_words_are_accepted(attend: Attend) -> None:
    for options in ({"window_size": None}, {"softmax_scale": 1}, {"softcap": 1024}):
        attend(**good(**options))


@ATTENTIONS
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ({"causal": True}, {"causal": 1}),
        ({"softmax_scale": 1}, {"softmax_scale": True}),
        ({"softcap": 1.0}, {"softcap": True}),
        ({"q_offset": 1}, {"q_offset": True}),
        ({"q_offset": 1}, {"q_offset": 1.0}),
        ({"window_size": (1, 0)}, {"window_size": (True, False)}),
        ({"blocks": (16, 16, 1, 1)}, {"blocks": (16, 16, True, 1)}),
    ],
)
def test_one_is_not_true_after_the_right_call_either(
    attend: Attend, right: dict[str, Any], wrong: dict[str, Any]
) -> None:
    attend(**good(**right))
    with pytest.raises(TypeError, match=rf"^{next(iter(wrong))}: expected"):
        attend(**good(**wrong))


@ATTENTIONS
@pytest.mark.parametrize("name", ["q", "k", "v", "bias", "sink"])
def test_recording_a_gradient_is_refused(attend: Attend, name: str) -> None:
    more = {"bias": like(1, 1, ROWS, 1), "sink": like(HEADS)}
    attend(**good(**more))  # what an earlier call left behind lets nothing through
    changed = {**good(**more)}
    changed[name] = changed[name].clone().requires_grad_()
    with pytest.raises(ValueError, match=r"^requires_grad: expected"):
        attend(**changed)
    with torch.no_grad():
        attend(**changed)


@ATTENTIONS
def test_tensors_without_memory_are_refused(attend: Attend) -> None:
    with pytest.raises(ValueError, match=r"^device: expected"):
        attend(**META)


@ATTENTIONS
@pytest.mark.parametrize("name", ["q", "bias", "q_offset"])
def test_a_pending_minus_is_refused(attend: Attend, name: str) -> None:
    changed = good(bias=like(1, 1, ROWS, 1), q_offset=offsets(1, 2))
    attend(**changed)
    changed[name] = torch._neg_view(changed[name])
    with pytest.raises(ValueError, match=r"^is_neg\(\): expected"):
        attend(**changed)


@pytest.mark.parametrize(
    ("dtype", "given", "error", "expected"),
    [
        ("float32", "tf32", ValueError, "ieee or tf32x3 for torch.float32, got tf32"),
        ("float16", "tf32x3", ValueError, "ieee for torch.float16, got tf32x3"),
        ("bfloat16", "tf32x3", ValueError, "ieee for torch.bfloat16, got tf32x3"),
        ("float32", None, TypeError, "ieee or tf32x3, got None"),
    ],
)
def test_another_dot_precision_is_refused(
    dtype: str, given: Any, error: type[Exception], expected: str
) -> None:
    tensors = drawn(BATCH, HEADS, KV_HEADS, ROWS, KEYS, DIM, DIM_V, dtype=dtype)
    with pytest.raises(error, match=f"^dot_precision: expected {expected}$"):
        query_outer.attention(*tensors, dot_precision=given)


@ATTENTIONS
def test_nothing_is_launched_without_rows(attend: Attend, launches: list[int]) -> None:
    attend(**good(q=like(BATCH, HEADS, 0, DIM)))
    assert not any(launches)


def test_checks_read_no_element() -> None:
    check_attention(**META, causal=True, bias=like(1, 1, 1, 1).to("meta"))
