"""What the consuming warps of the Hopper kernel do with a tile: Gluon device functions.

Their rings and barriers: `tightrope.pope_hopper_warps`. `ring` is its tuple (expanded x, expanded
y, v, then barriers: keys filled, keys emptied, v filled, v emptied).
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma

from tightrope.pope_hopper_warps import await_filled
from tightrope.softplus import softplus

LOWEST = gl.constexpr(float("-inf"))


@gluon.jit
def scores(q_x, q_y, ring, step, nothing, KEYS: gl.constexpr):
    """Begin the two products of a tile, once its keys are there."""
    await_filled(ring[3], step, KEYS)
    x, y = ring[0].index(step % KEYS), ring[1].index(step % KEYS)
    s = warpgroup_mma(q_x, x.permute((1, 0)), nothing, use_acc=False, is_async=True)
    return warpgroup_mma(q_y, y.permute((1, 0)), s, is_async=True)


@gluon.jit
def visible(s, tile, whole, high, BLOCK_N: gl.constexpr):
    """Scores with -inf where a row does not see a key; from tile `whole` on some may not."""
    if tile >= whole:
        key = tile * BLOCK_N + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, s.type.layout))
        s = gl.where(key[None, :] < high[:, None], s, LOWEST)
    return s


@gluon.jit
def weights(s, m, l, c):
    """One step of online softmax: exponentials, the factor of what came before, new m and l."""
    m_new = gl.maximum(m, gl.max(s, 1) * c)
    shift = gl.where(m_new == LOWEST, 0.0, m_new)  # of a row that has seen nothing yet
    p = gl.exp2(gl.fma(s, c, -shift[:, None]))
    alpha = gl.exp2(m - shift)
    return p, alpha, m_new, l * alpha + gl.sum(p, 1)


@gluon.jit
def add_values(p, alpha, acc, ring, step, VALUES: gl.constexpr):
    """Begin acc alpha + p v, once the values are there."""
    layout: gl.constexpr = acc.type.layout
    values = ring[2].index(step % VALUES)
    BLOCK_N: gl.constexpr = p.shape[1]
    values = values.reshape([BLOCK_N, acc.shape[1]])
    acc = acc * gl.convert_layout(alpha, gl.SliceLayout(1, layout))[:, None]
    p = gl.convert_layout(p.to(values.dtype), gl.DotOperandLayout(0, layout, 2))
    await_filled(ring[5], step, VALUES)
    return warpgroup_mma(p, values, acc, is_async=True)


@gluon.jit
def queries(
    tensors, sizes, head, first_row, ROWS: gl.constexpr, D: gl.constexpr, layout: gl.constexpr,
    TURNED: gl.constexpr,
):  # fmt: skip
    """mu(q) cos and mu(q) sin of ROWS rows, in q's dtype, turned back by delta; 0 past the last."""
    q, table, delta, q_batch, q_head, q_row, q_angles, q_plane, delta_group, delta_plane = tensors
    seqlen_q, _, num_heads, _, _, _, _, _, _ = sizes
    b, h = (head // num_heads).to(gl.int64), (head % num_heads).to(gl.int64)
    row = first_row + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    d = gl.arange(0, D, layout=gl.SliceLayout(0, layout))
    mine, wide = (row < seqlen_q)[:, None], row.to(gl.int64)[:, None]
    q_at = q + (b * q_batch + h * q_head) * 8 + wide * (q_row * 8)
    cos_at = table + b * q_angles + wide * D
    sin_at = gl.multiple_of(cos_at + q_plane, (16, 16))
    q_at, cos_at = gl.multiple_of(q_at, (16, 16)), gl.multiple_of(cos_at, (16, 16))
    x = gl.load(q_at + d[None, :], mask=mine, other=0.0)
    c = gl.load(cos_at + d[None, :], mask=mine, other=0.0).to(gl.float32)
    s = gl.load(sin_at + d[None, :], mask=mine, other=0.0).to(gl.float32)
    if TURNED:
        at = delta + (head % num_heads // delta_group) * D + d
        c_d, s_d = gl.load(at)[None, :], gl.load(at + delta_plane)[None, :]
        c, s = c * c_d + s * s_d, s * c_d - c * s_d
    mu = softplus(x, "short")
    return (mu * c).to(x.dtype), (mu * s).to(x.dtype)
