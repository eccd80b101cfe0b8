"""`tightrope bench rope`: the bundled rotation against its peers and a plain copy.

Prefill: bandwidth, bytes of q and k read plus written over time, as a share of a device-to-device
copy of as many bytes; what else a rotation reads is stated, not counted. Buffers take turns and
exceed the L2 cache. Decode: few tokens, so wall time a call, host and device together.
Implementations take turns too, so that a drift hits all alike.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from itertools import product
from typing import Any

from tightrope.bench import Wanted, fastest, median, show_all, spread
from tightrope.environment import installed
from tightrope.timing import BATCH, BUFFERS, REPEATS, Call, decode, on_device, prefill

HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
PREFILL, DECODE = 16_384, 64


def measure(wanted: Wanted) -> dict[str, Any]:
    """Times of all contenders and their ratios. Raises ValueError for `only`: one shape is all."""
    if wanted.only:
        raise ValueError("bench rope has one shape; --only is for the other operations")
    moved = bytes_moved(PREFILL)
    found: dict[str, Any] = {
        "peers": {p: installed(p) for p in ("liger-kernel", "transformers")},
        "shape": {"num_heads": HEADS, "num_kv_heads": KV_HEADS, "head_dim": HEAD_DIM},
        "tokens": {"prefill": PREFILL, "decode": DECODE},
        "dtype": "bfloat16",
        "bytes": {"prefill": moved, "decode": bytes_moved(DECODE)},
        "method": {"buffers": BUFFERS, "calls a time": BATCH, "repeats": REPEATS},
        "prefill": prefill(contenders(PREFILL), moved["q and k"]),
        "decode": decode(contenders(DECODE)),
    }
    if wanted.sweep:
        found["sweep"] = prefill(tiles(PREFILL), moved["q and k"])
        found["sweep_decode"] = on_device(tiles(DECODE))
    return {**found, "ratios": verdict(found)}


def bytes_moved(tokens: int) -> dict[str, int]:
    """What one call must move.

    Bandwidth is that of q and k, read and written, for every contender. Rows of cos and sin, one a
    token and read once if caches hold them, and int64 positions come on top.
    """
    row = 2 * (HEAD_DIM // 2)  # elements of cos and sin
    return {
        "q and k": 2 * tokens * (HEADS + KV_HEADS) * HEAD_DIM * 2,
        "rows of a float32 table": tokens * row * 4,
        "rows of a bfloat16 table": tokens * row * 2,
        "positions": tokens * 8,
    }


def _buffers(tokens: int) -> dict[str, Any]:
    """q, k (BUFFERS of each), a float32 table, and its rows one a token, as models hand them on."""
    import torch

    def normal(heads: int) -> list[torch.Tensor]:
        shape = (tokens, heads, HEAD_DIM)
        return [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(BUFFERS)]

    positions = torch.arange(tokens, device="cuda")
    frequencies = 10_000.0 ** (-torch.arange(0, HEAD_DIM, 2, device="cuda") / HEAD_DIM)
    angles = positions[:, None] * frequencies
    cos, sin = angles.cos(), angles.sin()
    rows = [t.repeat(1, 2).unsqueeze(0) for t in (cos, sin)]
    return {
        "q": normal(HEADS), "k": normal(KV_HEADS), "table": (cos, sin, positions),
        "rows": rows, "rows16": [r.bfloat16() for r in rows],
    }  # fmt: skip


def contenders(tokens: int) -> dict[str, Call]:
    """Name -> call, for a copy, the bundled kernels and those peers that are installed."""
    import torch

    rope = import_module("tightrope.impls.rope").rope
    twin = import_module("tightrope.impls.rope_torch").rope
    b = _buffers(tokens)
    q, k, table = b["q"], b["k"], b["table"]
    table16 = (*(t.bfloat16() for t in table[:2]), table[2])
    flat = [torch.cat([x.flatten(), y.flatten()]) for x, y in zip(q, k, strict=True)]
    spare = torch.empty_like(flat[0])
    modes = {
        "triton in place": (table, {"interleaved": False, "inplace": True}),
        "triton": (table, {"interleaved": False}),
        "triton in place, interleaved": (table, {"interleaved": True, "inplace": True}),
        "triton in place, bfloat16 table": (table16, {"interleaved": False, "inplace": True}),
    }
    return {
        "copy": lambda i: spare.copy_(flat[i]),
        **{n: partial(_rotate, rope, q, k, t, options) for n, (t, options) in modes.items()},
        "torch": partial(_rotate, twin, q, k, table, {"interleaved": False}),
        **_peers(b),
    }


def _rotate(rope: Any, q: Any, k: Any, table: Any, options: dict[str, bool], i: int) -> Any:
    return rope(q[i], k[i], *table, **options)


def _peers(b: dict[str, Any]) -> dict[str, Call]:
    """Peers as models call them: (1, heads, tokens, head_dim) views, a row of the table a token."""
    q, k = ([x.unsqueeze(0).transpose(1, 2) for x in b[name]] for name in ("q", "k"))
    found: dict[str, Call] = {}
    liger = import_module("tightrope.impls.peer_liger")
    llama = import_module("tightrope.impls.peer_huggingface")
    if liger.MISSING is None:
        apply = liger.LigerRopeFunction.apply
        found["liger in place, bfloat16 rows"] = lambda i: apply(q[i], k[i], *b["rows16"])
        found["liger in place, float32 rows"] = lambda i: apply(q[i], k[i], *b["rows"])
    if llama.MISSING is None:
        rotate = llama.rotate_halves
        found["huggingface, bfloat16 rows"] = lambda i: rotate(q[i], k[i], *b["rows16"])
    return found


def tiles(tokens: int) -> dict[str, Call]:
    """Every plausible tile of the bundled kernel, in place, its default first."""
    rope = import_module("tightrope.impls.rope")
    b = _buffers(tokens)

    def call(tile: Any) -> Call:
        return lambda i: rope.rope(
            b["q"][i], b["k"][i], *b["table"], interleaved=False, inplace=True, blocks=tile
        )

    found = {"default": call(None)}
    for block, heads, warps in product((1, 2, 4, 8, 16), (4, 8, 16, 32), (1, 2, 4, 8)):
        a_thread = block * heads * HEAD_DIM // (32 * warps)
        if 16 <= a_thread <= 64:
            found[f"{block}x{heads}, {warps} warps"] = call(rope.Config(block, heads, warps))
    return found


def verdict(found: dict[str, Any]) -> dict[str, float]:
    """What the project promises, as ratios of medians of this run, and how sure they are."""
    ours, rows = "triton in place", found["prefill"]
    ratios = {"prefill: share of the copy's bandwidth": median(rows, "copy") / median(rows, ours)}
    for phase in ("prefill", "decode"):
        rows = found[phase]
        best = fastest(rows, lambda name: name.startswith("liger"))
        if best:
            ratios[f"{phase}: time over Liger's"] = median(rows, ours) / median(rows, best)
            both = spread(rows, ours) + spread(rows, best)
            ratios[f"{phase}: spread, ours and Liger's"] = both
    return ratios


def show(found: dict[str, Any]) -> None:
    """Print every table of a result, what a call moves, and the ratios."""
    tables = [(t, found.get(t, {})) for t in ("prefill", "decode", "sweep", "sweep_decode")]
    lines = [
        " ".join([f"{phase}, MB a call:", *(f"{n} {b / 1e6:.3f};" for n, b in moved.items())])
        for phase, moved in found["bytes"].items()
    ]
    show_all(tables, lines, found["ratios"])
