"""What was drawn, as JSON and back: a case carries its fields, everything else is a plain value."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any


def freeze(value: Any) -> Any:
    """A drawn value as data; the inverse of `thaw`."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {"case": dataclasses.asdict(value)}
    return value


def thaw(value: Any, spec: Any) -> Any:
    """The drawn value again; `spec` is the contract of its case. JSON's lists become tuples.

    Raises TypeError for a case whose fields are not those of the contract's cases.
    """
    if isinstance(value, dict) and set(value) == {"case"}:
        return spec.from_json(value["case"])
    return tuple(thaw(v, spec) for v in value) if isinstance(value, list) else value


def text(data: Any, indent: int | None = None) -> str:
    """Strict JSON: what it has no numbers for (infinity, NaN) becomes a string."""
    return json.dumps(_plain(data), indent=indent, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(v) for v in value]
    if hasattr(value, "tolist"):  # NumPy's
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str):
        return printable(value)
    return value if value is None or isinstance(value, int | float) else repr(value)


def printable(told: str) -> str:
    """The text with what UTF-8 cannot say (lone surrogates) escaped."""
    return told.encode("utf-8", "backslashreplace").decode()
