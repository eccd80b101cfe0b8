"""The Hopper kernels compile for sm_90 without one, and what their promises and speed rest on.

Run as a program, this file compiles them and prints {variant: PTX} as JSON; see test_ptx.py.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from test_ptx import _compile

import tightrope

POPE: dict[str, tuple[str, str, bool]] = {
    # variant: dtype of q, k and v; dtype of out; whether there is a delta. The tile is its name's.
    "LONE": ("fp16", "fp16", False),
    "SOME": ("fp16", "fp16", False),
    "SOME bf16": ("bf16", "fp32", True),
    "MANY": ("fp16", "fp32", True),
    "WIDE": ("fp16", "fp16", False),
}
PLAIN: dict[str, tuple[str, str, int, int]] = {
    # variant: dtypes as above; head_dim; head_dim_v. The tile is the table's for so many heads.
    "plain 64 of 1 head": ("fp16", "fp16", 64, 64),
    "plain 128 of 128 heads": ("bf16", "fp32", 128, 128),
    "plain 256 of 128 heads": ("fp16", "fp16", 256, 128),
    "points 128 of 1 head": ("fp16", "fp16", 128, 64),
    "points 128 of 128 heads": ("bf16", "fp32", 128, 64),
    "points 256 of 128 heads": ("fp16", "fp16", 256, 128),
}
DTYPES = {name: facts[0] for name, facts in (*POPE.items(), *PLAIN.items())}


def _tiles(dtype: str, rows: int, width: int, planes: int = 1) -> str:
    from triton.experimental.gluon import language as gl

    block, formats = [planes, 1, rows, width], {"fp16": gl.float16, "bf16": gl.bfloat16}
    layout = gl.NVMMASharedLayout.get_default_for(block, formats[dtype])
    return f"tensordesc<{dtype}{block},{layout!r}>"


def _made(kernel: Any, given: dict[str, str], constants: dict[str, Any]) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.experimental.gluon._runtime import GluonASTSource

    signature = {
        p.name: given.get(p.name) or ("constexpr" if p.is_constexpr else p.annotation_type)
        for p in kernel.params
    }
    source, tile = GluonASTSource(kernel, signature, constants), constants["TILE"]
    options = {"num_warps": 4, "maxnreg": tile.registers, "enable_fp_fusion": False}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def _pope(name: str, dtype: str, out: str, turned: bool) -> tuple[Any, Any]:
    from tightrope import pope_hopper_tile
    from tightrope.impls.pope_attention_hopper import pope_hopper_kernel

    width = 128 if name.startswith("WIDE") else 64
    tile = getattr(pope_hopper_tile, name.split()[0])._replace(HALF=dtype == "fp16")
    given = {
        "q": f"*{dtype}", "out": f"*{out}", "lse": "*fp32", "q_table": "*fp16", "delta": "*fp32",
        "k_tiles": _tiles(dtype, tile.CHUNK, width), "v_tiles": _tiles(dtype, tile.BLOCK_N, width),
        "tables": _tiles("fp16", tile.CHUNK, width, 2),
    }  # fmt: skip
    constants = {"D": width, "TURNED": turned, "EARLY": True, "TILE": tile}
    groups = tile.CONSUMERS + tile.PARTS + tile.LOADER
    return _made(pope_hopper_kernel, given, constants), groups


def _plain(name: str, dtype: str, out: str, width: int, width_v: int) -> tuple[Any, Any]:
    from tightrope.attention_hopper_tile import tile_for
    from tightrope.impls.attention_hopper import attention_hopper_kernel
    from tightrope.pope_hopper_points import points_hopper_kernel

    kind, _, _, heads, _ = name.split()
    tile = tile_for(int(heads), 4096, width, width_v)
    points = kind == "points"
    given = {
        "q": f"*{dtype}", "out": f"*{out}", "lse": "*fp32", "q_table": "*fp32",
        "q_tiles": _tiles(dtype, tile.BLOCK_M // tile.CONSUMERS, width),
        "k_tiles": _tiles(dtype, tile.BLOCK_N, width_v if points else width),
        "v_tiles": _tiles(dtype, tile.BLOCK_N, width_v),
    }  # fmt: skip
    constants = {"D": width_v if points else width, "D_V": width_v, "TILE": tile}
    kernel = points_hopper_kernel if points else attention_hopper_kernel
    constants = {n: x for n, x in constants.items() if n in kernel.arg_names}
    return _made(kernel, given, constants), tile.CONSUMERS + 1


def _registers(cubin: bytes) -> tuple[int, int]:
    """Registers of a thread at the start, and bytes of stack, where those spilled would lie."""
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        told = subprocess.check_output([tool, "-res-usage", file.name], text=True)
    found = re.search(r"REG:(\d+) STACK:(\d+)", told)
    assert found is not None, told
    return int(found[1]), int(found[2])


def main() -> None:
    from tightrope.pope_hopper_call import delta_kernel

    made = {name: _pope(name, *facts) for name, facts in POPE.items()}
    made |= {name: _plain(name, *facts) for name, facts in PLAIN.items()}
    found: dict[str, Any] = {name: m.asm["ptx"] for name, (m, _) in made.items()}
    for name, (m, groups) in made.items():
        facts = m.metadata.shared, m.metadata.num_warps, 4 * groups
        found[f"facts {name}"] = [*facts, *_registers(m.asm["cubin"])]
    pointers = {"delta": "*fp32", "inverse_turn": "*i64", "table": "*fp32"}
    found["delta"] = _compile(delta_kernel, pointers, {"WIDTH": 64}, 90)
    json.dump(found, sys.stdout)


@pytest.fixture(scope="module")
def ptx() -> dict[str, Any]:
    paths = [str(Path(tightrope.__file__).parents[1]), *sys.path]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TRITON_INTERPRET": "0"}
    return dict(json.loads(subprocess.check_output([sys.executable, __file__], env=env)))


def test_it_becomes_machine_code_that_a_processor_holds(ptx: dict[str, Any]) -> None:
    for name in DTYPES:
        shared, warps, expected, registers, stack = ptx[f"facts {name}"]
        assert ".target sm_90a" in ptx[name]
        assert shared <= 227 * 1024, name
        assert warps == expected, name
        assert registers * warps * 32 <= 65536, name
        assert stack == 0 or name in POPE or name.startswith("points"), (
            name
        )  # of those, one may spill a few registers
        assert not re.search(r"\.local \.align \d+ \.b8\s+\S*depot", ptx[name]), name


def test_dots_are_of_warp_groups_in_the_inputs_dtype(ptx: dict[str, Any]) -> None:
    for name, dtype in DTYPES.items():
        kind = dtype.replace("fp", "f")
        kinds = set(re.findall(r"wgmma\.mma_async\S*", ptx[name]))
        assert kinds, name
        assert all(k.endswith(f"k16.f32.{kind}.{kind}") for k in kinds), (name, kinds)


def test_tiles_come_by_tma(ptx: dict[str, Any]) -> None:
    for name in DTYPES:
        assert re.search(r"cp\.async\.bulk\.tensor\.4d\.\S*shared", ptx[name]), name
        assert "fence.proxy.async" in ptx[name], name
        assert "griddepcontrol.wait" in ptx[name], name  # before the launch in front is read


def test_exponentials_are_ex2_that_flushes(ptx: dict[str, Any]) -> None:
    for name in DTYPES:
        assert set(re.findall(r"\bex2\.\S+", ptx[name])) == {"ex2.approx.ftz.f32"}, name
        assert not re.search(r"\b(?:lg2|tanh|sin|cos)\.approx", ptx[name]), name
        assert set(re.findall(r"\bdiv\.\S+f32", ptx[name])) == {"div.full.f32"}, name


def test_float16_keys_are_expanded_two_at_a_time(ptx: dict[str, Any]) -> None:
    for name, dtype in DTYPES.items():
        packed = len(re.findall(r"fma\.rn\.f16x2", ptx[name]))
        assert bool(packed) == (dtype == "fp16" and name in POPE), name
        assert packed % 4 == 0, name


def test_warps_deal_out_registers(ptx: dict[str, Any]) -> None:
    for name in DTYPES:
        assert re.search(r"setmaxnreg\.dec\.sync\.aligned\.u32\s+\d+", ptx[name]), name
        assert re.search(r"setmaxnreg\.inc\.sync\.aligned\.u32\s+\d+", ptx[name]), name


def test_float32_arithmetic_keeps_subnormals(ptx: dict[str, Any]) -> None:
    for name in (*DTYPES, "delta"):
        assert not re.search(r"\b(?:add|sub|mul|max)\S*\.ftz", ptx[name]), name


def test_phases_turn_exactly(ptx: dict[str, Any]) -> None:
    assert not re.search(r"\b(?:sin|cos)\.approx", ptx["delta"])
    assert "mul.hi.u64" in ptx["delta"]


if __name__ == "__main__":
    main()
