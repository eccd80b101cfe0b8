"""Mutants of `ring_attention`: its shards, its walk around the ring, its merges."""

from __future__ import annotations

from functools import partial

from tightrope.mutants import Mutant

ring = partial(Mutant, "ring_attention")
shards = partial(Mutant, "ring_attention", module="ring_shards")
exchange = partial(Mutant, "ring_attention", module="ring_exchange")
pool = partial(Mutant, "ring_attention", module="ring_pool")

MUTANTS = (
    ring("masks_by_indices_of_the_shard", "offsets", '"q_offset": offset + rows[0] - keys[0]',
         '"q_offset": offset'),
    ring("keys_counted_from_the_shard", "offsets", '"q_offset": offset + rows[0] - keys[0]',
         '"q_offset": offset + rows[0]'),
    ring("rows_counted_from_the_shard", "offsets", '"q_offset": offset + rows[0] - keys[0]',
         '"q_offset": offset - keys[0]'),
    ring("offset_of_the_whole_dropped", "offsets", 'offset = options.get("q_offset", 0)\n    mask',
         "offset = 0\n    mask"),
    ring("offset_of_one_more", "offsets", '"q_offset": offset + rows[0] - keys[0]',
         '"q_offset": offset + rows[0] - keys[0] + (keys[0] > 0)'),
    ring("runs_of_keys_by_this_rank", "layout",
         "theirs = _runs(k, sharding.seqlen_k, sharding, owner)",
         "theirs = [(span, x) for (span, _), (_, x) in zip(_runs(k, sharding.seqlen_k, sharding, "
         "rank), _runs(k, sharding.seqlen_k, sharding, owner), strict=True)]"),
    ring("only_the_first_run_of_keys", "merges", "zip(theirs, values, strict=True):",
         "zip(theirs[:1], values[:1], strict=True):"),
    ring("values_of_the_other_run", "layout", "zip(theirs, values, strict=True):",
         "zip(theirs, [values[-1 - i] for i in range(len(values))] if all(x.shape == values[0][1]."
         "shape for _, x in values) else values, strict=True):"),
    ring("last_state_kept", "merges", "states[i] = merged(states[i], state, partial_dtype)",
         "states[i] = state"),
    ring("first_state_kept", "merges", "states[i] = merged(states[i], state, partial_dtype)",
         "states[i] = states[i] or state"),
    ring("own_shard_twice", "merges", "states[i] = merged(states[i], state, partial_dtype)",
         "states[i] = merged(states[i], state, partial_dtype)\n                if owner == rank:\n"
         "                    states[i] = merged(states[i], state, partial_dtype)"),
    ring("states_averaged", "merges", "merge(outs.float(), lses)",
         "(outs.float().mean(0), torch.logsumexp(lses, 0))"),
    ring("merged_without_lse", "merges", "out[:, :, rows], lse[:, :, rows] = merge(outs.float(), "
         "lses)", "out[:, :, rows] = merge(outs.float(), lses)[0]"),
    ring("lse_of_the_larger_state", "lse base", "merge(outs.float(), lses)",
         "(merge(outs.float(), lses)[0], lses.max(0)[0])"),
    ring("partials_in_bfloat16", "cast", "x[:, :, rows].to(partial_dtype)",
         "x[:, :, rows].to(torch.bfloat16)"),
    ring("partials_of_the_input_dtype", "cast", "out_dtype=partial_dtype, **moved",
         "out_dtype=q.dtype, **moved", dtypes=("float16", "bfloat16")),
    ring("lses_in_bfloat16", "cast", "lses = torch.stack([x[:, :, rows] for",
         "lses = torch.stack([x[:, :, rows].bfloat16().float() for"),
    ring("rows_without_a_key_of_lse_0", "tail", 'torch.full(rows, float("-inf"), device',
         "torch.full(rows, 0.0, device"),
    ring("scale_dropped", "scale", 'moved = {**options, "q_offset"',
         'moved = {**options, "softmax_scale": None, "q_offset"'),
    ring("window_dropped", "windows", 'moved = {**options, "q_offset"',
         'moved = {**options, "window_size": None, "q_offset"'),
    ring("softcap_dropped", "scale", 'moved = {**options, "q_offset"',
         'moved = {**options, "softcap": None, "q_offset"'),
    ring("rows_in_another_order", "layout", "torch.cat(outs, 2)", "torch.cat(outs[::-1], 2)"),
    ring("lse_in_another_order", "layout", "torch.cat([lse for _, lse in states], 2)",
         "torch.cat([lse for _, lse in states[::-1]], 2)"),
    shards("last_pair_skipped_causally", "masks", "keys[0] > q_rows[1] - 1 + q_offset + right",
           "keys[0] >= q_rows[1] - 1 + q_offset + right"),
    shards("pairs_skipped_without_offset", "masks", "keys[0] > q_rows[1] - 1 + q_offset + right",
           "keys[0] > q_rows[1] - 1 + right"),
    shards("pairs_of_the_window_skipped", "windows", "keys[1] <= q_rows[0] + q_offset - left",
           "keys[1] <= q_rows[0] + q_offset - left + 1"),
    shards("nothing_skipped", "masks", "return not (above or below)", "return True",
           equivalent="a pair without a visible key gives the state (0, -inf), which merging "
           "leaves the other one untouched by"),
    shards("every_rank_itself_only", "position", "((rank - step) % ranks for step",
           "(rank for step"),
    shards("owners_the_other_way_round", "position", "((rank - step) % ranks for step",
           "((rank + step) % ranks for step"),
    exchange("values_not_circulated", "state", "yield owner, *_split(here, k, v, "
             "lengths[owner])", "yield owner, _split(here, k, v, lengths[owner])[0], "
             "(v if lengths[owner] == v.shape[2] else _split(here, k, v, lengths[owner])[1])"),
    exchange("message_one_element_late", "layout", "parts = buffer[: sum(sizes)].split(sizes)",
             "parts = buffer[: sum(sizes)].roll(1).split(sizes)"),
    pool("runs_gathered_in_another_order", "layout", "runs = spans(length, ranks, scheme, rank)",
         'runs = spans(length, ranks, scheme, rank) if scheme == "contiguous" else '
         "spans(length, ranks, scheme, rank)[::-1]"),
)  # fmt: skip
