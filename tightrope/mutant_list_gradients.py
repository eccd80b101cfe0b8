"""Mutants of `rope_backward` and `attention_backward`, also in the core below them."""

from __future__ import annotations

from functools import partial

from tightrope.mutants import Mutant

HALF = ("float16", "bfloat16")
turn = partial(Mutant, "rope_backward")
rotation = partial(Mutant, "rope_backward", module="impls/rope")
kernel = partial(Mutant, "attention_backward")
step = partial(Mutant, "attention_backward", module="attention_backward_steps")
call = partial(Mutant, "attention_backward", module="attention_backward_call")
shared = partial(Mutant, "attention_backward", module="attention_call")
places = partial(Mutant, "attention_backward", module="attention_steps")

ROTATION = (
    turn("turned_forward", "sign", "transposed=True", "transposed=False"),
    turn("dq_and_dk_swapped", "layout", "dq, dk, cos, sin, positions, interleaved",
         "dk, dq, cos, sin, positions, interleaved"),
    turn("cos_and_sin_swapped", "table", "dq, dk, cos, sin, positions, inter",
         "dq, dk, sin, cos, positions, inter"),
    turn("in_place_ignored", "in place", "inplace=inplace", "inplace=False"),
    turn("out_dtype_ignored", "cast", "out_dtype=out_dtype", "out_dtype=None"),
    turn("layout_swapped", "layout", "interleaved=interleaved", "interleaved=not interleaved"),
    turn("one_position_late", "position", "dq, dk, cos, sin, positions, inter",
         "dq, dk, cos, sin, (positions + 1) % cos.shape[0], inter"),
    turn("table_in_bfloat16", "table", "dq, dk, cos, sin, positions, inter",
         "dq, dk, cos.bfloat16(), sin.bfloat16(), positions, inter"),
    rotation("only_the_first_transposed", "sign", "(b * c - a * s)", "(b * c + a * s)"),
    rotation("tail_unwritten", "tail", "tail = 0 if inplace else head_dim - 2 * half", "tail = 0"),
    rotation("tail_zeroed", "tail", "kept.to(out), mask=keep)", "(kept * 0).to(out), mask=keep)"),
    rotation("last_token_skipped", "unwritten outputs", "(token < tokens)[:, None, None]",
             "(token < tokens - 1)[:, None, None]"),
    rotation("k_by_head_stride_of_q", "stride", "x_token, x_head, x_dim = k_token, k_head",
             "x_token, x_head, x_dim = k_token, q_head"),
    rotation("sum_rounded_twice", "doubled rounding", "(a * c + b * s)",
             "(a * c + b * s).to(tl.bfloat16)", dtypes=("float16", "float32", "float64")),
    rotation("worked_in_the_input_dtype", "accumulate dtype",
             "wide = tl.float64 if x.dtype.element_ty == tl.float64 else tl.float32",
             "wide = x.dtype.element_ty", dtypes=HALF),
    rotation("truncated", "rounding mode", "(a * c + b * s).to(out)",
             '(a * c + b * s).to(out, fp_downcast_rounding="rtz" if wide != out else None)',
             dtypes=HALF),
)  # fmt: skip

GRAD_1 = 'grad_1_tile = tl.dot(ds.to(x.dtype), x, grad_1_tile, input_precision="ieee")'
GRAD_2 = 'grad_2_tile = tl.dot(p.to(y.dtype), y, grad_2_tile, input_precision="ieee")'
SCORES = 's = tl.dot(one, tl.trans(x), input_precision="ieee")'
UPSTREAM = 'dp = tl.dot(two, tl.trans(y), input_precision="ieee")'
HEADS = "walked_head = (h // share * repeat).to(tl.int32)"

