"""Hugging Face's tables as a peer: ROPE_INIT_FUNCTIONS, and Llama's forward around them.

Frequencies, angles and tables are float32 throughout. torch's CPU kernels take powers, cosines and
sines from SLEEF, within 1 ulp, hence 1.5 of the exact cosine.
"""

from __future__ import annotations

import torch

from tightrope import Arithmetic, implements

MISSING: str | None = None
try:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.utils import logging

    logging.set_verbosity_error()
except ImportError as error:
    MISSING = f"transformers: {error}"

TYPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional")
SLEEF = Arithmetic(inv_freq_ulp=1, trig_ulp=1.5)


def inv_freq(rotary_dim, rope_theta, rope_scaling, seq_len=None):
    """Frequencies (rotary_dim/2,) and attention_factor by Hugging Face's code."""
    given = dict(rope_scaling or {"rope_type": "default"})
    if given["rope_type"] != "proportional":
        given.pop("partial_rotary_factor", None)  # rotary_dim has it already
    if given["rope_type"] == "default":
        exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float) / rotary_dim
        return 1.0 / (rope_theta**exponents), 1.0
    config = LlamaConfig(
        hidden_size=rotary_dim,
        num_attention_heads=1,
        head_dim=rotary_dim,
        max_position_embeddings=given.pop("max_position_embeddings", 2**20),
        rope_parameters={**given, "rope_theta": rope_theta},
    )
    # as in the models' forward, where it is a tensor
    length = None if seq_len is None else torch.tensor(seq_len)
    return ROPE_INIT_FUNCTIONS[given["rope_type"]](config, "cpu", seq_len=length)


def huggingface(positions, *, rotary_dim, rope_theta, rope_scaling=None, seq_len=None):
    """cos and sin (len, rotary_dim/2) float32; positions (len,), or (3, len) in sections."""
    frequencies, factor = inv_freq(rotary_dim, rope_theta, rope_scaling, seq_len)
    angles = positions[..., None].float() * frequencies.to(positions.device)
    cos, sin = angles.cos() * factor, angles.sin() * factor
    if positions.ndim == 1:
        return cos, sin
    return tuple(_columns(table, rope_scaling) for table in (cos, sin))


def _columns(table, rope_scaling):
    """The columns of each axis, as Qwen2-VL and, interleaved, Qwen3-VL compose them."""
    section = rope_scaling["mrope_section"]
    if not rope_scaling.get("mrope_interleaved"):
        parts = table.split(section, dim=-1)
        return torch.cat([part[axis % 3] for axis, part in enumerate(parts)], dim=-1)
    found = table[0].clone()
    for axis in (1, 2):
        places = slice(axis, section[axis] * 3, 3)
        found[..., places] = table[axis, ..., places]
    return found


if MISSING is None:
    everything = {"rope_scaling": TYPES, "axes": ("one", "sections", "interleaved")}
    implements("rope_table", name="huggingface", arithmetic=SLEEF, **everything)(huggingface)
