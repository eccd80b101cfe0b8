"""Steps of a flash attention kernel as Triton functions: which rows, which keys, and the softmax.

The order is Algorithm 1 of FlashAttention-2 (Dao, arXiv 2307.08691), in base 2: a running maximum m
and denominator l, and an unnormalised accumulator, all in float32.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
LOWEST = tl.constexpr(float("-inf"))


@triton.jit
def placed(program, together, all_heads, row_tiles):
    """(row tile, head) of a program: heads side by side, `together` at a time, last tiles first.

    Under a causal mask the last ones are the longest.
    """
    each = together * row_tiles
    before, place = program // each * together, program % each
    width = tl.minimum(together, all_heads - before)
    return row_tiles - 1 - place // width, before + place % width


@triton.jit
def clipped(number, length):
    """A number of a key within 0 to length, in 32 bits."""
    return tl.minimum(tl.maximum(number, 0), length).to(tl.int32)


@triton.jit
def visible(first_row, last_row, offset, left, right, seqlen_k, BLOCK_N: tl.constexpr):
    """(low, high, whole, rest), int32: keys that some row from first to last sees, and tiles.

    Row i sees keys i + offset - left to i + offset + right. Tiles from `whole` to before `rest`
    every row sees whole. Rows are int32, the others int64.
    """
    low, high = first_row + offset - left, last_row + offset + right + 1
    least, most = last_row + offset - left, first_row + offset + right + 1
    whole = tl.cdiv(clipped(least, seqlen_k), BLOCK_N) * BLOCK_N
    rest = tl.maximum(clipped(most, seqlen_k) // BLOCK_N * BLOCK_N, whole)
    return clipped(low, seqlen_k), clipped(high, seqlen_k), whole, rest


@triton.jit
def capped(s, factor, cap):
    """cap * tanh(s * factor) * log2(e), by tanh(z) = 1 - 2/(exp(2z) + 1)."""
    doubled = tl.exp2(s * factor * (2 * LOG2E))
    return cap * (1.0 - 2.0 / (doubled + 1.0)) * LOG2E


@triton.jit
def begun(sink, has_sink, ROWS: tl.constexpr):
    """(m, l) of rows that saw no key yet, or only a sink: a key of that logit and value 0."""
    m, l = tl.full([ROWS], LOWEST, tl.float32), tl.zeros([ROWS], tl.float32)
    if has_sink != 0:
        m = tl.zeros([ROWS], tl.float32) + tl.load(sink).to(tl.float32) * LOG2E
        l += 1.0
    return m, l


@triton.jit
def absorbed(s, v, m, l, acc, c, SCALED: tl.constexpr):
    """(m, l, acc) after a tile of scores s, -inf where unseen, of values v.

    SCALED: s are logits in base 2 already; else they are times c > 0, within the exponent.
    """
    # Rounding is monotone and c > 0: the largest product is that of the largest score.
    top = tl.max(s, 1) if SCALED else tl.max(s, 1) * c
    top = tl.maximum(m, top)
    shift = tl.where(top == LOWEST, 0.0, top)  # of a row that has seen nothing yet
    p = tl.exp2(s - shift[:, None] if SCALED else tl.fma(s, c, -shift[:, None]))
    alpha = tl.exp2(m - shift)
    acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision="ieee")
    return top, l * alpha + tl.sum(p, 1), acc


@triton.jit
def ended(m, l, acc):
    """(out, lse) of rows; 0 and -inf where no key was seen."""
    return acc / tl.where(l == 0.0, 1.0, l)[:, None], (m + tl.log2(l)) * LN2