TERMS = (
    kernel("delta_missing", "backward terms", "ds = p * (dp - delta_tile)", "ds = p * dp"),
    kernel("delta_added", "backward terms", "(dp - delta_tile)", "(dp + delta_tile)"),
    kernel("scale_missing", "backward terms", "(grad_1_tile * scale)", "(grad_1_tile)"),
    kernel("scale_twice", "backward terms", "(grad_1_tile * scale)",
           "(grad_1_tile * scale * scale)"),
    kernel("scale_twice_for_dk", "backward terms", "(grad_1_tile * scale)",
           "(grad_1_tile * scale * (scale if KEYS else 1.0))"),
    kernel("scale_of_dv_too", "backward terms", "grad_2_tile.to(grad_2.dtype.element_ty)",
           "(grad_2_tile * scale).to(grad_2.dtype.element_ty)"),
    kernel("slope_of_the_cap_missing", "backward terms", "            ds *= slope\n",
           "            ds *= 1.0\n"),
    kernel("slope_of_p_too", "backward terms", "            ds *= slope\n",
           "            ds *= slope\n            p *= slope\n"),
    step("slope_not_squared", "backward terms", "slope = 1.0 - tanh * tanh", "slope = 1.0 - tanh"),
    step("slope_by_the_cap", "backward terms", "slope = 1.0 - tanh * tanh",
         "slope = (1.0 - tanh * tanh) / cap"),
    step("delta_of_sums", "backward terms",
         "delta = tl.sum(out.to(tl.float32) * dout.to(tl.float32), 1)",
         "delta = tl.sum(out.to(tl.float32), 1) * tl.sum(dout.to(tl.float32), 1)"),
    step("delta_in_the_input_dtype", "accumulate dtype",
         "delta = tl.sum(out.to(tl.float32) * dout.to(tl.float32), 1)",
         "delta = tl.sum((out * dout).to(tl.float32), 1)", dtypes=HALF),
    step("delta_rounded", "doubled rounding", "tl.where(mine, delta, 0.0),",
         "tl.where(mine, delta, 0.0).to(tl.bfloat16).to(tl.float32),"),
    step("lse_taken_for_base_2", "lse base", "lse * LOG2E, float", "lse, float"),
    step("softcap_in_base_2", "constants", "tl.exp2(cap * tanh * LOG2E - shift)",
         "tl.exp2(cap * tanh - shift)"),
    step("softcap_without_its_factor_2", "constants", "(2 * LOG2E)", "LOG2E"),
    step("log2e_to_4_digits", "constants", "1.4426950408889634", "1.4427"),
    step("exponential_of_base_e", "constants", "tl.exp2(tl.fma(", "tl.exp(tl.fma("),
    step("exponential_1e_4_off", "exp accuracy",
         "p = tl.exp2(tl.fma(s, c, tl.broadcast_to(-shift, s.shape)))",
         "p = tl.exp2(tl.fma(s, c, tl.broadcast_to(-shift, s.shape))) * 1.0001"),
    step("rows_without_a_key_live", "masks", 'live = mine & (lse != float("-inf"))', "live = mine",
         equivalent="a row without a key is in no tile that is seen whole, and what is made of it "
         "in others is thrown away by the selection by `seen`"),
    kernel("stale_gradient_of_v", "backward terms", GRAD_2,
           f"{GRAD_2}\n            grad_2_tile += grad_2_tile * (step == 1)"),
    kernel("gradient_of_the_last_tile", "backward terms", GRAD_1,
           GRAD_1.replace("x, grad_1_tile,", "x,")),
    kernel("last_tile_dropped", "tail", "tl.range(0, repeat * tiles)",
           "tl.range(0, repeat * tiles - 1)"),
    kernel("first_tile_dropped", "tail", "tl.range(0, repeat * tiles)",
           "tl.range(1, repeat * tiles)"),
    kernel("whole_tiles_dropped", "masks", "p, ds = tl.where(seen, p, 0.0), tl.where(seen, ds, "
           "0.0)", "p, ds = tl.where(seen, p, 0.0) * (start >= whole), tl.where(seen, ds, 0.0)"),
)  # fmt: skip

