"""Public bugs of cos and sin tables and of context extension, re-created in plain torch."""

from __future__ import annotations

import torch
from public_bugs import bug
from wrong_scaling import FLOAT64, table

TRAINED = {"arithmetic": FLOAT64, "axes": ("one",)}
PLAIN = {"positions": ("range", "random", "long"), **TRAINED}
KEPT = [0]  # the longest sequence that a table was built for


@bug("rope_table", **PLAIN)
def frequencies_in_bfloat16(positions, *, rotary_dim, rope_theta, mended):
    """EleutherAI/gpt-neox#1003: the model is cast to bfloat16, and with it the buffer of
    frequencies, before they are multiplied with positions.
    """
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim
    inv_freq = rope_theta**-exponents
    angle = positions.double()[:, None] * (inv_freq if mended else inv_freq.bfloat16().double())
    return angle.cos().float(), angle.sin().float()


@bug("rope_table", **PLAIN)
def positions_in_half_precision(positions, *, mended, **options):
    """huggingface/transformers#29285: positions are counted in the model's dtype, which cannot tell
    neighbours apart beyond 256 (bfloat16).
    """
    return table(positions if mended else positions.bfloat16(), **options)


@bug("rope_table", rope_theta=(500000.0, 1000000.0), **PLAIN)
def base_of_10000_whatever_is_asked(positions, *, rope_theta, mended, **options):
    """deepspeedai/DeepSpeed#4442: 10000 stands in the CUDA file; CodeLlama trained with 10^6."""
    return table(positions, rope_theta=rope_theta if mended else 10000.0, **options)


@bug(
    "rope_table",
    "test_a_longer_call_before_changes_nothing",
    rope_scaling=("dynamic",),
    **TRAINED,
)
def base_of_the_longest_sequence_so_far(positions, *, mended, **options):
    """huggingface/transformers#25306: the base grows with a sequence and never shrinks, so a short
    prompt is answered differently after a long one.
    """
    return table(positions, longest=None if mended else KEPT, **options)


@bug(
    "rope_table",
    "test_fast_columns_stay_and_slow_ones_are_interpolated",
    rope_scaling=("default", "llama3"),
    **TRAINED,
)
def scaled_frequencies_thrown_away(positions, *, mended, **options):
    """huggingface/transformers#32330: after a variable was renamed the function returns its
    argument, not the frequencies it has just scaled.
    """
    return table(positions, wrong="" if mended else "unscaled", **options)


@bug(
    "rope_table",
    "test_rotary_dim_contains_the_partial_factor",
    rope_scaling=("linear", "yarn"),
    **TRAINED,
)
def exponents_over_the_whole_head(positions, *, mended, **options):
    """pie-project/pie#603: powers of -2i/head_dim though only rotary_dim features turn; its test
    had the same convention.
    """
    return table(positions, wrong="" if mended else "head_dim", **options)


@bug("rope_table", "test_pairs_have_the_declared_norm", rope_scaling=("yarn",), **TRAINED)
def yarn_s_second_correction_missing(positions, *, mended, **options):
    """onnxruntime/mobius#548: of YaRN's two mscale factors one is dropped; at position 0 with one
    key nothing shows.
    """
    return table(positions, wrong="" if mended else "mscale dropped", **options)


@bug(
    "rope_table",
    "test_factors_switch_behind_the_trained_length",
    rope_scaling=("longrope",),
    **TRAINED,
)
def factors_of_the_chunk(positions, *, seq_len=None, mended, **options):
    """huggingface/transformers#33129: which factors hold is decided by the tokens of this call, so
    a cache comes to hold keys turned by either set.
    """
    return table(positions, seq_len=seq_len if mended else len(positions), **options)


@bug(
    "rope_table",
    "test_each_column_turns_by_its_own_axis",
    arithmetic=FLOAT64,
    axes=("interleaved",),
)
def sections_in_a_row(positions, *, mended, **options):
    """vllm-project/vllm-gaudi#1437: time, height and width follow one another in the columns where
    the model's configuration interleaves them.
    """
    return table(positions, wrong="" if mended else "in a row", **options)
