"""Scaled tables of real models by Hugging Face's code, within the budget of its float32 arithmetic.

tests/configs holds the models' public parameters. As a program this file prints by how much each
table is off: `python tests/test_rope_scaling_peers.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tightrope.budget import Budget
from tightrope.formats import Array, widen
from tightrope.oracles import rope_table_exact
from tightrope.oracles.rope_table import CONTRACT
from tightrope.oracles.rope_table_scaling_budget import of_scaling
from tightrope.rope_scaling import read
from tightrope.verdict import judge

pytest.importorskip("transformers", reason="the peer is Hugging Face's model code")

import rope_scaling_peer as peer

CONFIGS = {p.stem: json.loads(p.read_text()) for p in (Path(__file__).parent / "configs").iterdir()}
FARTHEST = 2**20
REPORTED = (4096, 131072, FARTHEST)


def asked(config: dict[str, Any], seq_len: int | None = None) -> dict[str, Any]:
    """The options of the table of a model."""
    given = dict(config["rope_parameters"])
    theta = float(given.pop("rope_theta"))
    part = given.get("partial_rotary_factor", 1) if given["rope_type"] != "proportional" else 1
    return {
        "rotary_dim": int(config["head_dim"] * part), "rope_theta": theta,
        "rope_scaling": given, "seq_len": seq_len,
    }  # fmt: skip


def positions_of(config: dict[str, Any]) -> Array:
    """Around every length of a config, far ones, others; on three axes where it has them."""
    given = config["rope_parameters"]
    lengths = {v for k, v in given.items() if k.endswith("max_position_embeddings")}
    edges = [length + step for length in lengths for step in (-1, 0, 1)]
    rng = np.random.default_rng(0)
    some = [int(m) for far in REPORTED for m in rng.integers(0, far, 12)]
    last = config["max_position_embeddings"] - 1
    found = np.array([0, 1, 2, *edges, last, *some, *REPORTED])
    if "mrope_section" not in given:
        return found
    return np.stack([found, found // 3, found % 1000])


def compared(config: dict[str, Any], seq_len: int | None) -> Any:
    """Of cos and sin: name, Hugging Face's table, its budget, and exact values on request."""
    options, inputs = asked(config, seq_len), {"positions": positions_of(config)}
    scaling = read(**options)
    case = SimpleNamespace(
        rotary_dim=options["rotary_dim"], rope_theta=options["rope_theta"], dtype="float32"
    )
    stages = peer.SLEEF.over(CONTRACT.stages)
    budgets = of_scaling(rope_table_exact, case, scaling, inputs, stages)
    tables = peer.huggingface(torch.from_numpy(inputs["positions"]), **options)
    for name, table in zip(("cos", "sin"), tables, strict=True):
        yield (
            name,
            table.numpy(),
            budgets[name],
            lambda at, name=name: rope_table_exact.exact(case, inputs, name, at, scaling),
        )


def lengths(config: dict[str, Any]) -> list[int | None]:
    """Sequence lengths on both sides of a switch."""
    given = config["rope_parameters"]
    if given["rope_type"] == "longrope":
        trained = given["original_max_position_embeddings"]
        return [trained, trained + 1]
    return [None, FARTHEST] if given["rope_type"] == "dynamic" else [None]


@pytest.mark.parametrize("model", CONFIGS)
def test_a_models_table_is_within_the_budget_of_float32(model: str) -> None:
    for seq_len in lengths(CONFIGS[model]):
        for name, table, budget, exact in compared(CONFIGS[model], seq_len):
            verdict = judge(name, table, budget, exact)
            assert verdict.ok, f"{model}, seq_len {seq_len}\n{verdict.message}"


@pytest.mark.parametrize("model", CONFIGS)
def test_the_budget_is_not_empty(model: str) -> None:
    """Some element spends a tenth of what it may, and the unscaled table is not accepted."""
    config = CONFIGS[model]
    found = list(compared(config, lengths(config)[-1]))
    assert max(float(budget.share(table).max()) for _, table, budget, _ in found) > 0.1
    if config["rope_parameters"]["rope_type"] == "default":
        return
    plain = {"rope_type": "default"} | {
        k: v for k, v in config["rope_parameters"].items() if k.startswith("mrope")
    }
    other = peer.huggingface(
        torch.from_numpy(positions_of(config)), **{**asked(config), "rope_scaling": plain}
    )
    assert not all(b.accepts(t.numpy()) for (_, _, b, _), t in zip(found, other, strict=True))


@pytest.mark.parametrize("model", ["llama-3.1-8b", "gpt-oss-20b", "qwen2-vl-7b", "qwen3-vl-8b"])
def test_the_peer_is_the_models_own_module(model: str) -> None:
    """Bit for bit: cos and sin of the rotary embedding that the model's code builds."""
    config, options = CONFIGS[model], asked(CONFIGS[model])
    positions = torch.from_numpy(positions_of(config))
    mine = peer.huggingface(positions, **options)
    theirs = module(model, config)(torch.zeros(1), positions.unsqueeze(-2))
    for a, b in zip(mine, theirs, strict=True):
        assert torch.equal(a, b[0, :, : a.shape[-1]])


def module(model: str, config: dict[str, Any]) -> Any:
    from transformers import LlamaConfig, Qwen2VLTextConfig, Qwen3VLTextConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
    from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLRotaryEmbedding
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRotaryEmbedding

    kinds = {
        "qwen2-vl-7b": (Qwen2VLTextConfig, Qwen2VLRotaryEmbedding),
        "qwen3-vl-8b": (Qwen3VLTextConfig, Qwen3VLTextRotaryEmbedding),
    }
    made, embedding = kinds.get(model, (LlamaConfig, LlamaRotaryEmbedding))
    return embedding(
        made(
            hidden_size=config["head_dim"],
            num_attention_heads=1,
            num_key_value_heads=1,
            head_dim=config["head_dim"],
            rope_parameters=dict(config["rope_parameters"]),
            max_position_embeddings=config["max_position_embeddings"],
        )
    )


def off(table: Array, budget: Budget, rows: Array) -> dict[str, float]:
    """The largest error of some rows, and the largest share of the budget."""
    error = np.abs(widen(table) - budget.expected)[rows]
    return {"error": float(error.max()), "share": float(budget.share(table)[rows].max())}


def report() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for model, config in CONFIGS.items():
        rows = np.atleast_2d(positions_of(config))[0]
        for seq_len in lengths(config):
            for name, table, budget, _ in compared(config, seq_len):
                found.setdefault(f"{model} {seq_len or ''}".strip(), {})[name] = {
                    f"to {far}": off(table, budget, rows <= far) for far in REPORTED
                }
    return found


if __name__ == "__main__":
    print(json.dumps(report(), indent=1))
