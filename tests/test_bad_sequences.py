"""Bad input to the packed, paged, merging and rotating kernels: refused, or at least harmless.

What metadata shows is refused before a launch. What only elements show is refused on the CPU or
with validate=True; elsewhere kernels must not touch memory that is not theirs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from attention_calls import HOME, normal, same
from sequence_calls import int32, packed, paged

from tightrope import paged_call, rope_attention_call, sequence_call
from tightrope.impls import attention_varlen as varlen_module
from tightrope.impls import merge_attention as merge_module
from tightrope.impls.attention_paged import attention_paged
from tightrope.impls.attention_varlen import attention_varlen
from tightrope.impls.merge_attention import merge_attention
from tightrope.impls.rope_attention import rope_attention, rope_attention_rotated_k

WORDING = re.compile(r"^[^:]+: expected .+, got .+$", re.DOTALL)
LENGTHS = ((3, 20), (2, 5))
Wrong = dict[str, tuple[Callable[..., Any], dict[str, Any], type[Exception], str, dict[str, Any]]]


def zeros(*shape: int, dtype: str = "float16", device: str = HOME) -> torch.Tensor:
    return torch.zeros(shape, dtype=getattr(torch, dtype), device=device)


def rotating() -> dict[str, Any]:
    table = {n: normal(9, 4, dtype="float32") for n in ("cos", "sin")}
    tensors = {"q": zeros(2, 4, 3, 16), "k": zeros(2, 2, 5, 16), "v": zeros(2, 2, 5, 24)}
    places = {n: torch.arange(m, device=HOME) for n, m in (("q_positions", 3), ("k_positions", 5))}
    return {**tensors, **table, **places, "interleaved": False}


PACKED, PAGES, TURNS = packed(LENGTHS, spare=0), paged(packed(LENGTHS, spare=0), 8), rotating()
STATES = {"outs": zeros(3, 5, 16, dtype="float32"), "lses": zeros(3, 5, dtype="float32")}
TILES: dict[str, tuple[type[Exception], str, dict[str, Any]]] = {
    "tile a list": (TypeError, "blocks", {"blocks": [16, 16, 4, 1]}),
    "tile of two": (ValueError, "blocks", {"blocks": (16, 16)}),
    "tile negative": (ValueError, "blocks", {"blocks": (-16, 16, 4, 1)}),
}
WRONG_PACKED = {
    "no tensor": (TypeError, "q", {"q": 1.0}),
    "float64": (TypeError, "q.dtype", {"q": zeros(5, 4, 16, dtype="float64")}),
    "four axes": (ValueError, "q.shape", {"q": zeros(1, 5, 4, 16)}),
    "heads no multiple": (ValueError, "num_heads", {"q": zeros(5, 3, 16)}),
    "starts int64": (TypeError, "cu_seqlens_q.dtype", {"cu_seqlens_q": torch.arange(3)}),
    "starts missing": (ValueError, "cu_seqlens_q.shape", {"cu_seqlens_q": int32()}),
    "starts elsewhere": (ValueError, "cu_seqlens_q.device", {"cu_seqlens_q": int32(0).to("meta")}),
    "starts no 0": (ValueError, "cu_seqlens_q", {"cu_seqlens_q": int32(1, 3, 5)}),
    "starts that fall": (ValueError, "cu_seqlens_q", {"cu_seqlens_q": int32(0, 4, 3)}),
    "starts past the rows": (ValueError, "cu_seqlens_q", {"cu_seqlens_q": int32(0, 3, 6)}),
    "offset an int": (TypeError, "q_offset", {"q_offset": 3}),
    "offset too few": (ValueError, "q_offset.shape", {"q_offset": int32(3)}),
    "sink of kv heads": (ValueError, "sink.shape", {"sink": zeros(2)}),
    "causal 1": (TypeError, "causal", {"causal": 1}),
    "window negative": (ValueError, "window_size", {"window_size": (-1, None)}),
    "softcap 0": (ValueError, "softcap", {"softcap": 0.0}),
    "softcap above 1024": (ValueError, "softcap", {"softcap": 1025.0}),
    "q sparse": (TypeError, "q.layout", {"q": zeros(5, 4, 16).to_sparse()}),
    "starts sparse": (TypeError, "cu_seqlens_q.layout", {"cu_seqlens_q": int32(0, 3).to_sparse()}),
    **TILES,
    "out_dtype": (TypeError, "out_dtype", {"out_dtype": torch.bfloat16}),
}
TWO_V = zeros(25, 2, 257)
WRONG_VARLEN = {
    "k of another dtype": (TypeError, "k.dtype", {"k": zeros(25, 2, 16, dtype="bfloat16")}),
    "two widths": (ValueError, "k.shape", {"k": zeros(25, 2, 24)}),
    "two lengths": (ValueError, "v.shape", {"v": zeros(24, 2, 24)}),
    "head_dim_v 257": (ValueError, "head_dim_v", {"v": TWO_V}),
    "k elsewhere": (ValueError, "k.device", {"k": zeros(25, 2, 16, device="meta")}),
    "other sequences": (ValueError, "cu_seqlens_k.shape", {"cu_seqlens_k": int32(0, 20)}),
    "keys that fall": (ValueError, "cu_seqlens_k", {"cu_seqlens_k": int32(0, 20, 19)}),
    "keys past the last": (ValueError, "cu_seqlens_k", {"cu_seqlens_k": int32(0, 20, 26)}),
}
KEYS, VALUES = PAGES["k_cache"], PAGES["v_cache"]
NO_PAGES = {"k_cache": KEYS[:0], "v_cache": VALUES[:0]}
WRONG_PAGED = {
    "cache of three axes": (ValueError, "k_cache.shape", {"k_cache": KEYS[0]}),
    "two widths": (ValueError, "k_cache.shape", {"k_cache": KEYS[..., :8]}),
    "two page sizes": (ValueError, "v_cache.shape", {"v_cache": VALUES[:, :4]}),
    "no slots": (ValueError, "page_size", {"k_cache": KEYS[:, :0], "v_cache": VALUES[:, :0]}),
    "table int64": (TypeError, "block_table.dtype", {"block_table": zeros(2, 5, dtype="int64")}),
    "table too short": (ValueError, "block_table.shape", {"block_table": PAGES["block_table"][:1]}),
    "lengths too many": (ValueError, "cache_seqlens.shape", {"cache_seqlens": int32(1, 2, 3)}),
    "length negative": (ValueError, "cache_seqlens", {"cache_seqlens": int32(20, -1)}),
    "length past the table": (ValueError, "cache_seqlens", {"cache_seqlens": int32(20, 41)}),
    "page past the cache": (IndexError, "block_table", {"cache_seqlens": int32(20, 9)}),
    "page of no cache": (IndexError, "block_table: expected none", NO_PAGES),
    "splits 0": (ValueError, "splits", {"splits": 0}),
    "splits True": (TypeError, "splits", {"splits": True}),
}
WRONG_STATES = {
    "no tensor": (TypeError, "outs", {"outs": [0.0]}),
    "nested": (TypeError, "outs.layout", {"outs": torch.nested.nested_tensor([*STATES["outs"]])}),
    "tile of 3 rows": (ValueError, "blocks", {"blocks": (3, 4)}),
    "half": (TypeError, "outs.dtype", {"outs": zeros(3, 5, 16)}),
    "two axes": (ValueError, "outs.shape", {"outs": zeros(3, 16, dtype="float32")}),
    "six axes": (ValueError, "outs.shape", {"outs": zeros(3, 1, 1, 1, 5, 16, dtype="float32")}),
    "other rows": (ValueError, "lses.shape", {"lses": zeros(3, 4, dtype="float32")}),
    "lses elsewhere": (ValueError, "lses.device", {"lses": STATES["lses"].to("meta")}),
    "head_dim 0": (ValueError, "head_dim", {"outs": zeros(3, 5, 0, dtype="float32")}),
}
NINE = zeros(9, 9, dtype="float32")
NO_ROWS = dict.fromkeys(("cos", "sin"), NINE[:0, :4])
WRONG_TURNS = {
    "interleaved 1": (TypeError, "interleaved", {"interleaved": 1}),
    "rotary_dim above": (ValueError, "rotary_dim", {"cos": NINE, "sin": NINE}),
    "sin of another width": (ValueError, "sin.shape", {"sin": NINE}),
    "sin of another dtype": (TypeError, "sin.dtype", {"sin": zeros(9, 4)}),
    "table elsewhere": (ValueError, "cos.device", {"cos": TURNS["cos"].to("meta")}),
    "float positions": (TypeError, "q_positions.dtype", {"q_positions": zeros(3)}),
    "keys' positions": (ValueError, "q_positions.shape", {"q_positions": TURNS["k_positions"]}),
    "three axes": (ValueError, "k_positions.shape", {"k_positions": zeros(1, 1, 5, dtype="int32")}),
    "row of no table": (IndexError, "q_positions: expected none", NO_ROWS),
    "cos sparse": (TypeError, "cos.layout", {"cos": TURNS["cos"].to_sparse()}),
    "softcap above 1024": (ValueError, "softcap", {"softcap": 1025.0}),
    **TILES,
    "row past the table": (IndexError, "q_positions", {"q_positions": int32(0, 9, 1)}),
    "row negative": (IndexError, "k_positions", {"k_positions": int32(0, 1, 2, 3, -1)}),
    "offset None": (TypeError, "q_offset", {"q_offset": None}),
    "bad causal": (TypeError, "causal", {"causal": None}),
}
WRONG: Wrong = {
    f"{name}: {what}": (kernel, good, *wrong)
    for name, kernel, good, cases in (
        ("varlen", attention_varlen, PACKED, {**WRONG_PACKED, **WRONG_VARLEN}),
        ("paged", attention_paged, PAGES, {**WRONG_PACKED, **WRONG_PAGED}),
        ("merge", merge_attention, STATES, WRONG_STATES),
        ("copy-free", rope_attention, TURNS, WRONG_TURNS),
        ("rotated k", rope_attention_rotated_k, TURNS, WRONG_TURNS),
    )
    for what, wrong in cases.items()
}


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Programs of every launch of the kernels, whose memory of earlier calls is empty."""
    found: list[int] = []
    real = sequence_call.launcher

    def watched(kernel: Any, device: Any, programs: int, *rest: Any, **more: Any) -> Any:
        launch = real(kernel, device, programs, *rest, **more)
        return lambda *tensors: (found.append(programs), launch(*tensors))

    for module in (sequence_call, paged_call, merge_module):
        monkeypatch.setattr(module, "launcher", watched)
    monkeypatch.setattr(sequence_call, "_PLANS", {})
    return found


