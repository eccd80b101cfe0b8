"""The table of tiles, entry by entry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tightrope import attention_tiles
from tightrope.attention_tiles import Config, config, configs, heads_together
from tightrope.launch import launcher

# What a program may have of shared memory, bytes (CUDA programming guide, compute capabilities).
SHARED = {(8, 6): 99 * 2**10, (9, 0): 227 * 2**10, (10, 0): 227 * 2**10}


def table() -> Iterator[tuple[tuple[int, int], int, int, Config]]:
    """Capability, width, bytes an element, entry."""
    for target in SHARED:
        for width in (64, 128, 256):
            for size in (2, 4):
                for entry in configs(width, size, target):
                    yield target, width, size, entry


@pytest.mark.parametrize("bias", [False, True])
def test_every_entry_fits_the_shared_memory(bias: bool) -> None:
    """A tile of q, and of k, v and, under a bias, of float32 scores, as many as are in flight."""
    found = list(table())
    assert len(found) > 30
    for target, width, size, entry in found:
        stages = min(entry.num_stages, 2) if bias else entry.num_stages
        keys = stages * entry.BLOCK_N * 2 * width * size
        scores = (stages - 1) * entry.BLOCK_M * entry.BLOCK_N * 4 if bias else 0
        assert entry.BLOCK_M * width * size + keys + scores <= SHARED[target], entry


def test_rows_of_a_tile_follow_the_work() -> None:
    """Few rows take a small tile; many take the largest that leaves no processor idle."""
    for target in SHARED:
        for width in (64, 128, 256):
            large, *_, small = configs(width, 2, target)
            assert config(1, 1, width, 2, False, target) == small
            assert config(16, 4096, width, 2, False, target) == large
            assert config(1024, 4096, width, 2, False, target).BLOCK_M == large.BLOCK_M
            middle = config(8, 512, width, 2, False, target)
            assert small.BLOCK_M < middle.BLOCK_M <= large.BLOCK_M


@pytest.mark.parametrize(
    ("heads", "seqlen_q", "width", "tile"),
    [
        (8, 512, 64, (64, 64, 4, 3)),
        (8, 1024, 64, (64, 128, 4, 3)),
        (8, 4096, 64, (64, 128, 4, 3)),
        (16, 1024, 64, (64, 128, 4, 3)),
        (4 * 8, 1024, 64, (64, 64, 4, 3)),
        (4 * 32, 4096, 64, (64, 64, 4, 3)),
        (4 * 16, 4096, 128, (64, 64, 4, 3)),
    ],
)
def test_an_h200_has_the_tile_that_was_fastest(
    heads: int, seqlen_q: int, width: int, tile: tuple[int, ...]
) -> None:
    """Of all tiles timed there in one run, for float16 under a causal mask."""
    assert config(heads, seqlen_q, width, 2, False, (9, 0)) == tile


def test_only_short_heads_of_one_target_have_keys_that_depend_on_the_work() -> None:
    """Bits follow the keys of a tile; elsewhere a sequence is the same in a batch of any size."""
    for target in SHARED:
        for width in (64, 80, 128, 256):
            for size in (2, 4):
                tiles = [config(n, 4096, width, size, False, target) for n in (1, 8, 32, 1024)]
                depends = len({tile.BLOCK_N for tile in tiles}) > 1
                assert depends == (target == (9, 0) and width <= 64 and size == 2)


def test_a_bias_keeps_the_keys_of_a_tile() -> None:
    """Budgets are made for a number of keys and do not ask whether there is a bias."""
    for target in SHARED:
        for width in (16, 80, 256):
            plain, biased = (config(64, 999, width, 2, bias, target) for bias in (False, True))
            assert biased == plain._replace(num_stages=min(plain.num_stages, 2))


def test_the_interpreter_has_one_tile() -> None:
    assert {config(n, n, 64, 2, False, None) for n in (1, 16, 5000)} == {Config(16, 16, 4, 1)}


def test_heads_run_together_as_far_as_their_keys_stay_in_cache() -> None:
    half = attention_tiles.L2_BYTES // 2
    assert heads_together(12, 4, half) == 8
    assert heads_together(12, 4, 4 * half) == 4
    assert heads_together(6, 4, half) == 6
    assert heads_together(12, 4, 0) == 12


def test_stages_of_a_tile_reach_the_launch() -> None:
    found: list[dict[str, Any]] = []

    class Kernel:
        params = ()

        def __getitem__(self, grid: Any) -> Any:
            return lambda *arguments, **options: found.append({"arguments": arguments, **options})

    launcher(Kernel(), torch.device("cpu"), 1, (2, 0.5), {"BLOCK_M": 16}, 4, 3)()
    assert found[0]["arguments"] == (2, 0.5, 16)
    assert (found[0]["num_warps"], found[0]["num_stages"]) == (4, 3)
