"""Facts that the budgets of packed gradients rely on, read off their kernel's PTX, without a GPU.

What is demanded is what tests/test_attention_backward_ptx.py demands. Run as a program, as
test_ptx.py, this file prints {variant: PTX} as JSON.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest
from test_attention_backward_ptx import (  # noqa: F401  (collected here, on this file's fixture)
    VARIANTS,
    test_aligned_builds_move_sixteen_bytes_a_thread,
    test_dots_of_16_bits_use_the_tensor_cores_of_the_target,
    test_exponentials_flush_and_quotients_are_within_two_ulp,
    test_lengths_strides_and_addresses_cost_no_compilation,
    test_no_gradient_is_added_by_atomics,
)
from test_attention_ptx import _of
from test_ptx import TARGETS, _compile

PLAIN: dict[str, Any] = {
    **{"UNIT": 8, "PADDED": False, "BLOCK_D": 64, "BLOCK_DV": 64},
    **{"OWN": 64, "WALKED": 64, "SOFTCAP": False},
}
COMPILED = ("keys", "queries softcap")


def _packed(target: int, dtype: str, changes: dict[str, Any], **form: Any) -> str:
    from tightrope.impls.attention_varlen_backward import varlen_gradients_kernel as kernel

    kinds = {"lse": "*fp32", "sums": "*fp32", "shifts": "*fp32", "offsets": "*i32"}
    kinds |= {"starts_own": "*i32", "starts_walked": "*i32"}
    tensors = (p.name for p in kernel.params if not (p.is_constexpr or p.annotation_type))
    pointers = {name: kinds.get(name, f"*{dtype}") for name in tensors}
    constants = {name: x for name, x in {**PLAIN, **changes}.items() if name in kernel.arg_names}
    return _compile(kernel, pointers, constants, target, **form)


def main() -> None:
    from tightrope.impls.attention_varlen_backward import varlen_gradients_kernel as kernel

    found: dict[str, Any] = {
        f"{name} sm_{target}": _packed(target, dtype, changes)
        for target in TARGETS
        for name, (dtype, changes) in VARIANTS.items()
        if name in COMPILED
    }
    found["ttir"] = _packed(90, *VARIANTS["keys general"], form="ttir")
    found["specialized"] = [
        p.name for p in kernel.params if not (p.is_constexpr or p.do_not_specialize)
    ]
    json.dump(found, sys.stdout)


@pytest.fixture(scope="module")
def ptx() -> dict[str, Any]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TRITON_INTERPRET": "0"}
    return dict(json.loads(subprocess.check_output([sys.executable, __file__], env=env)))


def test_addresses_of_tokens_are_computed_in_64_bits(ptx: dict[str, Any]) -> None:
    offsets = re.findall(r"tt\.addptr .*, (\S+) loc", ptx["ttir"])
    assert len(offsets) > 12
    within_a_row = {"tensor<32x64xi32>"}  # of the gradients, where they are stored
    assert {kind for kind in offsets if not re.search(r"i64>?$", kind)} == within_a_row
    products = re.findall(r"arith\.muli .*: (\S+)", ptx["ttir"])
    assert {kind for kind in products if "i32" in kind} <= {"i32"}  # of scalars: tiles, heads


def test_sums_are_neither_fused_nor_flushed(ptx: dict[str, Any]) -> None:
    for (variant, target), text in _of(ptx).items():
        assert not re.search(r"\b(?:add|sub|mul|max)\S*\.ftz", text), (variant, target)
        fused = len(re.findall(r"\bfma\.rn\.(?:f32|f32x2)\b", text))
        if variant == "queries softcap":  # its logits are products
            assert not fused, target
        else:  # one fma an element of a tile of 64 x 64 for 256 threads
            assert fused, target
            assert fused % (64 * 64 // 256) == 0 or "f32x2" in text, target


if __name__ == "__main__":
    main()
