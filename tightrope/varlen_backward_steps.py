"""Which sequence a program serves, as Triton functions: for kernels whose two sides are packed.

The tiles of sequence i are numbered from starts[i] // TILE + i on, which leaves room for every
partial one, so that the device finds the owner of a number and the host needs no length. Starts
that fall lead to wrong sequences, never past the tensors: every number is clipped.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tightrope.attention_steps import clipped

CHUNK = tl.constexpr(128)  # starts that are read at once


@triton.jit
def owner(starts, step, sequences, tokens, tile, TILE: tl.constexpr):
    """The sequence of a tile; `sequences` for tokens behind the last. Counts starts that are not
    behind the tile, so that loads do not wait for one another."""
    found = 0
    for first in tl.range(1, sequences + 1, CHUNK):
        i = first + tl.arange(0, CHUNK)
        given = i <= sequences
        start = clipped(tl.load(starts + i.to(tl.int64) * step, mask=given, other=0), tokens)
        found += tl.sum((given & (start // TILE + i <= tile)).to(tl.int32), 0)
    return found


@triton.jit
def span(starts, step, sequence, sequences, tokens):
    """(first token, length) of a sequence; of the tokens behind all for sequence = sequences."""
    at = starts + sequence.to(tl.int64) * step
    first = clipped(tl.load(at), tokens)
    last = tokens
    if sequence < sequences:
        last = tl.load(at + step)
    return first, clipped(last - first, tokens - first)


@triton.jit
def walked_span(starts, step, sequence, sequences, tokens):
    """The same on the other side, where tokens behind all belong to nobody."""
    first, length = span(starts, step, sequence, sequences, tokens)
    return first, tl.where(sequence < sequences, length, 0)
