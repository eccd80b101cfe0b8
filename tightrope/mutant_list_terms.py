"""Mutants whose one fault is a small error at the stage that a term of a budget stands for.

Sizes are a few times what the stage promises: exp2 and a quotient are within 2.5 * 2^-24, log2
within 2^-24, a sum of n numbers within (n - 1) 2^-24. tests/test_power_terms.py says which term is
whose. Where a term contains a dot product's worst case (scores, dP), that is what hides a smaller
error in long rows: few-bit data and short rows show these.
"""

from __future__ import annotations

from functools import partial

from tightrope.mutants import Mutant

FAR = 2.0**-20  # 16 units of float32
OFF = f"(1.0 + {FAR})"
TURNS = f"(1.0 + (1 - 2 * (key % 2))[None, :] * {FAR})"  # of a key: what all share cancels
attention = partial(Mutant, "attention", family="terms", of=("triton",))
merge = partial(Mutant, "merge_attention", family="terms")
backward = partial(Mutant, "attention_backward", family="terms")
steps = partial(Mutant, "attention_backward", family="terms", module="attention_backward_steps")
table = partial(Mutant, "rope_table", family="terms", module="table_tiles")
scale = partial(Mutant, "query_scale", family="terms")

ACC = "acc = tl.dot(p.to(v_tile.dtype), v_tile, acc * alpha[:, None], input_precision=PRECISION)"
SUM = "l = l * alpha + tl.sum(p, 1)"
WEIGHT = "p = tl.exp2(tl.fma(s, c, tl.broadcast_to(-shift, s.shape)))"
GRAD_1 = 'grad_1_tile = tl.dot(ds.to(x.dtype), x, grad_1_tile, input_precision="ieee")'
GRAD_2 = 'grad_2_tile = tl.dot(p.to(y.dtype), y, grad_2_tile, input_precision="ieee")'

FORWARD = (
    attention("weights_off_by_turns", old="p = tl.exp2(x)", new=f"p = tl.exp2(x) * {TURNS}"),
    attention("weights_off", old="p = tl.exp2(x)", new=f"p = tl.exp2(x) * {OFF}"),
    attention("accumulator_off", old=ACC, new=f"{ACC} * {OFF}"),
    attention("denominator_off", old=SUM, new=f"l = (l * alpha + tl.sum(p, 1)) * {OFF}"),
    attention("quotient_off", old="acc / tl.where(l == 0.0, 1.0, l)[:, None]",
              new=f"acc / tl.where(l == 0.0, 1.0, l)[:, None] * {OFF}"),
    attention("sink_off", old=".to(tl.float32) * LOG2E\n",
              new=f".to(tl.float32) * (LOG2E * {OFF})\n"),
    attention("logarithm_off", old="(m + tl.log2(l)) * LN2",
              new=f"(m + (tl.log2(l) + {FAR})) * LN2"),
    attention("sum_of_lse_off", old="(m + tl.log2(l)) * LN2",
              new=f"(m + tl.log2(l)) * {OFF} * LN2"),
)  # fmt: skip

STATES = (
    merge("weights_off_by_turns", old="LOG2E, LOWEST))",
          new=f"LOG2E, LOWEST)) * (1.0 + (split % 2) * {FAR})"),
    merge("weights_flushed_early", old="LOG2E, LOWEST))",
          new="LOG2E, LOWEST))\n        weight = tl.where(weight < 1e-30, 0.0, weight)"),
    merge("sum_off", old="acc = tl.where(live[:, None], added, acc)",
          new=f"acc = tl.where(live[:, None], added * {OFF}, acc)"),
    merge("denominator_off", old="total += weight", new=f"total += weight * {OFF}"),
    merge("quotient_off", old="acc / tl.where(total == 0.0, 1.0, total)[:, None]",
          new=f"acc / tl.where(total == 0.0, 1.0, total)[:, None] * {OFF}"),
    merge("logarithm_off", old="m + tl.log2(total) * LN2",
          new=f"m + (tl.log2(total) + {FAR}) * LN2"),
)  # fmt: skip

GRADIENTS = (
    steps("delta_off", old="return tl.where(mine, delta, 0.0)",
          new=f"return tl.where(mine, delta * {OFF}, 0.0)"),
    steps("lse_off", old="lse * LOG2E, float", new=f"lse * (LOG2E * {OFF}), float"),
    steps("weights_off", old=WEIGHT, new=f"{WEIGHT} * {OFF}"),
    steps("slope_off", old="slope = 1.0 - tanh * tanh",
          new=f"slope = (1.0 - tanh * tanh) * (1.0 + {64 * FAR})"),
    backward("upstream_off", old="ds = p * (dp - delta_tile)",
             new=f"ds = p * (dp * {OFF} - delta_tile)"),
    backward("ds_off", old="ds = p * (dp - delta_tile)", new=f"ds = p * (dp - delta_tile) * {OFF}"),
    backward("sums_off", old=GRAD_1, new=f"{GRAD_1} * {OFF}"),
    backward("sums_of_dv_off", old=GRAD_2, new=f"{GRAD_2} * {OFF}"),
    backward("scale_off", old="(grad_1_tile * scale)", new=f"(grad_1_tile * (scale * {OFF}))"),
)  # fmt: skip

TABLES = (
    table("float32_function_off", old="tl.cos(angle) * factor", new=f"tl.cos(angle) * {OFF} * "
          "factor", of=("float32",)),
    table("float32_amplitude_off", old="tl.sin(angle) * factor",
          new=f"tl.sin(angle) * (factor * {OFF})", of=("float32",)),
    scale("product_off", old="(1.0 + attn_scale * log)",
          new="(1.0 + attn_scale * log * (1.0 + 1e-9))"),
    scale("sum_off", old="(1.0 + attn_scale * log)",
          new="((1.0 + attn_scale * log) * (1.0 + 1e-9))"),
)  # fmt: skip

MUTANTS = FORWARD + STATES + GRADIENTS + TABLES
