"""The Hopper kernel compiles for sm_90 without one, and what its promise and its speed rest on.

Run as a program, this file compiles it and prints {variant: PTX} as JSON; see test_ptx.py.
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
from test_ptx import _compile

import tightrope

VARIANTS: dict[str, tuple[str, str, bool]] = {
    # variant: dtype of q, k and v; dtype of out; whether there is a delta. The tile is its name's.
    "LONE": ("fp16", "fp16", False),
    "SOME": ("fp16", "fp16", False),
    "SOME bf16": ("bf16", "fp32", True),
    "MANY": ("fp16", "fp32", True),
    "WIDE": ("fp16", "fp16", False),
}
WARPS = {"LONE": 8, "SOME": 16, "MANY": 12, "WIDE": 16}
STACK = re.compile(r"\.local \.align \d+ \.b8\s+\S*depot")


def _made(name: str, dtype: str, out: str, turned: bool) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon._runtime import GluonASTSource

    from tightrope import pope_hopper_tile
    from tightrope.impls.pope_attention_hopper import pope_hopper_kernel

    width = 128 if name.startswith("WIDE") else 64
    tile = getattr(pope_hopper_tile, name.split()[0])._replace(HALF=dtype == "fp16")
    formats = {"fp16": gl.float16, "bf16": gl.bfloat16}

    def tiles(kind: str, rows: int, planes: int = 1) -> str:
        block = [planes, 1, rows, width]
        layout = gl.NVMMASharedLayout.get_default_for(block, formats[kind])
        return f"tensordesc<{kind}{block},{layout!r}>"

    given = {
        "q": f"*{dtype}", "out": f"*{out}", "lse": "*fp32", "q_table": "*fp16", "delta": "*fp32",
        "k_tiles": tiles(dtype, tile.CHUNK), "v_tiles": tiles(dtype, tile.BLOCK_N),
        "tables": tiles("fp16", tile.CHUNK, 2),
    }  # fmt: skip
    signature = {
        p.name: given.get(p.name) or ("constexpr" if p.is_constexpr else p.annotation_type)
        for p in pope_hopper_kernel.params
    }
    constants = {"D": width, "TURNED": turned, "EARLY": True, "TILE": tile}
    source = GluonASTSource(pope_hopper_kernel, signature, constants)
    options = {"num_warps": 4, "maxnreg": tile.registers, "enable_fp_fusion": False}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def main() -> None:
    from tightrope.pope_hopper_call import delta_kernel

    made = {name: _made(name, *facts) for name, facts in VARIANTS.items()}
    found: dict[str, Any] = {name: m.asm["ptx"] for name, m in made.items()}
    for name, m in made.items():
        found[f"facts {name}"] = [m.metadata.shared, m.metadata.num_warps, len(m.asm["cubin"])]
    pointers = {"delta": "*fp32", "inverse_turn": "*i64", "table": "*fp32"}
    found["delta"] = _compile(delta_kernel, pointers, {"WIDTH": 64}, 90)
    json.dump(found, sys.stdout)


@pytest.fixture(scope="module")
def ptx() -> dict[str, Any]:
    paths = [str(Path(tightrope.__file__).parents[1]), *sys.path]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TRITON_INTERPRET": "0"}
    return dict(json.loads(subprocess.check_output([sys.executable, __file__], env=env)))


def test_it_becomes_machine_code_that_a_processor_holds(ptx: dict[str, Any]) -> None:
    for name in VARIANTS:
        shared, warps, size = ptx[f"facts {name}"]
        assert ".target sm_90a" in ptx[name]
        assert shared <= 227 * 1024, name
        assert warps == WARPS[name.split()[0]], name
        assert size


def test_dots_are_of_warp_groups_in_the_inputs_dtype(ptx: dict[str, Any]) -> None:
    for name, (dtype, *_) in VARIANTS.items():
        kind = dtype.replace("fp", "f")
        kinds = set(re.findall(r"wgmma\.mma_async\S*", ptx[name]))
        assert kinds, name
        assert all(k.endswith(f"k16.f32.{kind}.{kind}") for k in kinds), (name, kinds)


def test_keys_values_and_tables_come_by_tma(ptx: dict[str, Any]) -> None:
    for name in VARIANTS:
        assert re.search(r"cp\.async\.bulk\.tensor\.4d\.\S*shared", ptx[name]), name
        assert "fence.proxy.async" in ptx[name], name
        assert "griddepcontrol.wait" in ptx[name], name  # before the tables are read


def test_exponentials_are_ex2_that_flushes(ptx: dict[str, Any]) -> None:
    for name in VARIANTS:
        assert set(re.findall(r"\bex2\.\S+", ptx[name])) == {"ex2.approx.ftz.f32"}, name
        assert not re.search(r"\b(?:lg2|tanh|sin|cos)\.approx", ptx[name]), name
        assert set(re.findall(r"\bdiv\.\S+f32", ptx[name])) == {"div.full.f32"}, name


def test_float16_keys_are_expanded_two_at_a_time(ptx: dict[str, Any]) -> None:
    for name, (dtype, *_) in VARIANTS.items():
        packed = len(re.findall(r"fma\.rn\.f16x2", ptx[name]))
        assert bool(packed) == (dtype == "fp16"), name
        assert packed % 4 == 0, name


def test_warps_deal_out_registers(ptx: dict[str, Any]) -> None:
    for name in VARIANTS:
        assert re.search(r"setmaxnreg\.dec\.sync\.aligned\.u32\s+\d+", ptx[name]), name
        assert re.search(r"setmaxnreg\.inc\.sync\.aligned\.u32\s+\d+", ptx[name]), name
        assert not STACK.search(ptx[name]), name


def test_float32_arithmetic_keeps_subnormals(ptx: dict[str, Any]) -> None:
    for name in (*VARIANTS, "delta"):
        assert not re.search(r"\b(?:add|sub|mul|max)\S*\.ftz", ptx[name]), name


def test_phases_turn_exactly(ptx: dict[str, Any]) -> None:
    assert not re.search(r"\b(?:sin|cos)\.approx", ptx["delta"])
    assert "mul.hi.u64" in ptx["delta"]


if __name__ == "__main__":
    main()
