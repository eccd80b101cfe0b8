"""What the Hopper kernel of attention refuses before a launch, with argument, expected and got."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attention_calls import HOME, drawn

from tightrope.attention_hopper_tile import Tile, check_tile
from tightrope.impls.attention_hopper import attention_hopper

pytestmark = pytest.mark.skipif(
    HOME != "cpu", reason="simulated on the CPU; on a GPU the laws run the kernel itself"
)

TWO = Tile(128, 64, 2, 2, False, True, True, 2, 240)


def tensor(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def call(**changes: Any) -> Any:
    named = zip("qkv", drawn(2, 4, 2, 9, 9, head_dim=64, head_dim_v=64), strict=True)
    tensors = {name: changes.pop(name, x) for name, x in named}
    return attention_hopper(*tensors.values(), **changes)


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "window": ({"window_size": (3, None)}, ValueError, r"window_size: expected .*got \(3, None\)"),
    "softcap": ({"softcap": 5.0}, ValueError, "softcap: expected"),
    "bias": ({"bias": tensor(1, 1, 9, 9)}, ValueError, "bias: expected"),
    "sink": ({"sink": tensor(4)}, ValueError, "sink: expected"),
    "offsets": ({"q_offset": tensor(2, dtype=torch.int32)}, ValueError, "q_offset: expected an"),
    "dtype": (
        {n: tensor(2, h, 9, 64, dtype=torch.float32) for n, h in (("q", 4), ("k", 2), ("v", 2))},
        TypeError, "q.dtype: expected float16 or bfloat16",
    ),
    "width": (
        {"q": tensor(2, 4, 9, 96), "k": tensor(2, 2, 9, 96)}, ValueError,
        r"head_dim: expected one of \(64, 128, 256\), got 96",
    ),
    "width of v": (
        {"v": tensor(2, 2, 9, 256)}, ValueError, r"head_dim_v: expected one of \(64, 128\), got 256"
    ),
    "odd rows": ({"v": tensor(2, 2, 9, 68)[..., :64]}, ValueError, r"v.stride\(\): expected"),
    "no tile": ({"tile": 128}, TypeError, "tile: expected None or a Tile"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "error", "message"), BAD.values(), ids=BAD)
def test_it_is_refused(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(**changes)


@pytest.mark.parametrize(
    ("tile", "why"),
    [
        # With queries in registers, gave wrong results in a prototype.
        (TWO._replace(OVERLAPPED=False, Q_SHARED=False), "Q_SHARED"),
        (TWO._replace(VALUES=1), "PIPELINED"),  # would wait for itself
        (TWO._replace(OVERLAPPED=False, PIPELINED=True, KEYS=1), "PIPELINED"),
        (TWO._replace(KEYS=0), "stages"),
        (TWO._replace(BLOCK_N=48), "BLOCK_N"),
        (TWO._replace(BLOCK_M=192), "BLOCK_M"),
        (TWO._replace(CONSUMERS=4, BLOCK_M=256), "CONSUMERS"),
        (TWO._replace(BLOCK_N=256, KEYS=6), "bytes"),
        (TWO._replace(KEYS=12, RESIDENT=2), "bytes"),
    ],
)
def test_a_tile_that_cannot_work_is_refused(tile: Tile, why: str) -> None:
    check_tile(TWO, 64, 64)
    with pytest.raises(ValueError, match=why):
        check_tile(tile, 64, 64)
