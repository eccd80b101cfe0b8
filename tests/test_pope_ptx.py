"""Facts that the budget of pope_attention relies on, read off the PTX of the bundled kernels.

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
    "UNIT": 8, "PADDED": False, "BLOCK_D": 64, "BLOCK_DV": 64, "BLOCK_M": 128, "BLOCK_N": 64,
    "SOFTCAP": False, "BLOCK_REST": 0, "FORM": "short", "EARLY": False,
    "AHEAD": False, "BLOCK_ROWS": 8, "PLAIN": False,
}  # fmt: skip
GENERAL = {"UNIT": 1, "PADDED": True, "BLOCK_M": 16, "BLOCK_N": 16}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    # variant, its first word a kernel: dtype, constants other than BUILD's
    "light": ("fp16", {}),
    "light half": ("fp16", {"FORM": "half"}),
    "light rest": ("bf16", {"BLOCK_REST": 32, "SOFTCAP": True, "BLOCK_M": 64}),
    "light general": ("bf16", {**GENERAL, "BLOCK_REST": 16}),
    "light single": ("fp32", {"FORM": "precise", "BLOCK_M": 16, "BLOCK_N": 16}),
    "table": ("fp16", {}),
    "expand": ("fp16", {"BLOCK_M": 32}),
    "expand general": ("bf16", {**GENERAL, "PLAIN": True, "BLOCK_DV": 16}),
}
DEPENDENT = {"light early": ("fp16", {"EARLY": True}), "table ahead": ("fp16", {"AHEAD": True})}
POINTERS = {
    **dict.fromkeys(("sink", "delta", "lse"), "*fp32"), "offsets": "*i32", "inv_freq": "*fp32",
    **dict.fromkeys(("positions", "q_positions", "k_positions", "inverse_turn"), "*i64"),
    **dict.fromkeys(("q_table", "k_table", "table"), "*fp16"),
}  # fmt: skip
WIDE = re.compile(r"cp\.async\.cg\.shared\.global|ld\.global\S*\.v4\.b32")
DOTS = {80: "mma.sync", 90: "wgmma.mma_async", 100: "tcgen05.mma"}


def _kernels() -> dict[str, Any]:
    from tightrope import pope_angles_call
    from tightrope.impls import pope_attention, pope_attention_expanded

    return {
        "light": pope_attention.pope_attention_kernel,
        "table": pope_angles_call.table_kernel,
        "expand": pope_attention_expanded.expand_kernel,
    }


def _ptx(variant: str, target: int, pointers: dict[str, str] = POINTERS, **form: Any) -> str:
    dtype, changes = {**VARIANTS, **DEPENDENT}[variant]
    kernel = _kernels()[variant.split()[0]]
    tensors = dict.fromkeys(("q", "k", "v", "out", "q_points", "k_points"), f"*{dtype}")
    constants = {n: v for n, v in {**BUILD, **changes}.items() if n in kernel.arg_names}
    return _compile(kernel, {**pointers, **tensors}, constants, target, **form)


def main() -> None:
    forms: dict[str, Any] = {
        "built": {v: {t: _ptx(v, t) for t in TARGETS} for v in VARIANTS},
        "dependent": {v: _ptx(v, 90) for v in DEPENDENT},
        "early": _ptx("light early", 90, form="ttir"),
        "mixed": _ptx("expand", 90, {**POINTERS, "k_positions": "*i32"}),
        "fused": [_ptx(v, 90, fused=True) for v in ("light half", "expand")],
        "ttir": [_ptx(v, 90, form="ttir") for v in ("light general", "expand general", "table")],
    }
    every = [(kernel.__name__, p) for kernel in _kernels().values() for p in kernel.params]
    bare = [(n, p.name) for n, p in every if not (p.is_constexpr or p.do_not_specialize)]
    print(json.dumps({**forms, "specialized": bare}))


@pytest.fixture(scope="module")
def ptx() -> dict[str, Any]:
    """What `main` prints in a process that compiles."""
    paths = [str(Path(tightrope.__file__).parents[1]), *sys.path]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    env.pop("TRITON_INTERPRET", None)
    printed = subprocess.run(
        [sys.executable, __file__], env=env, stdout=subprocess.PIPE, check=True
    )
    found: dict[str, Any] = json.loads(printed.stdout)
    return found


def _of(ptx: dict[str, Any], *variants: str) -> dict[tuple[str, int], str]:
    return {(v, int(t)): text for v in variants for t, text in ptx["built"][v].items()}


def test_no_angle_is_approximated(ptx: dict[str, Any]) -> None:
    """Sines are float64 polynomials of angles reduced in integers, and rounded to float16 once."""
    for place, text in _of(ptx, *VARIANTS).items():
        assert not re.search(r"\b(?:sin|cos|tanh)\.approx", text), place
    for place, text in _of(ptx, "table").items():
        assert "mul.hi.u64" in text, place
        assert set(re.findall(r"\bcvt\.\S*f16\.\S+", text)) == {"cvt.rn.f16.f64"}, place


def test_exponentials_flush_and_quotients_are_within_two_ulp(ptx: dict[str, Any]) -> None:
    for place, text in _of(ptx, *[v for v in VARIANTS if v != "table"]).items():
        assert set(re.findall(r"\bex2\.\S+", text)) == {"ex2.approx.ftz.f32"}, place
        quotients = set(re.findall(r"\bdiv\.\S+f32", text))
        assert quotients == ({"div.full.f32"} if "light" in place[0] else set()), place


def test_dots_use_the_tensor_cores_of_the_target(ptx: dict[str, Any]) -> None:
    for (variant, target), text in _of(ptx, "light", "light half", "light rest").items():
        assert DOTS[target] in text, (variant, target)
    for text in _of(ptx, "light single").values():
        assert not re.search(r"\b(?:mma\.sync|wgmma|tcgen05\.mma)", text)


def test_float16_magnitudes_are_made_two_at_a_time(ptx: dict[str, Any]) -> None:
    for place, text in _of(ptx, "light half").items():
        assert "fma.rn.f16x2" in text, place
        assert not re.search(r"fma\.rn\.f16\b", text), place
        assert re.search(r"mul(?:\.rn)?\.f16x2", text), place


def test_only_written_fmas_fuse(ptx: dict[str, Any]) -> None:
    """Products of a magnitude and a cosine are rounded: nothing is added to them in float64 too."""
    fused = r"\bfma\.rn\.f64"
    for place, text in _of(ptx, "light", "table", "expand").items():
        assert not re.search(fused, text), place
    assert all(re.search(fused, text) for text in ptx["fused"])


def test_float32_arithmetic_keeps_subnormals(ptx: dict[str, Any]) -> None:
    for place, text in _of(ptx, *VARIANTS).items():
        assert not re.search(r"\b(?:add|sub|mul|max|min)\S*\.ftz", text), place


def test_aligned_builds_move_sixteen_bytes_a_thread(ptx: dict[str, Any]) -> None:
    for place, text in _of(ptx, "light", "light half", "light rest", "expand").items():
        assert WIDE.search(text), place
        assert not re.search(r"ld\.global\S*\.b16", text), place
        assert re.search(r"st\.global\.v4\.b32", text), place


def test_general_builds_assume_no_alignment(ptx: dict[str, Any]) -> None:
    for place, text in _of(ptx, "light general", "expand general").items():
        assert not re.search(r"(?:ld|st)\.global\S*\.v[24]", text), place


def test_attention_waits_for_its_tables(ptx: dict[str, Any]) -> None:
    """Launched early it reads nothing but its features before; other builds never wait."""
    assert "griddepcontrol.wait" in ptx["dependent"]["light early"]
    before, _, after = ptx["early"].partition("griddepcontrol.wait")
    loads = r"(%\w+) = tt\.load"
    assert [re.sub(r"_\d+", "", name) for name in re.findall(loads, before)] == ["%x"]
    assert {"%cosine", "%sine"} <= {re.sub(r"_\d+", "", n) for n in re.findall(loads, after)}
    assert "griddepcontrol.launch_dependents" in ptx["dependent"]["table ahead"]
    for place, plain in _of(ptx, "light", "table").items():
        assert "griddepcontrol" not in plain, place


def test_positions_of_keys_may_be_of_another_dtype(ptx: dict[str, Any]) -> None:
    assert re.search(r"ld\.global\S*\.(?:b32|v\d\.b32)", ptx["mixed"])


def test_addresses_are_computed_in_64_bits(ptx: dict[str, Any]) -> None:
    for text in ptx["ttir"]:
        offsets = re.findall(r"tt\.addptr .*, (\S+) loc", text)
        assert len(offsets) > 3
        products = re.findall(r"arith\.muli .*: (tensor<\S+>)", text)
        assert products
        assert all(kind.endswith("i64>") for kind in products), set(products)


def test_lengths_strides_and_addresses_cost_no_compilation(ptx: dict[str, Any]) -> None:
    assert ptx["specialized"] == []


if __name__ == "__main__":
    main()
