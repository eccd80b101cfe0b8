"""Facts that the budget of PoPE's gradients relies on, read off the PTX of the bundled kernels.

Run as a program, as test_ptx.py, this file prints {variant: PTX} as JSON.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from itertools import chain
from typing import Any

import pytest
from test_attention_ptx import DOTS, _of
from test_ptx import TARGETS, _compile

BUILD: dict[str, Any] = {
    "UNIT": 8, "PADDED": False, "SOFTCAP": False, "FORM": "short", "BLOCK_D": 64, "BLOCK_REST": 0,
    "BLOCK_DV": 64, "OWN": 64, "WALKED": 64, "ROWS": 16,
}  # fmt: skip
SMALL = dict.fromkeys(("BLOCK_D", "BLOCK_REST", "BLOCK_DV", "OWN", "WALKED"), 16)
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    # variant: dtype, constants other than BUILD's
    "keys": ("fp16", {"KEYS": True}),
    "keys general": ("bf16", {**SMALL, "UNIT": 1, "PADDED": True, "KEYS": True}),
    "rows softcap": ("bf16", {"KEYS": False, "SOFTCAP": True, "BLOCK_REST": 32, "WALKED": 32}),
    "rows single": ("fp32", {**SMALL, "KEYS": False, "BLOCK_REST": 0, "FORM": "precise"}),
    "sum": ("fp32", {}),
}


def _kernel(variant: str) -> Any:
    from tightrope.impls.pope_attention_backward import KERNELS

    return KERNELS.phases if variant == "sum" else KERNELS.gradients


def _ptx(variant: str, target: int, **form: Any) -> str:
    dtype, changes = VARIANTS[variant]
    kernel = _kernel(variant)
    sides = chain.from_iterable((f"own_{i}", f"walked_{i}", f"grad_{i}") for i in (1, 2))
    pointers = {
        **dict.fromkeys(("out", *sides), f"*{dtype}"),
        **dict.fromkeys(("own_table", "walked_table"), "*fp16"),
        **dict.fromkeys(("lse", "sums", "shifts", "delta", "parts", "ddelta"), "*fp32"),
        **{"offsets": "*i32", "inverse_turn": "*i64"},
    }
    constants = {n: x for n, x in {**BUILD, **changes}.items() if n in kernel.arg_names}
    return _compile(kernel, pointers, constants, target, **form)


def main() -> None:
    found: dict[str, Any] = {f"{v} sm_{t}": _ptx(v, t) for v in VARIANTS for t in TARGETS}
    found["ttir"] = [_ptx(v, 90, form="ttir") for v in ("keys general", "rows softcap", "sum")]
    found["specialized"] = [
        f"{kernel.__name__}: {p.name}"
        for kernel in (_kernel("sum"), _kernel("keys"))
        for p in kernel.params
        if not (p.is_constexpr or p.do_not_specialize)
    ]
    print(json.dumps(found))


@pytest.fixture(scope="module")
def ptx() -> dict[str, Any]:
    """What `main` prints in a process that compiles."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TRITON_INTERPRET": "0"}
    found: dict[str, Any] = json.loads(
        subprocess.run(
            [sys.executable, __file__], env=env, stdout=subprocess.PIPE, check=True
        ).stdout
    )
    return found


def _passes(ptx: dict[str, Any]) -> dict[tuple[str, int], str]:
    return _of(ptx, "keys") | _of(ptx, "rows")


def test_points_are_multiplied_on_tensor_cores(ptx: dict[str, Any]) -> None:
    """But for float32, and where 16 keys are no tile of later architectures'."""
    for target in TARGETS:
        of = {v: ptx[f"{v} sm_{target}"] for v in VARIANTS}
        wanted = ("keys", "rows softcap", *(("keys general",) if target == 80 else ()))
        assert all(DOTS[target] in of[v] for v in wanted), target
        assert not any(name in of["rows single"] for name in DOTS.values()), target


def test_quotients_are_of_sigmoids_and_caps_and_within_two_ulp(ptx: dict[str, Any]) -> None:
    for place, text in _passes(ptx).items():
        assert set(re.findall(r"\bex2\.\S+", text)) == {"ex2.approx.ftz.f32"}, place
        assert set(re.findall(r"\bdiv\.\S+f32", text)) == {"div.full.f32"}, place
        assert not re.search(r"\b(?:lg2|tanh|sin|cos|rcp)\.approx", text), place


def test_products_of_gradients_and_angles_are_rounded(ptx: dict[str, Any]) -> None:
    """Written fmas alone fuse: the sums of two products of the way back do not."""
    count = {v: len(re.findall(r"\bfma\.rn\.f32\b", t)) for (v, n), t in _passes(ptx).items()
             if n == 90}  # fmt: skip
    # A softplus is 6 fmas, a logit without a cap 1, a sigmoid's exponential 2.
    softplus = 6 * 64 * 64 // 256
    assert count["keys"] % (64 * 64 // 256) == 0
    assert count["keys"] >= 2 * softplus
    assert not re.search(r"\bfma\.rn\.f64\b", ptx["keys sm_90"])
    for target in TARGETS:
        assert not re.search(r"\bfma\.rn", ptx[f"sum sm_{target}"])


def test_float32_arithmetic_keeps_subnormals(ptx: dict[str, Any]) -> None:
    for place, text in (_passes(ptx) | _of(ptx, "sum")).items():
        assert not re.search(r"\b(?:add|sub|mul|max|min)\S*\.ftz", text), place


def test_aligned_builds_move_sixteen_bytes_a_thread(ptx: dict[str, Any]) -> None:
    for (variant, target), text in _passes(ptx).items():
        if "general" in variant:
            assert not re.search(r"(?:ld|st)\.global\S*\.v", text), target
        elif variant != "rows single":
            assert not re.search(r"ld\.global\S*\.b16", text), (variant, target)
            assert "st.global.v4.b32" in text, (variant, target)


def test_no_gradient_is_added_by_atomics(ptx: dict[str, Any]) -> None:
    for place, text in (_passes(ptx) | _of(ptx, "sum")).items():
        assert not re.search(r"\b(?:atom|red)\.", text), place


def test_no_address_is_computed_in_32_bits(ptx: dict[str, Any]) -> None:
    for text in ptx["ttir"]:
        assert text.count("tt.addptr") >= 3
        wide = {kind[-4:] for kind in re.findall(r"arith\.muli .*: (tensor<\S+>)", text)}
        assert wide == {"i64>"}


def test_lengths_strides_and_addresses_cost_no_compilation(ptx: dict[str, Any]) -> None:
    assert ptx["specialized"] == []


if __name__ == "__main__":
    main()
