"""Record attention on a GPU: `python tests/record_attention.py FILE`.

Tightness: the bundled kernels on the designated families (docs/error-budgets.md, attention), worst
share a case on float32 output. Agreement: the kernel with the interpreter's tile, on the GPU and on
the interpreter, output by output; on random data, and on data where exp2, the sums of P and the
division are exact, so that only what is left could differ. About a minute.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from attention_draws import family
from test_attention_budget import FAMILIES, shares

from tightrope.arithmetic import Arithmetic
from tightrope.attention_tiles import Config
from tightrope.blackbox import write_atomically
from tightrope.device import current
from tightrope.environment import environment
from tightrope.implementation import registered
from tightrope.oracles.attention import AttentionCase

SMALL = Config(16, 16, 4, 1)
SEEDS = 20
LN2 = float(np.log(2.0))


def bundled():
    """The kernels of `attention` by name, 16-bit ones."""
    current()
    from tightrope.impls import attention, attention_key_outer

    found = [*registered(attention.__name__), *registered(attention_key_outer.__name__)]
    return {i.name: i for i in found if i.name != "triton-tf32x3"}


def launched(kernel, problem, **options):
    """out (groups, rows, features) and lse in float64, of a problem without extras."""
    dtype, home = getattr(torch, problem.dtype), current().kind
    q, k, v = (
        torch.from_numpy(x)[None].to(dtype).to(home) for x in (problem.q, problem.k, problem.v)
    )
    offset = problem.k.shape[1] - problem.q.shape[1]
    causal = not problem.visible.all()
    out, lse = kernel.fn(
        q, k, v, causal=causal, q_offset=offset, out_dtype=torch.float32,
        softmax_scale=problem.softmax_scale, **options,
    )  # fmt: skip
    return out[0].double().cpu().numpy(), lse[0].double().cpu().numpy()


def tightness():
    """kernel, tile, family -> medians and maxima of the worst shares of T0, T1 and lse."""
    rows = []
    for name, kernel in bundled().items():
        for tile in (SMALL, None) if name == "triton" else (None,):
            for kind, dtype in FAMILIES:
                rows.append(measured(kernel, kind, dtype, tile))
    return rows


def measured(kernel, kind, dtype, tile):
    case = AttentionCase(num_heads=4, seqlen_q=20, head_dim=32, head_dim_v=32, dtype=dtype)
    promise = dict(kernel.promise(case, current()))
    if tile:
        promise["block_k"] = tile.BLOCK_N
    options = {"blocks": tile} if tile else {}
    found = [
        shares(
            family(kind, dtype, s), Arithmetic(**promise), lambda p: launched(kernel, p, **options)
        )
        for s in range(SEEDS)
    ]
    row = {"kernel": kernel.name, "keys a block": promise["block_k"], "data": kind, "dtype": dtype}
    for at, what in enumerate(("T0", "T1", "lse")):
        values = [f[at] for f in found]
        row[what] = {"median": float(np.median(values)), "max": float(np.max(values))}
    return row


def exact_family(dtype, seed):
    """Logits are integers in base 2, and the weights of every 8 keys sum to 2 exactly."""
    problem = family("few_bits", dtype, seed, causal=False)
    rng = np.random.default_rng(seed)
    keys = problem.k.shape[1]
    powers = np.array([0, -1, -2, -3, -4, -5, -6, -6.0])
    steps = np.concatenate([rng.permutation(powers) for _ in range(keys // 8)])
    q, k = np.zeros_like(problem.q), np.zeros_like(problem.k)
    q[..., 0] = 1.0
    k[..., 0] = steps
    parts = dict(vars(problem), q=q, k=k, softmax_scale=LN2)
    return type(problem)(**parts)


def problems():
    """(name, problem) pairs of the comparison."""
    for kind, dtype in FAMILIES:
        for seed in range(SEEDS):
            yield f"{kind} {dtype}", family(kind, dtype, seed)
    for dtype in ("float16", "bfloat16"):
        for seed in range(SEEDS):
            yield f"exact exp2, sums and division {dtype}", exact_family(dtype, seed)


def outputs():
    kernel = bundled()["triton"]
    return [launched(kernel, p, blocks=SMALL) for _, p in problems()]


def agreement(folder):
    """family -> outputs compared and unlike, GPU against interpreter, the same tile."""
    path = Path(folder) / "interpreter.npz"
    env = {**os.environ, "TIGHTROPE_DEVICE": "cpu"}
    subprocess.run([sys.executable, __file__, "--interpreter", str(path)], env=env, check=True)
    theirs, found = np.load(path), {}
    for i, ((name, _), pair) in enumerate(zip(problems(), outputs(), strict=True)):
        row = found.setdefault(name, dict.fromkeys(("out", "out unlike", "lse", "lse unlike"), 0))
        for what, array in zip(("out", "lse"), pair, strict=True):
            other = theirs[f"{what}{i}"]
            row[what] += array.size
            row[f"{what} unlike"] += int((array != other).sum())
    return found


def main(file):
    with tempfile.TemporaryDirectory() as folder:
        found = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "environment": environment(),
            "device": current().name,
            "tightness": tightness(),
            "agreement with the interpreter": agreement(folder),
        }
    write_atomically(Path(file), json.dumps(found, indent=1) + "\n")
    for name, row in found["agreement with the interpreter"].items():
        print(name, row)


if __name__ == "__main__":
    if sys.argv[1] == "--interpreter":
        arrays = {}
        for i, pair in enumerate(outputs()):
            arrays |= {f"{what}{i}": x for what, x in zip(("out", "lse"), pair, strict=True)}
        np.savez(sys.argv[2], **arrays)
    else:
        main(sys.argv[1])