@pytest.mark.parametrize("what", WRONG)
def test_is_refused(what: str, launches: list[int]) -> None:
    kernel, good, error, argument, changes = WRONG[what]
    values = {} if kernel is merge_attention else {"validate": True}
    with pytest.raises(error) as raised:
        kernel(**{**good, **values, **changes})
    assert WORDING.match(str(raised.value)), raised.value
    assert re.match(rf"{argument}\b", str(raised.value)), raised.value
    assert not launches


def test_the_calls_that_the_cases_spoil_are_accepted(launches: list[int]) -> None:
    for kernel, good, count in (
        (attention_varlen, PACKED, 1), (attention_paged, PAGES, 1), (merge_attention, STATES, 1),
        (rope_attention, TURNS, 1), (rope_attention_rotated_k, TURNS, 2),
    ):  # fmt: skip
        launches.clear()
        kernel(**good)
        assert len(launches) == count


@pytest.mark.parametrize("what", ["varlen", "paged", "merge", "rotating"])
def test_tensors_that_are_more_or_less_than_memory_are_refused(what: str) -> None:
    kernel, good = {
        "varlen": (attention_varlen, {**PACKED, "q_offset": int32(0, 1)}),
        "paged": (attention_paged, {**PAGES, "q_offset": int32(0, 1)}),
        "merge": (merge_attention, STATES),
        "rotating": (rope_attention, {**TURNS, "q_offset": int32(0, 1)}),
    }[what]
    for name, tensor in [pair for pair in good.items() if torch.is_tensor(pair[1])]:
        with pytest.raises(ValueError, match=r"^is_neg\(\): expected"):
            kernel(**{**good, name: torch._neg_view(tensor)})
        if tensor.is_floating_point():
            with pytest.raises(ValueError, match=r"^requires_grad: expected"):
                kernel(**{**good, name: tensor.clone().requires_grad_()})
    meta = {n: t.to("meta") if torch.is_tensor(t) else t for n, t in good.items()}
    with pytest.raises(ValueError, match=r"^device: expected"):
        kernel(**meta)


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elements are not looked at, as on a GPU."""
    for module in (varlen_module, paged_call):
        monkeypatch.setattr(module, "check_starts_values", lambda *_: None)
    monkeypatch.setattr(paged_call, "check_cache_values", lambda *_: None)
    monkeypatch.setattr(rope_attention_call, "check_position_values", lambda *_: None)


FAR = 2**30


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("wild", [(0, 4, 3), (5, 0, 5), (-FAR, FAR, FAR), (FAR, -FAR, 2)])
def test_wild_starts_touch_nothing_outside(wild: tuple[int, int, int]) -> None:
    """An address that followed these numbers would lie in no memory of this process."""
    for name in ("cu_seqlens_q", "cu_seqlens_k"):
        out, lse = attention_varlen(**{**PACKED, name: int32(*wild)})
        assert (out.shape, lse.shape) == ((5, 4, 24), (4, 5))
    attention_paged(**{**PAGES, "cu_seqlens_q": int32(*wild)}, splits=2)
    attention_paged(**{**PAGES, "cache_seqlens": int32(*wild[:2])})


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("page", [-1, 6, FAR, -FAR, 2**31 - 1])
@pytest.mark.parametrize("splits", [1, 2])
def test_keys_of_a_page_out_of_range_count_as_masked(page: int, splits: int) -> None:
    """The second sequence has one page; without it, it has no key."""
    assert len(KEYS) == 6
    table = PAGES["block_table"].clone()
    table[1, 0] = page
    out, lse = attention_paged(**{**PAGES, "block_table": table}, splits=splits)
    usual = attention_paged(**PAGES, splits=splits)
    assert same([out[:3], lse[:, :3]], [usual[0][:3], usual[1][:, :3]])
    assert not out[3:].any()
    assert (lse[:, 3:] == -float("inf")).all()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("rotating", [rope_attention, rope_attention_rotated_k])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("row", [-1, 9, FAR, -FAR])
def test_a_row_outside_the_table_turns_by_0(rotating: Any, interleaved: bool, row: int) -> None:
    given = {**TURNS, "q": normal(2, 4, 3, 16), "k": normal(2, 2, 5, 16), "v": normal(2, 2, 5, 24)}
    given["interleaved"] = interleaved
    table = {"cos": TURNS["cos"].clone(), "sin": TURNS["sin"].clone()}
    table["cos"][8], table["sin"][8] = 1.0, 0.0
    places = {"q_positions": (0, 8, 2), "k_positions": (8, 1, 2, 3, 8)}
    usual = rotating(**{**given, **table, **{n: int32(*p) for n, p in places.items()}})
    outside = {n: int32(*(row if i == 8 else i for i in p)) for n, p in places.items()}
    assert same(rotating(**{**given, **table, **outside}), usual)
