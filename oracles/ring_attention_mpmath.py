"""`ring_attention` in mpmath: `attention` of the whole sequence. For tests only."""

from __future__ import annotations

from tightrope.oracles.attention_mpmath import attention as ring_attention

__all__ = ["ring_attention"]
