"""Mutants of the gradients of packed sequences, of PoPE attention and of a ring."""

from __future__ import annotations

from functools import partial

from tightrope.mutants import Mutant

HALF = ("float16", "bfloat16")
packed = partial(Mutant, "attention_varlen_backward")
packed_steps = partial(Mutant, "attention_varlen_backward", module="varlen_backward_steps")
packed_call = partial(Mutant, "attention_varlen_backward", module="varlen_backward_call")
sums = partial(Mutant, "attention_varlen_backward", module="attention_backward_steps")
polar = partial(Mutant, "pope_attention_backward")
points = partial(Mutant, "pope_attention_backward", module="pope_backward_steps")
ring = partial(Mutant, "ring_attention_backward")
shards = partial(Mutant, "ring_attention_backward", module="ring_shards")

PACKED = (
    packed("keys_of_the_first_sequence", "offsets", "first_walked, walked_length = walked_span(\n"
           "        starts_walked, walked_step, sequence,",
           "first_walked, walked_length = walked_span(\n"
           "        starts_walked, walked_step, sequence * 0,"),
    packed("starts_walked_by_the_owned_step", "stride", "starts_walked, walked_step, sequence,",
           "starts_walked, own_step, sequence,"),
    packed("offset_of_keys_not_turned", "offsets", "offset = -given if KEYS else given",
           "offset = given"),
    packed("default_top_left", "masks", "offset = (walked_length - own_length).to(tl.int64)",
           "offset = (walked_length * 0).to(tl.int64)"),
    packed("one_key_too_few", "masks", "offset + right + 1, walked_length)\n    alive",
           "offset + right, walked_length)\n    alive"),
    packed("window_one_key_long", "windows", "own_low = clipped(own.to(tl.int64) + offset - left,",
           "own_low = clipped(own.to(tl.int64) + offset - left - 1,"),
    packed("last_head_of_a_group_missing", "head mapping", "walked_head + repeat)",
           "walked_head + tl.maximum(repeat - 1, 1))"),
    packed("group_of_the_wrong_heads", "head mapping", "head // share * repeat",
           "head // share % repeat"),
    packed("lse_of_the_first_head", "stride", "lse + h * lse_head", "lse + 0 * lse_head"),
    packed("sums_of_the_first_head", "stride", "row = h_w * walked_tokens + at", "row = at"),
    packed("scale_twice", "backward terms", "(total_1 * scale)", "(total_1 * scale * scale)"),
    packed("gradient_of_the_last_tile", "backward terms",
           'total_1 = tl.dot(ds.to(x.dtype), x, total_1,', "total_1 = tl.dot(ds.to(x.dtype), x,"),
    packed("ds_truncated", "rounding mode", "ds.to(x.dtype)",
           'ds.to(x.dtype, fp_downcast_rounding="rtz")', dtypes=HALF),
    packed("p_truncated", "rounding mode", "p.to(y.dtype)",
           'p.to(y.dtype, fp_downcast_rounding="rtz")', dtypes=HALF),
    packed("last_owned_unwritten", "unwritten outputs", "mine, token = own < own_length,",
           "mine, token = own < own_length - 1,"),
    packed_steps("owner_one_early", "offsets", "(start // TILE + i <= tile)",
                 "(start // TILE + i < tile)"),
    packed_steps("last_token_of_a_sequence_dropped", "tail", "last = tl.load(at + step)",
                 "last = tl.load(at + step) - 1"),
    packed_steps("tokens_behind_all_see_one_another", "masks",
                 "tl.where(sequence < sequences, length, 0)", "length"),
    packed_call("window_not_mirrored", "windows", "(right, left) if keys else (left, right)",
                "(left, right)"),
    packed_call("scale_of_the_width_of_v", "scale", "width, scale = call.q.shape[2],",
                "width, scale = call.v.shape[2],"),
    sums("delta_missing", "backward terms", "    ds = p * (dp - sums)\n", "    ds = p * dp\n"),
    sums("lse_taken_for_base_2", "lse base", "lse * LOG2E, float", "lse, float"),
)  # fmt: skip

