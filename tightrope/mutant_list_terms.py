"""Mutants whose one fault is a small error at the stage that a term of a budget stands for.

Sizes are a few times what the stage promises: exp2 and a quotient are within 2.5 * 2^-24, log2
within 2^-24, a sum of n numbers within (n - 1) 2^-24. tests/test_power_terms.py says which term is
whose. Where a term contains a dot product's worst case (scores, dP), that is what hides a smaller
error in long rows: few-bit data and short rows show these.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from tightrope.mutants import Mutant

FAR = 2.0**-20  # 16 units of float32
OFF = f" * (1.0 + {FAR})"
FURTHER = f" * (1.0 + {64 * FAR})"  # of a gradient, whose every term has the worst case of dots
KEYS = f" * (1.0 + (1 - 2 * (key % 2))[None, :] * {FAR})"  # by turns: what all share cancels
STATES = f" * (1.0 + (split % 2) * {FAR})"
MORE = f" + {FAR}"
SLIGHTLY = " * (1.0 + 1e-9)"  # of float64, before a rounding to float32

attention = partial(Mutant, "attention", of=("triton",))
merge = partial(Mutant, "merge_attention")
backward = partial(Mutant, "attention_backward")
steps = partial(Mutant, "attention_backward", module="attention_backward_steps")
polar = partial(Mutant, "pope_attention_backward")
polar_steps = partial(Mutant, "pope_attention_backward", module="pope_backward_steps")
ring = partial(Mutant, "ring_attention_backward")
table = partial(Mutant, "rope_table", module="table_tiles", of=("float32",))
scale = partial(Mutant, "query_scale")

ACC = "acc = tl.dot(p.to(v_tile.dtype), v_tile, acc * alpha[:, None], input_precision=PRECISION)@"
WEIGHT = "p = tl.exp2(tl.fma(s, c, tl.broadcast_to(-shift, s.shape)))@"
GRAD_1 = 'grad_1_tile = tl.dot(ds.to(x.dtype), x, grad_1_tile, input_precision="ieee")@'
GRAD_2 = 'grad_2_tile = tl.dot(p.to(y.dtype), y, grad_2_tile, input_precision="ieee")@'

# Whose, name, the snippet with @ where the error goes, the error.
PLACES: tuple[tuple[Any, str, str, str], ...] = (
    (attention, "weights_off_by_turns", "p = tl.exp2(x)@", KEYS),
    (attention, "weights_off", "p = tl.exp2(x)@", OFF),
    (attention, "accumulator_off", ACC, OFF),
    (attention, "denominator_off", "l = l * alpha@ + tl.sum(p, 1)@", OFF),
    (attention, "quotient_off", "acc / tl.where(l == 0.0, 1.0, l)[:, None]@", OFF),
    (attention, "sink_off", ".to(tl.float32)@ * LOG2E\n", OFF),
    (attention, "logarithm_off", "(m + tl.log2(l)@) * LN2", MORE),
    (attention, "sum_of_lse_off", "(m + tl.log2(l))@ * LN2", OFF),
    (merge, "weights_off_by_turns", "LOG2E, LOWEST))@", STATES),
    (merge, "sum_off", "acc = tl.where(live[:, None], added@, acc)", OFF),
    (merge, "denominator_off", "total += weight@", OFF),
    (merge, "quotient_off", "acc / tl.where(total == 0.0, 1.0, total)[:, None]@", OFF),
    (merge, "logarithm_off", "m + tl.log2(total) * LN2@", MORE),
    (steps, "delta_off", "return tl.where(mine, delta@, 0.0)", OFF),
    (steps, "lse_off", "lse * LOG2E@, float", OFF),
    (steps, "weights_off", WEIGHT, OFF),
    (steps, "slope_off", "slope = 1.0@ - tanh * tanh@", FURTHER),
    (backward, "upstream_off", "ds = p * (dp@ - delta_tile)", OFF),
    (backward, "ds_off", "ds = p * (dp - delta_tile)@", FURTHER),
    (backward, "sums_off", GRAD_1, FURTHER),
    (backward, "sums_of_dv_off", GRAD_2, FURTHER),
    (backward, "scale_off", "(grad_1_tile * scale@)", FURTHER),
    (polar, "points_of_rows_off", "one_x, one_y = points_of(one, cosine@, sine, FORM)", FURTHER),
    (polar, "gradients_of_points_off",
     'grad_x = tl.dot(ds, w_x, grad_x, input_precision="ieee")@', FURTHER),
    (polar, "way_back_off", "(cosine * grad_x + sine * grad_y)@ * scale", FURTHER),
    (polar, "angles_off_on_the_way_back", "(cosine@ * grad_x + sine * grad_y) * scale", FURTHER),
    (polar, "softplus_off", "softplus(one, FORM)@ * (sine", FURTHER),
    (polar, "phases_off", "ddelta + head * rotary_dim + d, tl.sum(total, 0)@", FURTHER),
    (polar_steps, "sigmoid_off", "tl.where(x < 0, u, 1.0) / (1.0 + u)@", FURTHER),
    (ring, "sums_of_dq_off", "            total += dq@\n", FURTHER),
    (ring, "sums_of_dk_off", "found[0].add_(dk@), found[1].add_(dv@)", FURTHER),
    (table, "float32_function_off", "tl.cos(angle)@ * factor", OFF),
    (table, "float32_amplitude_off", "tl.sin(angle) * factor@", OFF),
    (scale, "product_off", "(1.0 + attn_scale * log@)", SLIGHTLY),
    (scale, "sum_off", "(1.0@ + attn_scale * log@)", SLIGHTLY),
)  # fmt: skip

MUTANTS = (
    *(make(name, "terms", text.replace("@", ""), text.replace("@", error))
      for make, name, text, error in PLACES),
    merge("weights_flushed_early", "terms", "LOG2E, LOWEST))",
          "LOG2E, LOWEST))\n        weight = tl.where(weight < 1e-30, 0.0, weight)"),
)  # fmt: skip
