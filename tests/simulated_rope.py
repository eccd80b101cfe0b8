"""Rotations simulated with explicit roundings; nothing is shared with the budgets but formats."""

from __future__ import annotations

import numpy as np

from tightrope import Arithmetic
from tightrope.formats import FORMATS, widen
from tightrope.oracles.rope import CONTRACT


def arithmetic(contraction="none", **stages):
    return Arithmetic(contraction=contraction, **stages).over(CONTRACT.stages)


def formats(case, stages):
    """The format of each stage, None for a table used as given."""
    names = {
        s: case.dtype if stages[s] == "input" else stages[s] for s in ("table", "product", "sum")
    }
    return {s: FORMATS.get(n) for s, n in names.items()}


def split(inputs, name, interleaved):
    """x1, x2, c, s in float64, broadcastable; and a function that puts two halves back."""
    x = widen(inputs[name])
    c, s = (widen(inputs[t][inputs["positions"]])[:, None] for t in ("cos", "sin"))
    half = c.shape[-1]
    one = slice(0, 2 * half, 2) if interleaved else slice(0, half)
    two = slice(1, 2 * half, 2) if interleaved else slice(half, 2 * half)

    def put(first, second):
        y = x.copy()
        y[..., one], y[..., two] = first, second
        return y

    return x[..., one], x[..., two], c, s, put


def kernel(case, inputs, name, stages, step):
    """The value before the last rounding. step(stage, format, value, uphill) does each rounding."""
    f = formats(case, stages)
    x1, x2, c, s, put = split(inputs, name, case.interleaved)
    out = "float32" if case.out_dtype == "float32" else case.dtype

    def one(own, other):
        cc = c if f["table"] is None else step("table", f["table"], c, np.sign(own))
        ss = s if f["table"] is None else step("table", f["table"], s, np.sign(other))
        p = step("product", f["product"], own * cc, 1.0)
        q = step("product", f["product"], other * ss, 1.0)
        # rounding the sum to the output's own format is the last rounding
        return p + q if f["sum"].name == out else step("sum", f["sum"], p + q, 1.0)

    return put(one(x1, -x2), one(x2, x1))


def nearest(stage, fmt, value, uphill):
    return fmt.round(value)
