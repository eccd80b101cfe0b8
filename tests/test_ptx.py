"""Facts that budgets rely on, read off the PTX of every bundled kernel; compiled without a GPU.

Run as a program, this file compiles the kernels and prints {variant: PTX} as JSON. The tests call
it so, once, because Triton compiles nothing in a process that interprets.
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

import tightrope

TARGETS = (80, 90, 100)
ROPE = {
    # variant: dtype of q, k and outputs; dtype of the table; interleaved; unit of the strides
    "aligned": ("bf16", "fp32", False, 8),
    "aligned interleaved": ("bf16", "fp32", True, 8),
    "aligned fp32": ("fp32", "bf16", False, 8),
    "general": ("fp16", "fp32", False, 1),
    "general interleaved": ("fp16", "fp16", True, 1),
    "float64": ("fp64", "fp64", False, 1),
}
WIDE = re.compile(r"(?:ld|st)\.global(?:\.cs)?\.(?:v4\.b32|v2\.b64)")
FUSED = re.compile(r"fma\.rn\.(?:ftz\.)?(?:f32|f32x2|f64|f16|f16x2|bf16|bf16x2)\b")


def _compile(
    kernel: Any,
    pointers: dict[str, str],
    constants: dict[str, Any],
    target: int,
    fused: bool = False,
    form: str = "ptx",
) -> str:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {
        p.name: pointers.get(p.name) or ("constexpr" if p.is_constexpr else p.annotation_type)
        for p in kernel.params
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    options = {"num_warps": 8, "enable_fp_fusion": fused}
    made = triton.compile(source, target=GPUTarget("cuda", target, 32), options=options)
    return str(made.asm[form])


def _rope(target: int, dtype: str, table: str, interleaved: bool, unit: int, **options: Any) -> str:
    from tightrope.impls.rope import rope_kernel

    pointers = dict.fromkeys(("q", "k", "q_out", "k_out"), f"*{dtype}")
    pointers |= {"cos": f"*{table}", "sin": f"*{table}", "positions": "*i64"}
    constants = {
        "INTERLEAVED": interleaved, "UNIT": unit, "BLOCK_PAIRS": 64, "BLOCK_TAIL": 64 * (unit == 1),
        "BLOCK_TOKENS": 4, "BLOCK_HEADS": 8,
    }  # fmt: skip
    return _compile(rope_kernel, pointers, constants, target, **options)


def _table_kernels(kind: str) -> tuple[Any, Any]:
    """`rope` or `pope`: the exact builder's kernel, and the float32 one's."""
    from tightrope.impls import pope_table, rope_table

    module = {"rope": rope_table, "pope": pope_table}[kind]
    return module.exact_kernel, module.float32_kernel


def _table(target: int, kind: str, exact: bool) -> str:
    kernel = _table_kernels(kind)[0 if exact else 1]
    frequencies = "*fp64" if kind == "pope" else "*fp32"
    pointers = {"positions": "*i64", "cos": "*fp32", "sin": "*fp32", "inv_freq": frequencies}
    pointers |= {"high": "*i64", "low": "*i64", "narrow": "*fp32", "frequencies": "*fp64"}
    pointers |= {"axis": "*i64"}
    constants = {"BLOCK_POSITIONS": 8, "BLOCK_COLUMNS": 64, "AXES": True}
    constants = {name: c for name, c in constants.items() if name in kernel.arg_names}
    return _compile(kernel, pointers, constants, target)


def _query_scale(target: int) -> str:
    from tightrope.impls.query_scale import query_scale_kernel

    pointers = {"positions": "*i64", "scale": "*fp32"}
    return _compile(query_scale_kernel, pointers, {"BLOCK": 512}, target)


def _specialized() -> list[str]:
    """Parameters of which some value or alignment would cost a compilation of its own."""
    from tightrope.impls.query_scale import query_scale_kernel
    from tightrope.impls.rope import rope_kernel

    return [
        f"{kernel.__name__}: {p.name}"
        for kernel in (
            rope_kernel,
            query_scale_kernel,
            *_table_kernels("rope"),
            *_table_kernels("pope"),
        )
        for p in kernel.params
        if not (p.is_constexpr or p.do_not_specialize)
    ]


def main() -> None:
    from tightrope import compiles

    compiles.watch()
    compiles.watch()
    found = {}
    for target in TARGETS:
        for variant, facts in ROPE.items():
            found[f"rope {variant} sm_{target}"] = _rope(target, *facts)
        for kind in ("rope", "pope"):
            found[f"table exact {kind} sm_{target}"] = _table(target, kind, exact=True)
            found[f"table float32 {kind} sm_{target}"] = _table(target, kind, exact=False)
        found[f"query_scale sm_{target}"] = _query_scale(target)
    found["control fused sm_90"] = _rope(90, *ROPE["aligned"], fused=True)
    found["ttir"] = _rope(90, *ROPE["general"], form="ttir")
    counted = {"compiled": len(found), "counted": compiles.count(), "disk": compiles.from_disk()}
    json.dump({**found, "facts": {**counted, "specialized": _specialized()}}, sys.stdout)


@pytest.fixture(scope="module")
def ptx() -> dict[str, Any]:
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env["PYTHONPATH"] = os.pathsep.join([str(Path(tightrope.__file__).parents[1]), *sys.path])
    run = subprocess.run([sys.executable, __file__], env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def _of(ptx: dict[str, Any], words: str) -> dict[str, str]:
    chosen = {name: text for name, text in ptx.items() if name.startswith(words)}
    assert {name.split()[-1] for name in chosen} == {f"sm_{t}" for t in TARGETS}
    for name, text in chosen.items():
        assert f".target {name.split()[-1]}" in text
    return chosen


def test_the_rotation_rounds_products_and_sum_separately(ptx: dict[str, Any]) -> None:
    for name, text in _of(ptx, "rope").items():
        kind = "f64" if "float64" in name else "f32"
        assert not FUSED.search(text), name
        assert re.search(rf"\bmul(?:\.rn)?\.{kind}", text), name
        assert re.search(rf"\bsub(?:\.rn)?\.{kind}", text), name
        assert re.search(rf"\badd(?:\.rn)?\.{kind}", text), name


def test_float32_arithmetic_keeps_subnormals(ptx: dict[str, Any]) -> None:
    for name, text in _of(ptx, "rope").items():
        assert not re.search(r"\b(?:add|sub|mul|cvt)\S*\.ftz", text), name


def test_the_aligned_build_moves_sixteen_bytes_a_thread(ptx: dict[str, Any]) -> None:
    for name, text in _of(ptx, "rope aligned").items():
        loads, stores = (len([w for w in WIDE.findall(text) if w[:2] == io]) for io in ("ld", "st"))
        assert min(loads, stores) >= 2, name
        assert not re.search(r"st\.global\.(?!(?:cs\.)?(?:v4\.b32|v2\.b64))", text), name


def test_the_general_build_assumes_no_alignment(ptx: dict[str, Any]) -> None:
    for name, text in _of(ptx, "rope general").items():
        assert not re.search(r"(?:ld|st)\.global\.v", text), name


def test_addresses_are_computed_in_64_bits(ptx: dict[str, Any]) -> None:
    sums = re.findall(r"arith\.(?:muli|addi|subi|shli) .*: (\S+)", ptx["ttir"])
    assert len(sums) > 10
    assert {kind for kind in sums if "i32" in kind} <= {"i32"}  # of scalars: numbers of blocks
    offsets = re.findall(r"tt\.addptr .*, (tensor<\S+>)", ptx["ttir"])
    assert len(offsets) > 10
    assert all(kind.endswith("i64>") for kind in offsets)


def test_lengths_strides_and_addresses_cost_no_compilation(ptx: dict[str, Any]) -> None:
    assert ptx["facts"]["specialized"] == []


def test_every_compilation_is_counted_once(ptx: dict[str, Any]) -> None:
    facts = ptx["facts"]
    # The TTIR is another stage of a kernel that is among them: this one comes from disk.
    assert facts["counted"] == facts["compiled"]
    assert 1 <= facts["disk"] <= facts["counted"]


def test_the_exact_table_is_not_fused_and_rounds_once_to_float32(ptx: dict[str, Any]) -> None:
    for name, text in _of(ptx, "table exact").items():
        assert not FUSED.search(text), name
        for needed in ("mul.hi.u64", "cvt.rn.f64.s64", "cvt.rn.f32.f64"):
            assert needed in text, name


def test_the_float32_table_uses_no_approximate_trigonometry(ptx: dict[str, Any]) -> None:
    for name, text in _of(ptx, "table float32").items():
        assert not re.search(r"\b(?:sin|cos)\.approx", text), name
        assert "cvt.rn.f32.s64" in text, name
        # The large-argument path reduces with this table of the bits of 2/pi.
        assert re.search(r"i2opi_f\[\d+\] = \{", text), name


def test_steps_of_the_query_scale_are_whole_and_its_logarithm_is_float64(
    ptx: dict[str, Any],
) -> None:
    for name, text in _of(ptx, "query_scale").items():
        assert "div.u64" in text, name
        assert not re.search(r"\blg2|\b(?:add|mul|fma)\S*\.f32", text), name
        assert "cvt.rn.f32.f64" in text, name


def test_fusing_would_be_seen(ptx: dict[str, Any]) -> None:
    assert FUSED.search(ptx["control fused sm_90"])


if __name__ == "__main__":
    main()
