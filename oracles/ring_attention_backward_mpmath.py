"""`ring_attention_backward` in mpmath: `attention_backward` of the whole. For tests only."""

from __future__ import annotations

from tightrope.oracles.attention_backward_mpmath import (
    attention_backward as ring_attention_backward,
)

__all__ = ["ring_attention_backward"]
