"""What the Hopper kernel refuses before it launches anything, with argument, expected and got."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attention_calls import HOME
from pope_calls import polar

from tightrope.impls.pope_attention_hopper import pope_attention_hopper
from tightrope.pope_hopper_tile import MANY, WIDE, Tile, check_tile

pytestmark = pytest.mark.skipif(
    HOME != "cpu", reason="simulated on the CPU; on a GPU the laws run the kernel itself"
)

FEW = Tile(128, 64, 64, 3, 3, 3, True, False, 2, 1, 200, 104)


def call(head_dim: int = 64, **changes: Any) -> Any:
    tensors = polar(64, head_dim=head_dim, head_dim_v=64, seqlen_q=9, seqlen_k=9)
    return pope_attention_hopper(**{**tensors, **changes})


def tensor(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "window": ({"window_size": (3, None)}, ValueError, r"window_size: expected .*got \(3, None\)"),
    "softcap": ({"softcap": 5.0}, ValueError, "softcap: expected"),
    "sink": ({"sink": tensor(4, dtype=torch.float32)}, ValueError, "sink: expected"),
    "offsets": ({"q_offset": tensor(2, dtype=torch.int32)}, ValueError, "q_offset: expected an"),
    "dtype": (
        {n: tensor(2, h, 9, 64, dtype=torch.float32) for n, h in (("q", 4), ("k", 2), ("v", 2))},
        TypeError, "q.dtype: expected float16 or bfloat16",
    ),
    "wider q and k": ({"head_dim": 72}, ValueError, "head_dim, head_dim_v, rotary_dim: expected"),
    "partial": (
        {"inv_freq": torch.ones(32)}, ValueError, r"head_dim, head_dim_v, rotary_dim: .*64, 64, 32",
    ),
    "expanded k": ({"k": tensor(2, 1, 9, 64).expand(2, 2, 9, 64)}, ValueError, r"k.stride\(\)"),
    "odd rows": ({"v": tensor(2, 2, 9, 68)[..., :64]}, ValueError, r"v.stride\(\): expected"),
    "every second": ({"q": tensor(2, 4, 9, 128)[..., ::2]}, ValueError, r"q.stride\(\): expected"),
    "flag": ({"validate": 1}, TypeError, "validate: expected True or False"),
    "no tile": ({"tile": (128, 64)}, TypeError, "tile: expected None or a Tile"),
    "delta": ({"delta": torch.zeros(3, 64)}, ValueError, "delta.shape: expected"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "error", "message"), BAD.values(), ids=BAD)
def test_it_is_refused(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(**changes)


def test_a_right_call_is_refused_for_the_device_alone() -> None:
    with pytest.raises(ValueError, match=r"device: expected"):
        call()


@pytest.mark.parametrize(
    ("tile", "width", "why"),
    [
        (FEW._replace(PIPELINED=False), 64, "Q_SHARED"),  # gave wrong results
        (FEW._replace(VALUES=1), 64, "PIPELINED"),  # would wait for itself
        (FEW._replace(KEYS=1), 64, "PIPELINED"),
        (FEW._replace(RAW=0), 64, "stages"),
        (FEW._replace(PARTS=2, CHUNK=32, RAW=3), 64, "stages"),  # each brings every second chunk
        (FEW._replace(CONSUMERS=1, BLOCK_M=64, LOADER=True), 64, "CONSUMERS and PARTS"),
        (FEW._replace(CHUNK=48), 64, "BLOCK_N and CHUNK"),
        (WIDE._replace(CHUNK=64), 128, "BLOCK_N and CHUNK"),
        (FEW._replace(BLOCK_M=96), 64, "BLOCK_M"),
        (FEW._replace(CONSUMERS=3), 64, "CONSUMERS and PARTS"),
        (MANY, 128, "bytes"),
        (FEW._replace(RESIDENT=2), 64, "bytes"),
    ],
)
def test_a_tile_that_cannot_work_is_refused(tile: Tile, width: int, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        check_tile(tile, width, "float16")


def test_only_float16_is_expanded_in_halves() -> None:
    check_tile(FEW, 64, "float16")
    check_tile(FEW._replace(HALF=False), 64, "bfloat16")
    with pytest.raises(ValueError, match="HALF"):
        check_tile(FEW, 64, "bfloat16")
