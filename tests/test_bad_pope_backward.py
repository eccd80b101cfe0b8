"""Bad input to the gradients of PoPE attention: refused before a launch."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
import torch
from attention_calls import normal
from pope_calls import polar
from test_attention_backward_kernels import NAN, TILE
from test_bad_pope import WORDING, spoilt
from test_bad_pope import launch as launch

from tightrope import pope_backward_call
from tightrope.attention_backward_tiles import Tile
from tightrope.impls.pope_attention_backward import pope_attention_backward

GOOD = polar(delta=2, seqlen_q=3, seqlen_k=5)
SHAPE = (2, 4, 3, 16)
GOOD |= {"dout": normal(*SHAPE), "out": normal(*SHAPE)}
GOOD |= {"lse": normal(*SHAPE[:3], dtype="float32"), "validate": True}
WRONG: dict[str, tuple[type[Exception], str, dict[str, Any]]] = {
    "no tensor": (TypeError, "dout", {"dout": 1.0}),
    "dout of another dtype": (TypeError, "dout.dtype", {"dout": normal(*SHAPE).bfloat16()}),
    "out of other rows": (ValueError, "out.shape", {"out": normal(2, 4, 2, 16)}),
    "lse in 16 bits": (TypeError, "lse.dtype", {"lse": normal(*SHAPE[:3])}),
    "lse of kv heads": (ValueError, "lse.shape", {"lse": normal(2, 2, 3, dtype="float32")}),
    "k elsewhere": (ValueError, "k.device", {"k": GOOD["k"].to("meta")}),
    "frequencies in half": (TypeError, "inv_freq.dtype", {"inv_freq": GOOD["inv_freq"].half()}),
    "frequencies none": (ValueError, "rotary_dim", {"inv_freq": GOOD["inv_freq"][:0]}),
    "a frequency 0": (ValueError, "inv_freq", {"inv_freq": spoilt(GOOD["inv_freq"], 0.0)}),
    "delta of one head": (ValueError, "delta.shape", {"delta": GOOD["delta"][:1]}),
    "delta nan": (ValueError, "delta", {"delta": spoilt(GOOD["delta"], NAN)}),
    "keys' positions": (ValueError, "q_positions.shape", {"q_positions": GOOD["k_positions"]}),
    "softcap 0": (ValueError, "softcap", {"softcap": 0.0}),
    "q_offset": (TypeError, "q_offset", {"q_offset": 1.0}),
    "out in bfloat16": (TypeError, "out_dtype", {"out_dtype": torch.bfloat16}),
    "one tile": (ValueError, "blocks", {"blocks": (TILE,)}),
    "an odd tile": (ValueError, "blocks", {"blocks": (TILE, Tile(24, 16, 4, 1))}),
    "autograd": (ValueError, "requires_grad", {"delta": GOOD["delta"].clone().requires_grad_()}),
}


@pytest.mark.parametrize("what", WRONG)
def test_bad_input_is_refused(what: str, launch: Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pope_backward_call, "launcher", lambda *_, **__: launch)
    error, argument, changes = WRONG[what]
    with pytest.raises(error) as raised:
        pope_attention_backward(**{**GOOD, **changes})
    assert WORDING.match(str(raised.value)), raised.value
    assert str(raised.value).startswith(argument), raised.value
    assert not launch.called
