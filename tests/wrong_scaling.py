"""Builders of scaled tables with one mistake each, and their right twin: torch, in float64.

Each is asked for the types that its mistake is about. tests/test_wrong_scaling.py demands that all
but `right` are rejected.
"""

from __future__ import annotations

import math
from functools import partial

import torch

from tightrope import Arithmetic, implements

TYPES = (
    "default", "linear", "ntk", "dynamic", "yarn", "longrope", "llama3", "proportional"
)  # fmt: skip
FLOAT64 = Arithmetic(
    position="exact", inv_freq="float64", inv_freq_ulp=4, angle="float64", trig_ulp=1.0,
    attention_factor="exact",
)  # fmt: skip
LENGTH, MAXIMUM = "original_max_position_embeddings", "max_position_embeddings"


def table(
    positions, *, rotary_dim, rope_theta, rope_scaling=None, seq_len=None, wrong="", longest=None
):
    """cos and sin (len, rotary_dim/2) float32 of positions (len,) or (3, len).

    wrong: the mistake. longest: the longest sequence seen so far, kept by that mistake.
    """
    given = {"rope_type": "default", **(rope_scaling or {})}
    if longest is not None:
        within = "back" in wrong and (seq_len or 0) <= given[MAXIMUM]
        longest[0] = seq_len = 0 if within else max(longest[0], seq_len or 0)
    inv_freq = frequencies(given, rotary_dim, rope_theta, seq_len, wrong)
    m = positions.double()
    if m.ndim > 1 and "added" in wrong:
        m = m.sum(0)
    if m.ndim > 1:
        angle = m[axes(given, rotary_dim // 2, wrong)].T * inv_freq
    else:
        angle = m[:, None] * inv_freq
    a = attention_factor(given, wrong)
    return (a * angle.cos()).float(), (a * angle.sin()).float()


def factor_of(given):
    """s, as given or as the quotient of two lengths."""
    lengths = given[MAXIMUM] / given[LENGTH] if MAXIMUM in given and LENGTH in given else 1.0
    return given.get("factor", lengths)


def frequencies(given, d, base, seq_len, wrong):
    kind, s = given["rope_type"], factor_of(given)
    if "interpolated" in wrong:
        return base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d) / s
    if kind in ("ntk", "dynamic"):
        base = changed(given, d, base, seq_len, wrong)
    width = d
    if "head_dim" in wrong:
        width = d / given.get("partial_rotary_factor", 1.0)
    exponents = torch.arange(0, d, 2, dtype=torch.float64) / width
    w = base**-exponents
    if "unscaled" in wrong:
        return w
    if kind == "linear":
        return base ** (-exponents / s) if "exponent" in wrong else w / s
    if kind == "longrope":
        longest = given[LENGTH] + (1 if "late" in wrong else 0)
        name = "long_factor" if (seq_len or 0) > longest else "short_factor"
        return w / torch.tensor(given[name], dtype=torch.float64)
    if kind == "yarn":
        return mixed(w, s, 1 - ramp(given, d, base, wrong))
    if kind == "llama3":
        return mixed(w, s, smooth(given, w, wrong))
    if kind == "proportional":
        turning = d // 2 if "all turn" in wrong else int(given["partial_rotary_factor"] * d // 2)
        rest = torch.arange(d // 2) >= turning
        return torch.where(rest, 0.0, w / s)
    return w


def mixed(w, s, kept):
    return w / s * (1 - kept) + w * kept


def changed(given, d, base, seq_len, wrong):
    stretch = given["factor"] + (1 if "one more" in wrong else 0)
    if given["rope_type"] == "dynamic":
        longest = max(seq_len or 0, given[MAXIMUM])
        stretch = stretch * longest / given[MAXIMUM] - (stretch - 1)
    return base * stretch ** (d / (d - 2))


def ramp(given, d, base, wrong):
    def column(turns):
        return d * math.log(given[LENGTH] / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = column(given.get("beta_fast", 32.0)), column(given.get("beta_slow", 1.0))
    if given.get("truncate", True) and "untruncated" not in wrong:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, d // 2 - 1 if "clamped" in wrong else d - 1)
    if "swapped" in wrong:
        low, high = high, low
    high += 0.001 if low == high else 0
    return ((torch.arange(d // 2, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)


def smooth(given, w, wrong):
    turns = given[LENGTH] * w / (2 * math.pi)
    low, high = given["low_freq_factor"], given["high_freq_factor"]
    kept = (turns - low) / (high - low)
    inside = (kept >= 0) & (kept <= 1)
    return (
        torch.where(inside, 1 - kept, kept.clamp(0, 1)) if "inverted" in wrong else kept.clamp(0, 1)
    )


def attention_factor(given, wrong):
    kind, log = given["rope_type"], math.log(factor_of(given))
    found = 1.0
    if kind == "yarn":
        scales = {k: given.get(k, usual) for k, usual in (("mscale", 1.0), ("mscale_all_dim", 0.0))}
        if "mscale dropped" in wrong:
            scales = {"mscale": 1.0, "mscale_all_dim": 0.0}
        over, under = (0.1 * m * log + 1 for m in scales.values())
        found = over / under
        if "mscale squared" in wrong:
            found = over**2 / under
    elif kind == "longrope":
        found = math.sqrt(1 + log / math.log(given[LENGTH]))
    found = given.get("attention_factor", found)
    return math.sqrt(found) if "once" in wrong else found


def axes(given, columns, wrong):
    time, height, width = given["mrope_section"]
    if "ignored" in wrong:
        each = columns // 3 if given["mrope_interleaved"] else 3 * columns // 8
        time, height, width = columns - 2 * each, each, each
    if "counts" in wrong:
        height, width = width, height
    if given["mrope_interleaved"] and "in a row" not in wrong:
        found = torch.zeros(columns, dtype=torch.long)
        found[1 : 3 * height : 3], found[2 : 3 * width : 3] = 1, 2
        return found
    order = (0, 2, 1) if "exchanged" in wrong else (0, 1, 2)
    return torch.repeat_interleave(torch.tensor(order), torch.tensor((time, height, width)))


def builder(name, wrong="", types=TYPES, axes=("one",), **more):
    """Put the table with one mistake under test, for these types.

    Laws that compare with the unscaled table need the type `default` as well.
    """
    made = partial(table, wrong=wrong, **more)

    # A signature of its own: what a call passes is looked up in it.
    def build(positions, *, rotary_dim, rope_theta, rope_scaling=None, seq_len=None):
        return made(
            positions, rotary_dim=rotary_dim, rope_theta=rope_theta,
            rope_scaling=rope_scaling, seq_len=seq_len,
        )  # fmt: skip

    limits = {"rope_scaling": types, "axes": axes}
    implements("rope_table", name=name, arithmetic=FLOAT64, **limits)(build)


MIXED = ("default", "yarn", "llama3")
builder("right", axes=("one", "sections", "interleaved"))
builder("unscaled_returned", "unscaled", MIXED)
builder("factor_in_the_exponent", "exponent", ("linear",))
builder("ramp_clamped_at_half", "clamped", ("yarn",))
builder("bounds_untruncated", "untruncated", ("yarn",))
builder("ends_of_the_ramp_swapped", "swapped", ("default", "yarn"))
builder("mscale_dropped", "mscale dropped", ("yarn",))
builder("mscale_squared", "mscale squared", ("yarn",))
builder("attention_factor_once_in_logits", "once", ("yarn", "longrope"))
builder("base_kept_after_a_long_call", "", ("dynamic",), longest=[0])
builder("base_kept_until_back_within_l", "back", ("dynamic",), longest=[0])
builder("short_factors_one_token_too_long", "late", ("longrope",))
builder("head_dim_in_the_exponent", "head_dim", ("linear", "yarn", "llama3", "ntk"))
builder("smooth_factor_inverted", "inverted", ("llama3",))
builder("interpolated_for_a_new_base", "interpolated", ("default", "ntk", "dynamic"))
builder("factor_counted_from_2", "one more", ("default", "ntk"))
builder("all_columns_turn", "all turn", ("proportional",))
builder("axes_added_up", "added", axes=("one", "sections", "interleaved"))
builder("height_and_width_exchanged", "exchanged", axes=("sections",))
builder("interleaved_sections_in_a_row", "in a row", axes=("interleaved",))
builder("sections_ignored", "ignored", axes=("sections", "interleaved"))
builder("counts_of_height_and_width_exchanged", "counts", axes=("sections", "interleaved"))
