"""ptxas and the operands of tensor cores: what is read off SASS, on good and bad builds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import triton
from sass_descriptors import arguments_in_descriptors, disassembled

import tightrope

# Of one build of pope_attention: what follows a right and a wrong first descriptor. In the wrong
# one the base of a tile, UR14 there, was replaced by an argument in UR10.
RIGHT = """
        /*0000*/    UMOV UR16, 0x400 ;
        /*0010*/    UIADD3 UR4, UR16, 0x8000, URZ ;
        /*0020*/    USHF.R.U32.HI UR20, URZ, 0x4, UR4 ;
        /*0030*/    UIADD3 UR14, UP1, UR20, 0x40, URZ ;
        /*0040*/    UIADD3.X UR15, URZ, -0x7fffffe0, URZ, UP1, !UPT ;
        /*0050*/    ULDC.64 UR10, c[0x0][0x2b8] ;
        /*0060*/    UMOV UR10, UR14 ;
        /*0070*/    UMOV UR11, UR15 ;
        /*0080*/    HGMMA.64x32x16.F32 R88, gdesc[UR8].tnspA.tnspB, R88 ;
"""
WRONG = RIGHT.replace("UMOV UR10, UR14", "UIADD3 UR10, UP0, UR10, 0x40, URZ").replace(
    "UMOV UR11, UR15", "UIADD3.X UR11, UR11, -0x7fffffe0, URZ, UP0, !UPT"
)
OF_REGISTERS = WRONG.replace("R88, gdesc", "R88, R116, gdesc")
NOT_TAKEN = OF_REGISTERS.replace("gdesc[UR8]", "gdesc[UR10]")
IN_A_RING = RIGHT.replace("UMOV UR10, UR14", "UIADD3.64 UR10, UR10, UR14, URZ")


def test_an_argument_in_a_descriptor_is_found() -> None:
    assert arguments_in_descriptors(RIGHT) == []
    for text in (WRONG, OF_REGISTERS):
        assert ["c[0x0][0x2b8]" in line for line in arguments_in_descriptors(text)] == [True]


def test_a_place_in_a_ring_may_come_from_an_argument() -> None:
    assert arguments_in_descriptors(IN_A_RING) == []


def test_of_a_matrix_in_registers_there_is_no_descriptor() -> None:
    assert arguments_in_descriptors(NOT_TAKEN) == []


def _sass(folder: str) -> str:
    """Of the build that was wrong under Triton 3.6, with the tile of now."""
    from test_pope_ptx import BUILD, POINTERS, _kernels

    from tightrope.pope_attention_call import tile_for

    m, n, warps, stages = tile_for(1, 128, 128, 2, (9, 0))
    kernel = _kernels()["light"]
    form = {
        **BUILD, "UNIT": 1, "PADDED": True, "BLOCK_DV": 128, "BLOCK_M": m, "BLOCK_N": n,
        "BLOCK_REST": 64, "EARLY": True,
    }  # fmt: skip
    constants = {name: v for name, v in form.items() if name in kernel.arg_names}
    pointers = {**POINTERS, **dict.fromkeys(("q", "k", "v", "out"), "*fp16")}
    types: dict[str, str] = {}
    for p in kernel.params:
        types[p.name] = pointers.get(p.name) or ("constexpr" if p.is_constexpr else p.annotation)
    made = triton.compile(
        triton.compiler.ASTSource(kernel, types, constants),
        target=triton.backends.compiler.GPUTarget("cuda", 90, 32),
        options={"num_warps": warps, "num_stages": stages, "enable_fp_fusion": False},
    )
    cubin = Path(folder) / "kernel.cubin"
    cubin.write_bytes(made.asm["cubin"])
    return disassembled(cubin)


def test_the_build_that_was_wrong_is_right(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env["PYTHONPATH"] = os.pathsep.join([str(Path(tightrope.__file__).parents[1]), *sys.path])
    command = [sys.executable, __file__, str(tmp_path)]
    run = subprocess.run(command, env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    assert json.loads(run.stdout) == []


if __name__ == "__main__":
    print(json.dumps(arguments_in_descriptors(_sass(sys.argv[1]))))
