"""Facts that the budgets of gradients rely on, read off the kernels' PTX; compiled without a GPU.

Run as a program, as test_ptx.py, this file prints {variant: PTX} as JSON.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest
from test_attention_ptx import DOTS, _of
from test_ptx import TARGETS, _compile

PLAIN: dict[str, Any] = {
    "GROUPED": False, "UNIT": 8, "PADDED": False, "SOFTCAP": False, "BLOCK_D": 64, "BLOCK_DV": 64,
    "OWN": 64, "WALKED": 64,
}  # fmt: skip
GENERAL = {"UNIT": 1, "PADDED": True, "OWN": 32, "WALKED": 32}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "keys": ("fp16", {"KEYS": True}),
    "keys general": ("fp16", {**GENERAL, "KEYS": True, "GROUPED": True}),
    "queries softcap": ("bf16", {"KEYS": False, "SOFTCAP": True}),
    "queries single": ("fp32", {"KEYS": False, "OWN": 16, "WALKED": 16}),
}


def _gradients(target: int, dtype: str, changes: dict[str, Any], **form: Any) -> str:
    from tightrope.impls.attention_backward import gradients_kernel

    names = (*(f"{x}_{n}" for x in ("own", "walked", "grad") for n in (1, 2)),)
    pointers = {**dict.fromkeys(names, f"*{dtype}"), "offsets": "*i32"}
    pointers |= {"delta": "*fp32", "shift": "*fp32"}
    return _compile(gradients_kernel, pointers, {**PLAIN, **changes}, target, **form)


def _rows(target: int) -> str:
    from tightrope.impls.attention_backward import rows_kernel

    pointers = {**dict.fromkeys(("out", "dout"), "*fp16"), **dict.fromkeys(_SUMS, "*fp32")}
    return _compile(rows_kernel, pointers, {"UNIT": 8, "BLOCK_DV": 64, "ROWS": 64}, target)


_SUMS = ("lse", "delta", "shift")


def _turned(target: int) -> str:
    """`rope`'s kernel as gradients take it."""
    from tightrope.impls.rope import rope_kernel

    kinds = {"cos": "*fp32", "sin": "*fp32", "positions": "*i64"}
    pointers = {**dict.fromkeys(("q", "k", "q_out", "k_out"), "*bf16"), **kinds}
    names = ("UNIT", "BLOCK_PAIRS", "BLOCK_TAIL", "BLOCK_TOKENS", "BLOCK_HEADS")
    sizes = dict(zip(names, (8, 64, 0, 4, 8), strict=True))
    constants = {**sizes, "INTERLEAVED": False, "TRANSPOSED": True}
    return _compile(rope_kernel, pointers, constants, target)


def main() -> None:
    from tightrope.impls import attention_backward as kernels

    found: dict[str, Any] = {}
    for target in TARGETS:
        for name, (dtype, changes) in VARIANTS.items():
            found[f"{name} sm_{target}"] = _gradients(target, dtype, changes)
        found[f"rows sm_{target}"] = _rows(target)
        found[f"rope sm_{target}"] = _turned(target)
    found["ttir"] = _gradients(90, "fp16", {**VARIANTS["keys general"][1]}, form="ttir")
    found["specialized"] = [
        f"{kernel.__name__}: {p.name}"
        for kernel in (kernels.rows_kernel, kernels.gradients_kernel)
        for p in kernel.params
        if not (p.is_constexpr or p.do_not_specialize)
    ]
    json.dump(found, sys.stdout)


@pytest.fixture(scope="module")
def ptx() -> dict[str, Any]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TRITON_INTERPRET": "0"}
    return dict(json.loads(subprocess.check_output([sys.executable, __file__], env=env)))


def _passes(ptx: dict[str, Any]) -> dict[tuple[str, int], str]:
    return _of(ptx, "keys") | _of(ptx, "queries")


def test_dots_of_16_bits_use_the_tensor_cores_of_the_target(ptx: dict[str, Any]) -> None:
    for (variant, target), text in _passes(ptx).items():
        if variant == "queries single":
            assert not re.search(r"\b(?:mma\.sync|wgmma|tcgen05\.mma)", text)
        elif variant != "keys general" or target == 80:  # 32 keys are no tile of the later ones'
            assert DOTS[target] in text, (variant, target)


def test_exponentials_flush_and_quotients_are_within_two_ulp(ptx: dict[str, Any]) -> None:
    for place, text in _passes(ptx).items():
        assert set(re.findall(r"\bex2\.\S+", text)) == {"ex2.approx.ftz.f32"}, place
        capped = "softcap" in place[0]
        assert set(re.findall(r"\bdiv\.\S+f32", text)) == ({"div.full.f32"} if capped else set())
        assert not re.search(r"\b(?:lg2|tanh)\.approx", text), place


def test_only_the_exponent_is_fused(ptx: dict[str, Any]) -> None:
    """One fma an element of a score tile, none with a cap, whose logits are products."""
    fused = r"\bfma\.rn\.(?:f32|f32x2)\b"
    for (variant, target), text in _passes(ptx).items():
        count = len(re.findall(fused, text))
        if variant == "queries softcap":
            assert not count, target
        elif variant == "keys":  # a tile of 64 x 64 for 256 threads
            assert count, target
            assert count % (64 * 64 // 256) == 0 or "f32x2" in text, (variant, target)
    for target in TARGETS:
        assert not re.search(fused, ptx[f"rows sm_{target}"])


def test_float32_arithmetic_keeps_subnormals(ptx: dict[str, Any]) -> None:
    for place, text in (_passes(ptx) | _of(ptx, "rows")).items():
        assert not re.search(r"\b(?:add|sub|mul|max)\S*\.ftz", text), place


def test_aligned_builds_move_sixteen_bytes_a_thread(ptx: dict[str, Any]) -> None:
    for (variant, target), text in _passes(ptx).items():
        if "general" in variant:
            assert not re.search(r"(?:ld|st)\.global\.v", text), target
        elif variant in ("keys", "queries softcap"):
            copies = re.findall(r"cp\.async\.\S+ +\[[^\]]*\], \[[^\]]*\], (0x\w+)", text)
            assert copies.count("0x10") >= 4, (variant, target)
            assert "st.global.v4.b32" in text, (variant, target)


def test_no_gradient_is_added_by_atomics(ptx: dict[str, Any]) -> None:
    for place, text in _passes(ptx).items():
        assert not re.search(r"\b(?:atom|red)\.", text), place


def test_addresses_are_computed_in_64_bits(ptx: dict[str, Any]) -> None:
    offsets = re.findall(r"tt\.addptr .*, (\S+) loc", ptx["ttir"])
    assert len(offsets) > 12
    # Of the gradients, where they are stored, and of delta and shift, behind their heads.
    within_a_row = {"tensor<32x64xi32>", "tensor<32xi32>"}
    assert {kind for kind in offsets if not re.search(r"i64>?$", kind)} == within_a_row
    products = re.findall(r"arith\.muli .*: (\S+)", ptx["ttir"])
    assert {kind for kind in products if "i32" in kind} <= {"i32"}  # of scalars: tiles, programs


def test_a_rotation_s_gradient_rounds_products_and_sum_separately(ptx: dict[str, Any]) -> None:
    for (_, target), text in _of(ptx, "rope").items():
        assert not re.search(r"\bfma\.rn", text), target
        assert text.count("mul.f32") or "mul.rn.f32" in text, target


def test_lengths_strides_and_addresses_cost_no_compilation(ptx: dict[str, Any]) -> None:
    assert ptx["specialized"] == []


if __name__ == "__main__":
    main()
