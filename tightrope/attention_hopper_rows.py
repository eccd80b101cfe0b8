"""What the consuming warps of the Hopper kernels do with tiles: Gluon device functions.

Their rings and barriers: `tightrope.attention_hopper_warps`. `ring` is its tuple (tuple of keys, v,
then barriers: keys filled, keys emptied, v filled, v emptied). Keys, and likewise queries, are one
tile a step, or several whose products are summed.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

from tightrope.attention_hopper_warps import await_filled, seen, signal

LOWEST = gl.constexpr(float("-inf"))
LN2 = gl.constexpr(0.6931471805599453)


@gluon.jit
def scores(q, ring, step, nothing, KEYS: gl.constexpr):
    """Begin the products of a tile, once its keys are there."""
    await_filled(ring[2], step, KEYS)
    shape: gl.constexpr = [nothing.shape[1], q[0].shape[1]]
    s = nothing
    for i in gl.static_range(len(q)):
        k = ring[0][i].index(step % KEYS).reshape(shape)
        s = warpgroup_mma(q[i], k.permute((1, 0)), s, use_acc=i > 0, is_async=True)
    return s


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
def rescaled(p, alpha, acc, ring):
    """p in v's dtype, where tensor cores take it from, and acc alpha."""
    layout: gl.constexpr = acc.type.layout
    acc = acc * gl.convert_layout(alpha, gl.SliceLayout(1, layout))[:, None]
    return gl.convert_layout(p.to(ring[1].dtype), gl.DotOperandLayout(0, layout, 2)), acc


@gluon.jit
def add_values(p, acc, ring, step, VALUES: gl.constexpr):
    """Begin acc + p v, once the values are there."""
    values = ring[1].index(step % VALUES).reshape([p.shape[1], acc.shape[1]])
    await_filled(ring[4], step, VALUES)
    return warpgroup_mma(p, values, acc, is_async=True)


