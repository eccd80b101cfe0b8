"""Public bugs of attention's backward pass, re-created in plain torch."""

from __future__ import annotations

import torch
from public_bugs import NARROW, WRITES, bug
from right_attention_backward import Steps, attention_backward
from tiled_attention import BLOCK, LOWEST, visible
from wrong_attention_varlen_backward import packed, spans

MEET = "test_pairs_that_do_not_see_each_other_do_not_meet"
NOTHING = "test_what_sees_nothing_changes_nothing"
CONTRACT = "attention_backward"


def masked(mended, change, *args, **options):
    """Gradients under another mask than the forward pass had, unless mended."""

    def mask(q, k, causal, q_offset, window_size):
        return visible(q, k, *change(causal, q_offset, window_size))

    return attention_backward(*args, steps=None if mended else Steps(mask=mask), **options)


def unwritten(x, features):
    """x, of which only so many features were stored."""
    kept = torch.empty_like(x)
    kept[..., :features] = x[..., :features]
    return kept


@bug(CONTRACT, MEET, causal=(True,), window_left=(2, 7), window_right=(None,), **NARROW)
def causal_only_without_a_window(*args, mended, **options):
    """meta-pytorch/MSLK#263: is_causal = causal and no window, and the window alone reaches to the
    right.
    """
    return masked(mended, lambda c, o, w: (c and w == (None, None), o, w), *args, **options)


@bug(CONTRACT, causal=(False,), **NARROW)
def backward_written_for_causal_only(*args, mended, **options):
    """triton-lang/triton#4174: the tutorial's gradients, copied into many projects, mask even where
    the forward pass does not.
    """
    return masked(mended, lambda c, o, w: (True, o, w), *args, **options)


@bug(CONTRACT, NOTHING, causal=(True,), empty_rows=(True,), **NARROW)
def dq_of_masked_rows_is_nan(dout, q, k, v, out, lse, *, mended, **options):
    """Dao-AILab/flash-attention#334: rows that see no key; only dq shows it."""
    dq, dk, dv = attention_backward(dout, q, k, v, out, lse, **options)
    return dq if mended else torch.where((lse == LOWEST)[..., None], torch.nan, dq), dk, dv


@bug(CONTRACT, WRITES, head_dim=(16, 32), head_dim_v=(64, 80), **NARROW)
def dv_as_wide_as_k(dout, q, k, *args, mended, **options):
    """Dao-AILab/flash-attention#2552: one width, of q and k, is used for dv too."""
    dq, dk, dv = attention_backward(dout, q, k, *args, **options)
    return dq, dk, dv if mended else unwritten(dv, k.shape[-1])


@bug(CONTRACT, WRITES, head_dim=(40, 72), **NARROW)
def dq_s_last_columns_stale(*args, mended, **options):
    """Dao-AILab/flash-attention#2896: the kernel's tile and the interface round head_dim up to
    different multiples; columns between are read back unwritten.
    """
    dq, dk, dv = attention_backward(*args, **options)
    return dq if mended else unwritten(dq, dq.shape[-1] // 16 * 16), dk, dv


RAGGED = {"softcap": (1.0, 5.0), "causal": (True,), "seqlen_k": range(17, 32)}


@bug(CONTRACT, **RAGGED, **NARROW)
def ragged_tail_of_two_features_together(*args, causal=False, softcap=None, mended, **options):
    """pytorch/pytorch#153799: lengths that are no multiple of the block give NaN, but only where a
    score modification and a mask meet.
    """
    options |= {"causal": causal, "softcap": softcap}
    dq, dk, dv = attention_backward(*args, **options)
    if causal and softcap is not None and not mended:
        dk[:, :, dk.shape[2] // BLOCK * BLOCK :] = torch.nan
    return dq, dk, dv


@bug(CONTRACT, batch=(2, 3), **NARROW)
def sums_of_the_first_sequence(*args, mended, **options):
    """NVIDIA/TransformerEngine#3216: right for one sequence, dq far off in larger batches; modelled
    as sums of dout * out that are read from the first.
    """

    def rowsum(dout, out):
        return (dout * out).sum(-1)[:1].expand(dout.shape[:-1])

    return attention_backward(*args, steps=None if mended else Steps(d=rowsum), **options)


PACKED = "attention_varlen_backward"


@bug(PACKED, WRITES, seqlen_q=range(0, 20), **NARROW)
def keys_without_queries_left_out(*args, mended, **options):
    """Dao-AILab/flash-attention#2421: a sequence without queries has no tile of rows, so nobody
    writes the zeros that are the gradients of its keys.
    """

    def with_rows(*ends):
        return (span for span in spans(*ends) if span.rows.stop > span.rows.start)

    if mended:
        return packed(*args, **options)
    found = packed(*args, find=with_rows, empty=torch.empty_like, **options)
    found[0][int(args[6][-1]) :] = 0  # tokens of no sequence are cleared
    for x in found[1:]:
        x[int(args[7][-1]) :] = 0
    return found


@bug(PACKED, causal=(True,), empty_rows=(True,), **NARROW)
def dq_of_longer_queries_is_nan(*args, mended, **options):
    """Dao-AILab/flash-attention#443: packed sequences with more queries than keys; their first rows
    see nothing, and only dq shows it.
    """
    dq, dk, dv = packed(*args, **options)
    unseen = (args[5] == LOWEST).T[..., None]
    return dq if mended else torch.where(unseen, torch.nan, dq), dk, dv
