"""Mutants of the Hopper kernels of attention and PoPE attention, which a Hopper GPU alone runs.

None drops a signal or a wait for one: that would hang, and with it the process.
"""

from __future__ import annotations

from functools import partial

from tightrope.mutants import Mutant

ON_HOPPER = "gpu: one of capability 9.0; tests/test_power_hopper.py kills some by simulation"
HALF = ("float16",)
BRAIN = ("bfloat16",)
plain = partial(Mutant, "attention_hopper", needs=ON_HOPPER)
rows = partial(Mutant, "attention_hopper", module="attention_hopper_rows", needs=ON_HOPPER)
warps = partial(Mutant, "attention_hopper", module="attention_hopper_warps", needs=ON_HOPPER)
call = partial(Mutant, "attention_hopper", module="attention_hopper_call", needs=ON_HOPPER)
polar = partial(Mutant, "pope_attention_hopper", module="pope_hopper_rows", needs=ON_HOPPER)
polar_call = partial(Mutant, "pope_attention_hopper", module="pope_hopper_call", needs=ON_HOPPER)
keys = partial(Mutant, "pope_attention_hopper", module="pope_hopper_warps", needs=ON_HOPPER)
pairs = partial(Mutant, "pope_attention_hopper", module="softplus_hopper", needs=ON_HOPPER)
walk = partial(
    Mutant, "pope_attention_hopper", module="attention_hopper_rows", needs=ON_HOPPER
)  # fmt: skip

LSE = "(m + gl.log2(l)) * LN2"

ATTENTION = (
    warps("one_key_too_many", "masks", "row + sizes[8] + 1", "row + sizes[8] + 2"),
    warps("one_key_too_few", "masks", "row + sizes[8] + 1", "row + sizes[8]"),
    warps("offset_dropped", "offsets", "row + sizes[8] + 1", "row + 1"),
    warps("kv_heads_interleaved", "head mapping", "place = b, h // group",
          "place = b, h % (num_heads // group)"),
    warps("kv_head_0_for_all", "head mapping", "place = b, h // group",
          "place = b, h // num_heads"),
    warps("keys_of_the_first_sequence", "stride", "place = b, h // group", "place = 0, h // group"),
    warps("values_one_row_late", "position", "row = tile * TILE.BLOCK_N\n    bring_tile",
          "row = tile * TILE.BLOCK_N + 1\n    bring_tile"),
    warps("rows_of_q_of_the_first_share", "layout", "at = [b, h, first_row + i * ROWS, 0]",
          "at = [b, h, first_row, 0]"),
    rows("hidden_keys_seen", "masks", "key[None, :] < high[:, None]",
         "key[None, :] < high[:, None] + 1"),
    rows("first_partial_tile_unmasked", "masks", "    if tile >= whole:", "    if tile > whole:"),
    rows("hidden_scores_finite", "masks", "high[:, None], s, LOWEST)",
         "high[:, None], s, -1000.0)"),
    rows("last_tile_dropped", "tail", "return gl.minimum(own, tiles)",
         "return gl.minimum(gl.maximum(own - 1, 1), tiles)"),
    rows("accumulator_not_rescaled", "rescale",
         "acc = acc * gl.convert_layout(alpha, gl.SliceLayout(1, layout))[:, None]",
         "acc = acc * gl.convert_layout(alpha * 0.0 + 1.0, gl.SliceLayout(1, layout))[:, None]"),
    rows("denominator_not_rescaled", "rescale", "l * alpha + gl.sum(p, 1)", "l + gl.sum(p, 1)"),
    rows("maximum_of_the_tile", "rescale", "m_new = gl.maximum(m, gl.max(s, 1) * c)",
         "m_new = gl.max(s, 1) * c"),
    rows("maximum_begins_at_0", "initial max", "m = gl.full([ROWS], LOWEST, gl.float32, s_rows)",
         "m = gl.zeros([ROWS], gl.float32, s_rows)"),
    rows("empty_rows_shifted_by_infinity", "initial max",
         "shift = gl.where(m_new == LOWEST, 0.0, m_new)", "shift = m_new"),
    rows("exponential_1e_4_off", "exp accuracy", "p = gl.exp2(gl.fma(s, c, -shift[:, None]))",
         "p = gl.exp2(gl.fma(s, c, -shift[:, None])) * 1.0001"),
    rows("p_rounded_before_its_sum", "cast", "    alpha = gl.exp2(m - shift)\n",
         "    alpha = gl.exp2(m - shift)\n    p = p.to(gl.float16).to(gl.float32)\n"),
    rows("sums_in_float16", "accumulate dtype",
         "acc = acc * gl.convert_layout(alpha, gl.SliceLayout(1, layout))[:, None]",
         "acc = acc.to(gl.float16).to(gl.float32) * gl.convert_layout(alpha, gl.SliceLayout(1, "
         "layout))[:, None]"),
    rows("lse_in_base_2", "lse base", LSE, "m + gl.log2(l)"),
    rows("ln2_to_4_digits", "constants", "0.6931471805599453", "0.6931"),
    rows("empty_rows_divided_by_0", "tail", "gl.where(l == 0.0, 1.0, l)", "l"),
    rows("not_divided", "rescale",
         "acc = acc / gl.convert_layout(gl.where(l == 0.0, 1.0, l), rows)[:, None]", "acc = acc"),
    rows("last_row_of_lse_unwritten", "unwritten outputs", "LN2, mask=row < seqlen_q)",
         "LN2, mask=row < seqlen_q - 1)"),
    rows("one_row_of_lse_too_many", "out of bounds", "LN2, mask=row < seqlen_q)",
         "LN2, mask=row < seqlen_q + 1)"),
    call("bottom_right_whatever_the_offset", "offsets",
         "max(-seqlen_q, min(q_offset, seqlen_k)) if causal", "(seqlen_k - seqlen_q) if causal"),
    call("causal_ignored", "masks", "if causal else seqlen_k", "if False else seqlen_k"),
    call("scale_of_the_width_of_v", "scale", "options.softmax_scale, None, head_dim)",
         "options.softmax_scale, None, head_dim_v)"),
    call("keys_cut_one_early", "tail", "cut = (*k.shape[:2], found.seqlen_k)",
         "cut = (*k.shape[:2], max(1, found.seqlen_k - 1))"),
    plain("shares_of_rows_alike", "layout", "first_row += GROUP * ROWS", "first_row += 0 * ROWS"),
    plain("last_row_of_q_not_read", "masks", "mask=(row < sizes[0])[:, None], other=0.0)",
          "mask=(row < sizes[0] - 1)[:, None], other=0.0)"),
)  # fmt: skip

