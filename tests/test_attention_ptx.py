"""Facts that attention budgets rely on, read off the kernels' PTX; compiled without a GPU.

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

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    # variant: dtype, constants other than those of the plain aligned build
    "aligned": ("fp16", {}),
    "aligned softcap": ("bf16", {"SOFTCAP": True}),
    "general": ("fp16", {"UNIT": 1, "PADDED": True, "BLOCK_M": 64, "BLOCK_N": 32}),
    "single": ("fp32", {"BLOCK_M": 16, "BLOCK_N": 32}),
    "tf32x3": ("fp32", {"BLOCK_M": 16, "BLOCK_N": 32, "PRECISION": "tf32x3"}),
}
PLAIN: dict[str, Any] = {
    "UNIT": 8, "PADDED": False, "SOFTCAP": False, "BIAS": False, "PRECISION": "ieee",
    "BLOCK_D": 64, "BLOCK_DV": 64, "BLOCK_M": 128, "BLOCK_N": 64,
}  # fmt: skip
# Dot instructions of 16-bit operands by architecture.
DOTS = {80: "mma.sync", 90: "wgmma.mma_async", 100: "tcgen05.mma"}


def _attention(name: str, target: int, dtype: str, changes: dict[str, Any], **form: Any) -> str:
    from tightrope.impls.attention import attention_kernel
    from tightrope.impls.attention_key_outer import key_outer_kernel

    pointers = dict.fromkeys(("q", "k", "v", "out"), f"*{dtype}")
    pointers |= dict.fromkeys(("bias", "sink", "lse", "scratch"), "*fp32") | {"offsets": "*i32"}
    kernel = key_outer_kernel if name == "key outer" else attention_kernel
    return _compile(kernel, pointers, {**PLAIN, **changes}, target, **form)


def main() -> None:
    from tightrope.impls.attention import attention_kernel
    from tightrope.impls.attention_key_outer import key_outer_kernel

    found: dict[str, Any] = {}
    for target in TARGETS:
        for name, (dtype, changes) in VARIANTS.items():
            found[f"{name} sm_{target}"] = _attention(name, target, dtype, changes)
        outer = {"UNIT": 1, "PADDED": True, "BLOCK_M": 64, "BLOCK_N": 32}
        found[f"key outer sm_{target}"] = _attention("key outer", target, "fp16", outer)
    found["control fused"] = _attention("", 90, "bf16", {"SOFTCAP": True}, fused=True)
    found["ttir"] = _attention("", 90, "fp16", {"UNIT": 1, "PADDED": True}, form="ttir")
    found["specialized"] = [
        f"{kernel.__name__}: {p.name}"
        for kernel in (attention_kernel, key_outer_kernel)
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


def _of(ptx: dict[str, Any], words: str = "") -> dict[tuple[str, int], str]:
    """PTX by variant and target, of the variants that begin with `words`."""
    chosen = {}
    for name, text in ptx.items():
        variant, _, target = name.rpartition(" sm_")
        if variant and variant.startswith(words):
            assert f".target sm_{target}" in text
            chosen[variant, int(target)] = text
    assert {target for _, target in chosen} == set(TARGETS)
    return chosen


def test_dots_of_16_bits_use_the_tensor_cores_of_the_target(ptx: dict[str, Any]) -> None:
    for (variant, target), text in _of(ptx).items():
        if variant not in ("single", "tf32x3"):
            assert DOTS[target] in text, (variant, target)


def test_float32_dots_are_fma_or_three_tf32_products(ptx: dict[str, Any]) -> None:
    for text in _of(ptx, "single").values():
        assert not re.search(r"\b(?:mma\.sync|wgmma|tcgen05\.mma)", text)
    for text in _of(ptx, "tf32x3").values():
        assert re.search(r"\bmma\.sync\S*tf32", text)


def test_exponentials_are_ex2_that_flushes(ptx: dict[str, Any]) -> None:
    for place, text in _of(ptx).items():
        assert set(re.findall(r"\bex2\.\S+", text)) == {"ex2.approx.ftz.f32"}, place
        assert not re.search(r"\b(?:lg2|tanh)\.approx", text), place


def test_quotients_are_within_two_ulp(ptx: dict[str, Any]) -> None:
    for place, text in _of(ptx).items():
        assert set(re.findall(r"\bdiv\.\S+f32", text)) == {"div.full.f32"}, place


def test_only_written_fmas_fuse(ptx: dict[str, Any]) -> None:
    """One an element of a score tile; those of log2 flush, so differ."""
    fused = r"\bfma\.rn\.(?:f32|f32x2)\b"
    for (variant, target), text in _of(ptx, "aligned").items():
        count = len(re.findall(fused, text))
        if variant == "aligned softcap":
            assert not count, target
        else:  # of a tile of 128 x 64 for 256 threads; a loop may be unrolled
            assert count, target
            assert count % (128 * 64 // 256) == 0, target
    assert re.search(fused, ptx["control fused"])


def test_float32_arithmetic_keeps_subnormals(ptx: dict[str, Any]) -> None:
    for place, text in _of(ptx).items():
        assert not re.search(r"\b(?:add|sub|mul|max)\S*\.ftz", text), place


def test_the_aligned_build_moves_sixteen_bytes_a_thread(ptx: dict[str, Any]) -> None:
    for place, text in _of(ptx, "aligned").items():
        copies = re.findall(r"cp\.async\.\S+ +\[[^\]]*\], \[[^\]]*\], (0x\w+)", text)
        assert len(copies) >= 4, place  # k and v, masked and not
        assert set(copies) == {"0x10"}, place
        assert "st.global.v4.b32" in text, place


def test_the_general_build_assumes_no_alignment(ptx: dict[str, Any]) -> None:
    for place, text in (_of(ptx, "general") | _of(ptx, "key outer")).items():
        assert not re.search(r"(?:ld|st)\.global\.v", text), place


def test_the_key_outer_order_reads_its_scratch_behind_barriers(ptx: dict[str, Any]) -> None:
    """No load runs ahead of a store: nothing is copied asynchronously or past the cache."""
    for place, text in _of(ptx, "key outer").items():
        assert "cp.async" not in text, place
        assert ".nc" not in text, place
        assert len(re.findall(r"\b(?:bar|barrier)\.\S*sync", text)) >= 3, place


def test_addresses_are_computed_in_64_bits(ptx: dict[str, Any]) -> None:
    offsets = re.findall(r"tt\.addptr .*, (\S+) loc", ptx["ttir"])
    assert len(offsets) > 12
    within_a_row = ["tensor<128x64xi32>"]  # of the output, where it is stored
    assert [kind for kind in offsets if not re.search(r"i64>?$", kind)] == within_a_row
    products = re.findall(r"arith\.muli .*: (\S+)", ptx["ttir"])
    assert {kind for kind in products if "i32" in kind} <= {"i32"}  # of scalars: rows, programs


def test_lengths_strides_and_addresses_cost_no_compilation(ptx: dict[str, Any]) -> None:
    assert ptx["specialized"] == []


if __name__ == "__main__":
    main()
