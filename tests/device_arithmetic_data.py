"""Operands that show how a dot sums: what `tightrope audit device` draws."""

from tightrope.audit_device_data import KINDS, Draw

__all__ = ["KINDS", "Draw"]
