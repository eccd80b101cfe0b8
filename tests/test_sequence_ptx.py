"""Facts that budgets rely on, read off the PTX of the packed, paged, merging and rotating kernels.

Run as a program, as test_ptx.py, this file prints {variant: PTX} as JSON.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_ptx import TARGETS, _compile

import tightrope

BUILD: dict[str, Any] = {
    "UNIT": 8, "PADDED": False, "BLOCK_D": 64, "BLOCK_DV": 64, "BLOCK_M": 64, "BLOCK_N": 32,
}  # fmt: skip
GENERAL = {"UNIT": 1, "PADDED": True, "BLOCK_M": 16}
TURNING = {"SOFTCAP": False, "INTERLEAVED": False, "TURN_K": True}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    # variant, its first word a kernel: dtype, constants other than BUILD's
    "varlen": ("fp16", {"SOFTCAP": False}),
    "paged": ("bf16", {"SOFTCAP": False, "SPLIT": False}),
    "paged general": ("fp16", {**GENERAL, "SOFTCAP": True, "SPLIT": True}),
    "splits": ("fp16", {}),
    "states": ("fp32", {"BLOCK_ROWS": 16}),
    "rope": ("fp16", TURNING),
    "rope general": ("bf16", {**TURNING, **GENERAL, "INTERLEAVED": True}),
    "rope copied": ("fp16", {**TURNING, "TURN_K": False, "HALVES": True}),
    "turn": ("fp16", {"INTERLEAVED": False, "BLOCK_HEADS": 8}),
    "turn halves": ("fp16", {"INTERLEAVED": False, "BLOCK_HEADS": 8, "HALVES": True}),
}
POINTERS = {
    **dict.fromkeys(("offsets", "starts", "starts_q", "starts_k", "table", "lengths"), "*i32"),
    **dict.fromkeys(("sink", "lse", "state", "cos", "sin", "acc", "outs", "lses"), "*fp32"),
    **dict.fromkeys(("q_positions", "k_positions", "positions"), "*i64"),
}
WIDE = re.compile(r"cp\.async\.cg\.shared\.global|ld\.global\.v4\.b32")
DOTS = {80: "mma.sync", 90: "wgmma.mma_async", 100: "tcgen05.mma"}


def _kernels() -> dict[str, Any]:
    from tightrope.impls import attention_paged, attention_varlen, merge_attention, rope_attention

    return {
        "varlen": attention_varlen.varlen_kernel,
        "paged": attention_paged.paged_kernel,
        "splits": attention_paged.merge_kernel,
        "states": merge_attention.merge_kernel,
        "rope": rope_attention.rope_attention_kernel,
        "turn": rope_attention.turn_kernel,
    }


def _ptx(variant: str, target: int, **form: Any) -> str:
    dtype, changes = VARIANTS[variant]
    kernel, constants = _kernels()[variant.split()[0]], {**BUILD, **changes}
    tensors = dict.fromkeys(("q", "k", "v", "out", "turned_k"), f"*{dtype}")
    if constants.get("SPLIT"):
        tensors["out"] = "*fp32"
    constants = {n: v for n, v in constants.items() if n in kernel.arg_names}
    return _compile(kernel, {**POINTERS, **tensors}, constants, target, **form)


def main() -> None:
    found: dict[str, Any] = {
        f"{variant} sm_{target}": _ptx(variant, target)
        for target in TARGETS
        for variant in VARIANTS
    }
    found["ttir"] = [_ptx(v, 90, form="ttir") for v in ("varlen", "paged general", "rope general")]
    found["ttgir"] = [_ptx("rope general", target, form="ttgir") for target in TARGETS]
    found["specialized"] = [
        f"{name}: {p.name}"
        for name, kernel in _kernels().items()
        for p in kernel.params
        if not (p.is_constexpr or p.do_not_specialize)
    ]
    json.dump(found, sys.stdout)


@pytest.fixture(scope="module")
def ptx() -> dict[str, Any]:
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env["PYTHONPATH"] = os.pathsep.join([str(Path(tightrope.__file__).parents[1]), *sys.path])
    run = subprocess.run([sys.executable, __file__], env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def _of(ptx: dict[str, Any], *variants: str) -> dict[tuple[str, int], str]:
    return {(v, target): ptx[f"{v} sm_{target}"] for v in variants for target in TARGETS}


def test_dots_use_the_tensor_cores_of_the_target(ptx: dict[str, Any]) -> None:
    for (variant, target), text in _of(ptx, "varlen", "paged", "rope").items():
        assert DOTS[target] in text, (variant, target)


def test_exponentials_flush_and_quotients_are_within_two_ulp(ptx: dict[str, Any]) -> None:
    for place, text in _of(ptx, *[v for v in VARIANTS if not v.startswith("turn")]).items():
        assert set(re.findall(r"\bex2\.\S+", text)) == {"ex2.approx.ftz.f32"}, place
        assert set(re.findall(r"\bdiv\.\S+f32", text)) == {"div.full.f32"}, place


def test_a_rotation_rounds_products_and_sum_separately(ptx: dict[str, Any]) -> None:
    for place, text in _of(ptx, "turn").items():
        assert not re.search(r"fma\.rn\.(?:f32|f32x2)\b", text), place
        assert re.search(r"\bmul(?:\.rn)?\.f32", text), place


def test_aligned_builds_load_sixteen_bytes_a_thread(ptx: dict[str, Any]) -> None:
    """All but numbers of one a row: starts, lengths, pages, positions, offsets, sinks."""
    for place, text in _of(ptx, "varlen", "paged", "rope", "turn").items():
        assert WIDE.search(text), place
        assert not re.search(r"ld\.global\S*\.b16", text), place
        assert re.search(r"st\.global\.v4\.b32", text), place


def test_general_builds_assume_no_alignment(ptx: dict[str, Any]) -> None:
    for place, text in _of(ptx, "paged general", "rope general").items():
        assert not re.search(r"ld\.global\S*\.v[24]", text), place


def test_addresses_are_computed_in_64_bits(ptx: dict[str, Any]) -> None:
    for text in ptx["ttir"]:
        products = re.findall(r"arith\.muli .*: (tensor<\S+>)", text)
        assert len(products) > 3
        assert all(kind.endswith("i64>") for kind in products), set(products)


def test_turned_features_are_summed_in_the_order_of_loaded_ones(ptx: dict[str, Any]) -> None:
    """kWidth 4 would have mma.sync take features 0 to 3, 8 to 11, .. in its first step of 16."""
    for text in ptx["ttgir"]:
        assert "kWidth = 2" in text
        assert "kWidth = 4" not in text


def test_lengths_strides_and_addresses_cost_no_compilation(ptx: dict[str, Any]) -> None:
    assert ptx["specialized"] == []


if __name__ == "__main__":
    main()