TILES = (
    kernel("p_unmasked", "masks", "p, ds = tl.where(seen, p, 0.0), tl", "p, ds = p, tl"),
    kernel("ds_unmasked", "masks", "tl.where(seen, p, 0.0), tl.where(seen, ds, 0.0)",
           "tl.where(seen, p, 0.0), ds"),
    kernel("one_key_too_few", "masks", "clipped(wide + offset + right + 1, walked_length)",
           "clipped(wide + offset + right, walked_length)"),
    kernel("window_one_key_long", "windows", "own_low = clipped(wide + offset - left,",
           "own_low = clipped(wide + offset - left - 1,"),
    kernel("edge_of_the_window_unmasked", "windows", "if (start < whole) | (start >= rest):",
           "if start >= rest:"),
    kernel("edge_of_the_future_unmasked", "masks", "if (start < whole) | (start >= rest):",
           "if start < whole:"),
    kernel("tiles_begin_anywhere", "masks", "first = low // WALKED * WALKED", "first = low",
           equivalent="tiles from the first one seen on cover the same keys, masked where one is "
           "not seen; `whole` is behind all of them that need it"),
    kernel("hidden_keys_read", "masks", "some = (walked >= low) & (walked < high)",
           "some = walked < walked_length"),
    kernel("offset_of_keys_not_turned", "offsets", "offset += -given if KEYS else given",
           "offset += given"),
    kernel("first_offset_for_all", "offsets", "offsets + b * offset_batch", "offsets"),
    kernel("group_not_summed", "head mapping", "tl.range(0, repeat * tiles)",
           "tl.range(0, tiles)"),
    kernel("last_head_of_a_group_missing", "head mapping", "tl.range(0, repeat * tiles)",
           "tl.range(0, tl.maximum(repeat - 1, 1) * tiles)"),
    kernel("group_of_the_wrong_heads", "head mapping", HEADS,
           HEADS.replace("h // share * repeat", "h // share % repeat")),
    kernel("first_head_for_the_whole_group", "head mapping", "walked_head + step // tiles",
           "walked_head"),
    kernel("delta_of_the_first_head", "head mapping", "delta + rows_at + of_head * padded",
           "delta + rows_at + walked_head * padded"),
    kernel("lse_of_the_first_sequence", "stride",
           "rows_at = b * own_heads * repeat * padded", "rows_at = 0 * b"),
    kernel("walked_2_by_row_stride_of_1", "stride", "(walked_2_row * UNIT)",
           "(walked_1_row * UNIT)"),
    kernel("walked_2_by_head_stride_of_1", "stride", "of_head * walked_2_head",
           "of_head * walked_1_head"),
    kernel("own_2_by_batch_stride_of_1", "stride", "b * own_2_batch", "b * own_1_batch"),
    kernel("dout_by_row_stride_of_out", "stride", "wide[:, None] * (dout_row * UNIT)",
           "wide[:, None] * (out_row * UNIT)"),
    kernel("lse_of_stride_1", "stride", "wide * lse_row", "wide"),
    kernel("scores_in_the_input_dtype", "accumulate dtype", SCORES,
           f"{SCORES}.to(one.dtype).to(tl.float32)", dtypes=HALF),
    kernel("upstream_in_the_input_dtype", "accumulate dtype", UPSTREAM,
           f"{UPSTREAM}.to(one.dtype).to(tl.float32)", dtypes=HALF),
    kernel("sums_in_float16", "accumulate dtype", GRAD_1,
           f"{GRAD_1}.to(tl.float16).to(tl.float32)", dtypes=("float16",)),
    kernel("sums_in_bfloat16", "accumulate dtype", GRAD_1,
           f"{GRAD_1}.to(tl.bfloat16).to(tl.float32)", dtypes=("bfloat16", "float32")),
    kernel("sums_of_dv_in_the_input_dtype", "accumulate dtype", GRAD_2,
           f"{GRAD_2}.to(y.dtype).to(tl.float32)", dtypes=HALF),
    kernel("p_truncated", "rounding mode", "p.to(y.dtype)",
           'p.to(y.dtype, fp_downcast_rounding="rtz")', dtypes=HALF),
    kernel("ds_truncated", "rounding mode", "ds.to(x.dtype)",
           'ds.to(x.dtype, fp_downcast_rounding="rtz")', dtypes=HALF),
    kernel("ds_rounded_twice", "doubled rounding", "ds.to(x.dtype)",
           "ds.to(tl.bfloat16).to(x.dtype)", dtypes=("float16", "float32")),
    kernel("p_of_rounded_weights_in_ds", "cast", "ds = p * (dp - delta_tile)",
           "p = p.to(y.dtype).to(tl.float32)\n        ds = p * (dp - delta_tile)", dtypes=HALF),
    kernel("products_in_tf32", "dot precision", SCORES, SCORES.replace("ieee", "tf32"),
           dtypes=("float32",)),
    kernel("last_row_of_dk_unwritten", "unwritten outputs", "kept, kept_v = mine[:, None] &",
           "kept, kept_v = (own < own_length - 1)[:, None] &"),
    kernel("last_feature_of_dv_unwritten", "unwritten outputs", "mine[:, None] & dims_v[None, :]",
           "mine[:, None] & (d_v < words_v * UNIT - 1)[None, :]"),
    kernel("one_row_too_many", "out of bounds", "kept, kept_v = mine[:, None] & dims[None, :],",
           "kept, kept_v = (own < own_length + 1)[:, None] & dims[None, :],"),
    kernel("delta_past_the_rows_not_zero", "tail", "tl.store(delta + place, sums)",
           "tl.store(delta + place, sums, mask=mine)",
           needs="gpu: on the CPU memory of rows that there are not is mostly 0 or finite"),
)  # fmt: skip

CALL = (
    call("scale_of_the_width_of_v", "scale", "scale = width**-0.5 if",
         "scale = value.shape[3]**-0.5 if"),
    call("given_scale_ignored", "scale",
         "width**-0.5 if options.softmax_scale is None else float(options.softmax_scale)",
         "width**-0.5"),
    call("window_not_mirrored", "windows", "((-offset, right, left) if keys",
         "((-offset, left, right) if keys"),
    call("offset_not_mirrored", "offsets", "((-offset, right, left) if keys",
         "((offset, right, left) if keys"),
    call("own_heads_of_the_other_pass", "head mapping", "(1, call.group) if keys else (call.group,",
         "(1, call.group) if keys else (1,"),
    call("plan_of_another_scale", "state", "described((*call, *options, id",
         "described((*call, *options[1:], id"),
    call("aligned_build_anywhere", "alignment", "if plan.aligned is None or addresses % 16 else",
         "if plan.aligned is None else",
         needs="gpu: the interpreter reads words at any address"),
    shared("causal_ignored", "masks", "0 if causal else right", "right"),
    shared("log2e_of_the_scale_to_4_digits", "constants", "math.log2(math.e)", "1.4427"),
    places("whole_by_the_first_row", "windows", "least, most = last_row + offset - left,",
           "least, most = first_row + offset - left,"),
    places("high_by_the_first_row", "masks", "last_row + offset + right + 1\n    least",
           "first_row + offset + right + 1\n    least"),
)  # fmt: skip

MUTANTS = ROTATION + TERMS + TILES + CALL