@gluon.jit
def walk(
    q, ring, step, limits, sizes, c, ROWS: gl.constexpr, D_V: gl.constexpr, TILE: gl.constexpr
):  # fmt: skip
    """m, l, acc of ROWS rows after their `own` tiles of keys, and the step after all `tiles`.

    limits: the first row, own and tiles. q: a tuple of operands, kept until this returns.
    """
    first_row, own, tiles = limits
    BLOCK_N: gl.constexpr = TILE.BLOCK_N
    KEYS: gl.constexpr = TILE.KEYS
    VALUES: gl.constexpr = TILE.VALUES
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D_V, 16])
    s_rows: gl.constexpr = gl.SliceLayout(1, s_layout)
    whole = seen(first_row, sizes) // BLOCK_N
    high = seen(first_row + gl.arange(0, ROWS, layout=s_rows), sizes)
    m = gl.full([ROWS], LOWEST, gl.float32, s_rows)
    l = gl.zeros([ROWS], gl.float32, s_rows)
    acc = gl.zeros([ROWS, D_V], gl.float32, o_layout)
    # Never added to. Not 0: the compiler would take it and acc, if they are alike, for one.
    nothing = gl.full([ROWS, BLOCK_N], 1.0, gl.float32, s_layout)
    if TILE.OVERLAPPED:
        if own > 0:
            s = warpgroup_mma_wait(0, deps=[scores(q, ring, step, nothing, KEYS)])
            signal(ring[3], step, KEYS)
            p, alpha, m, l = weights(visible(s, 0, whole, high, BLOCK_N), m, l, c)
            p, acc = rescaled(p, alpha, acc, ring)
            for tile in range(1, own):
                later = scores(q, ring, step + 1, nothing, KEYS)
                sum = add_values(p, acc, ring, step, VALUES)
                s = warpgroup_mma_wait(1, deps=[later])
                signal(ring[3], step + 1, KEYS)
                x, alpha, m, l = weights(visible(s, tile, whole, high, BLOCK_N), m, l, c)
                # Tensor cores read p until now: it must not be written over.
                acc, p = warpgroup_mma_wait(0, deps=[sum, p])
                signal(ring[5], step, VALUES)
                p, acc = rescaled(x, alpha, acc, ring)
                step += 1
            acc, p = warpgroup_mma_wait(0, deps=[add_values(p, acc, ring, step, VALUES), p])
            signal(ring[5], step, VALUES)
            step += 1
    elif TILE.PIPELINED:
        if own > 0:
            s = warpgroup_mma_wait(0, deps=[scores(q, ring, step, nothing, KEYS)])
            signal(ring[3], step, KEYS)
            s = visible(s, 0, whole, high, BLOCK_N)
            for tile in range(1, own):
                later = scores(q, ring, step + 1, nothing, KEYS)
                p, alpha, m, l = weights(s, m, l, c)
                p, acc = rescaled(p, alpha, acc, ring)
                sum = add_values(p, acc, ring, step, VALUES)
                s = warpgroup_mma_wait(1, deps=[later])
                signal(ring[3], step + 1, KEYS)
                acc = warpgroup_mma_wait(0, deps=[sum])
                signal(ring[5], step, VALUES)
                s = visible(s, tile, whole, high, BLOCK_N)
                step += 1
            p, alpha, m, l = weights(s, m, l, c)
            p, acc = rescaled(p, alpha, acc, ring)
            acc = warpgroup_mma_wait(0, deps=[add_values(p, acc, ring, step, VALUES)])
            signal(ring[5], step, VALUES)
            step += 1
    else:
        for tile in range(own):
            s = warpgroup_mma_wait(0, deps=[scores(q, ring, step, nothing, KEYS)])
            signal(ring[3], step, KEYS)
            p, alpha, m, l = weights(visible(s, tile, whole, high, BLOCK_N), m, l, c)
            p, acc = rescaled(p, alpha, acc, ring)
            acc = warpgroup_mma_wait(0, deps=[add_values(p, acc, ring, step, VALUES)])
            signal(ring[5], step, VALUES)
            step += 1
    for _ in range(own, tiles):  # that only the other groups' rows see
        await_filled(ring[2], step, KEYS)
        signal(ring[3], step, KEYS)
        await_filled(ring[4], step, VALUES)
        signal(ring[5], step, VALUES)
        step += 1
    return m, l, acc, step


@gluon.jit
def owned(first_row, tiles, sizes, ROWS: gl.constexpr, BLOCK_N: gl.constexpr):
    """Of a task's tiles of keys, those that some of ROWS rows from first_row on sees."""
    last_row = gl.minimum(first_row + ROWS, sizes[0]) - 1
    own = gl.where(last_row < first_row, 0, gl.cdiv(seen(last_row, sizes), BLOCK_N))
    return gl.minimum(own, tiles)


@gluon.jit
def store_rows(out, lse, head, first_row, m, l, acc, sizes):
    """Write what `walk` found, out in its dtype and lse (natural), to the rows that there are."""
    seqlen_q = sizes[0]
    ROWS: gl.constexpr = acc.shape[0]
    D_V: gl.constexpr = acc.shape[1]
    layout: gl.constexpr = acc.type.layout
    if first_row < seqlen_q:
        row = first_row + gl.arange(0, ROWS, layout=m.type.layout)
        at = head.to(gl.int64) * seqlen_q + row
        gl.store(lse + at, (m + gl.log2(l)) * LN2, mask=row < seqlen_q)
        rows: gl.constexpr = gl.SliceLayout(1, layout)
        acc = acc / gl.convert_layout(gl.where(l == 0.0, 1.0, l), rows)[:, None]
        row = first_row + gl.arange(0, ROWS, layout=rows)
        at = (head.to(gl.int64) * seqlen_q + row)[:, None] * D_V
        d = gl.arange(0, D_V, layout=gl.SliceLayout(0, layout))
        gl.store(
            out + (at + d[None, :]), acc.to(out.dtype.element_ty), mask=(row < seqlen_q)[:, None]
        )