POPE = (
    polar("phase_turns_the_other_way", "phase", "c * c_d + s * s_d, s * c_d - c * s_d",
          "c * c_d - s * s_d, s * c_d + c * s_d"),
    polar("phase_of_the_first_head", "phase", "(head % num_heads // delta_group) * D",
          "(head // num_heads * 0) * D"),
    polar("phase_ignored", "phase", "    if TURNED:\n", "    if TURNED and D < 0:\n"),
    polar("sine_of_the_cosine_s_table", "table", "sin_at = gl.multiple_of(cos_at + q_plane",
          "sin_at = gl.multiple_of(cos_at + 0 * q_plane"),
    polar("angles_of_q_of_the_first_sequence", "position", "table + b * q_angles", "table + 0 * b"),
    polar("features_in_bfloat16", "doubled rounding", "return (mu * c).to(x.dtype)",
          "return (mu * c).to(gl.bfloat16).to(x.dtype)", dtypes=HALF),
    polar("activation_of_q_dropped", "activation", "mu = softplus(x, FORM)",
          "mu = x.to(gl.float32)"),
    polar("queries_of_relu", "activation", "mu = softplus(x, FORM)",
          "mu = gl.maximum(x.to(gl.float32), 0.0)"),
    keys("cos_and_sin_swapped", "table", "x, y = expanded(k, cos, sin, TILE.HALF)",
         "x, y = expanded(k, sin, cos, TILE.HALF)"),
    keys("sine_of_the_cosine", "table", "turn_tile.slice(CHUNK, CHUNK, 0)",
         "turn_tile.slice(0, CHUNK, 0)"),
    keys("angles_of_the_first_sequence", "position", "tables, [0, table, row, 0]",
         "tables, [0, 0, row, 0]"),
    keys("angles_one_row_late", "position", "tables, [0, table, row, 0]",
         "tables, [0, table, row + 1, 0]"),
    keys("kv_heads_interleaved", "head mapping", "head % num_heads // group,",
         "head % num_heads % (num_heads // group),", times=2),
    keys("chunks_in_another_order", "layout", "slot, row = number % RAW, chunk * CHUNK",
         "slot, row = number % RAW, (chunk ^ 1) * CHUNK"),
    pairs("pairs_of_relu", "activation", "fma.rn.f16x2 p, p, u, m;", "mov.b32 p, m;", dtypes=HALF),
    pairs("constant_coefficient_halved", "constants", "0x3C00, 0xB7D7", "0x3800, 0xB7D7",
          dtypes=HALF),
    pairs("linear_coefficient_dropped", "exp accuracy", "0xB7D7, 0x342E", "0x0000, 0x342E",
          dtypes=HALF),
    pairs("base_e_for_base_2", "constants", "0fBFB8AA3B;", "0fBF800000;", times=2, dtypes=HALF),
    pairs("features_rounded_twice", "doubled rounding", "(size * cos.to(gl.float32)).to(k.dtype)",
          "(size * cos.to(gl.float32)).to(gl.float16).to(k.dtype)", dtypes=BRAIN),
    walk("denominator_not_rescaled", "rescale", "l * alpha + gl.sum(p, 1)", "l + gl.sum(p, 1)"),
    walk("sums_of_the_cosines_only", "layout", "for i in gl.static_range(len(q)):",
         "for i in gl.static_range(1):"),
    walk("lse_in_base_2", "lse base", LSE, "m + gl.log2(l)"),
    walk("maximum_begins_at_0", "initial max", "m = gl.full([ROWS], LOWEST, gl.float32, s_rows)",
         "m = gl.zeros([ROWS], gl.float32, s_rows)"),
    polar_call("phase_by_one_head", "phase", "num_heads // heads, heads * head_dim",
               "num_heads, heads * head_dim"),
    polar_call("scale_of_the_polar_width", "scale", "options.numbers(head_dim)[2]",
               "options.numbers(2 * head_dim)[2]"),
    polar_call("angles_of_q_of_one_sequence", "position",
               "head_dim * (q_sequences > 1)", "head_dim * (q_sequences < 0)"),
    polar("rows_past_a_share_expanded", "layout", "first_row += GROUP * ROWS",
          "first_row += 0 * ROWS"),
)  # fmt: skip

MUTANTS = ATTENTION + POPE