POLAR = (
    polar("delta_missing", "backward terms", "ds = p * (dp - sum_tile)", "ds = p * dp"),
    polar("scale_of_ddelta_missing", "backward terms", "tl.sum(turned, 0) * scale",
          "tl.sum(turned, 0)"),
    polar("ddelta_of_the_other_sign", "sign", "(sine * grad_x - cosine * grad_y)",
          "(cosine * grad_y - sine * grad_x)"),
    polar("ddelta_without_magnitudes", "activation", "softplus(one, FORM) * (sine",
          "1.0 * (sine"),
    polar("sigmoid_missing", "activation", "found = sigmoid(one) * (cosine", "found = (cosine"),
    polar("way_back_of_the_other_sign", "sign", "(cosine * grad_x + sine * grad_y)",
          "(cosine * grad_x - sine * grad_y)"),
    polar("gradient_of_the_cosines_only", "backward terms", "(cosine * grad_x + sine * grad_y)",
          "(cosine * grad_x)"),
    polar("phase_of_the_first_head", "phase", "phases = delta + of_head * delta_head + h *",
          "phases = delta + walked_head * delta_head + h *"),
    polar("scale_of_plain_features_missing", "backward terms", "plainly = mine[:, None] & "
          "dims_rest[None, :], grad_rest * scale", "plainly = mine[:, None] & dims_rest[None, :], "
          "grad_rest"),
    polar("offset_of_keys_not_turned", "offsets", "offset += -given if KEYS else given",
          "offset += given"),
    polar("one_key_too_few", "masks", "own_high = clipped(wide + offset + right + 1,",
          "own_high = clipped(wide + offset + right,"),
    polar("window_one_key_long", "windows", "own_low = clipped(wide + offset - left,",
          "own_low = clipped(wide + offset - left - 1,"),
    polar("last_head_of_a_group_missing", "head mapping", "walked_head + repeat)",
          "walked_head + tl.maximum(repeat - 1, 1))"),
    polar("parts_of_the_first_sequence", "tail", "for b in tl.range(0, batch):",
          "for b in tl.range(0, 1):"),
    polar("p_truncated", "rounding mode", "p.to(y.dtype)",
          'p.to(y.dtype, fp_downcast_rounding="rtz")', dtypes=HALF),
    points("sigmoid_of_the_other_side", "activation", "tl.where(x < 0, u, 1.0)",
           "tl.where(x < 0, 1.0, u)"),
    points("phase_turns_the_other_way", "phase", "c = c * back_c + s * back_s",
           "c = c * back_c - s * back_s"),
)  # fmt: skip

RING = (
    ring("masks_by_indices_of_the_shard", "offsets", "offset + span[0] - place[0]", "offset"),
    ring("rows_counted_from_the_shard", "offsets", "offset + span[0] - place[0]",
         "offset - place[0]"),
    ring("dq_of_the_last_pair", "backward terms", "            total += dq\n",
         "            total.copy_(dq)\n"),
    ring("dk_of_the_first_run_of_rows", "backward terms",
         "(found[0].add_(dk), found[1].add_(dv))", "found"),
    ring("dv_not_summed", "backward terms", "found[1].add_(dv)", "found[1]"),
    ring("pairs_in_the_input_dtype", "cast", "out_dtype=dtype, **moved",
         "out_dtype=q.dtype, **moved", dtypes=HALF),
    ring("gradients_not_sent_on", "position", "        following.on()\n", "        pass\n"),
    ring("softcap_dropped", "scale", 'moved = {**options, "q_offset"',
         'moved = {**options, "softcap": None, "q_offset"'),
    shards("last_pair_skipped_causally", "masks", "keys[0] > q_rows[1] - 1 + q_offset + right",
           "keys[0] >= q_rows[1] - 1 + q_offset + right"),
    shards("pairs_of_the_window_skipped", "windows", "keys[1] <= q_rows[0] + q_offset - left",
           "keys[1] <= q_rows[0] + q_offset - left + 1"),
)  # fmt: skip

MUTANTS = PACKED + POLAR + RING
