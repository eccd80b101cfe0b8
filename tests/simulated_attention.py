"""Attention kernels simulated with explicit roundings; they share only formats with the budgets.

Arrays are float64 and hold float32 values; (groups, rows, keys) throughout. The arithmetic is that
of the bundled kernels: docs/error-budgets.md, attention, section kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tightrope.formats import FORMATS, Format

FLOAT32 = FORMATS["float32"]
TF32 = Format("tf32", 11, -126, 127)
LOG2E, LN2 = float(np.float32(np.log2(np.e))), float(np.float32(np.log(2.0)))
PATTERNS = ("up", "down", "outward", "inward", "random", "call")


@dataclass
class Rounding:
    """Nearest, or every inexact operation moved by a full half ulp in a pattern of signs.

    "call" draws one sign per operation, so that many seeds search the corners of a short kernel.
    """

    pattern: str = "nearest"
    seed: int = 0
    exp_ulp: float = 0.5
    division_ulp: float = 0.5
    log_ulp: float = 0.5
    flush: bool = True
    rng: np.random.Generator = field(init=False)

    def __post_init__(self):
        self.rng = np.random.default_rng(self.seed)

    def sign(self, x):
        away = np.where(x < 0, -1.0, 1.0)
        if self.pattern == "call":
            return float(self.rng.choice([-1.0, 1.0])) * (away if self.seed % 2 else 1.0)
        if self.pattern == "random":
            return self.rng.choice([-1.0, 1.0], np.shape(x))
        return {"up": 1.0, "down": -1.0, "outward": away, "inward": -away}[self.pattern]

    def __call__(self, x, fmt=FLOAT32):
        near = fmt.round(x)
        if self.pattern == "nearest":
            return near
        with np.errstate(invalid="ignore"):
            return np.where(near == x, x, x + self.sign(x) * fmt.half_ulp(x))

    def add(self, a, b):
        """Adding to or with 0 is exact."""
        return np.where(a == 0, b, np.where(b == 0, a, self(a + b)))

    def function(self, y, ulps):
        """A value within `ulps` of y, the final rounding included."""
        if self.pattern == "nearest":
            return FLOAT32.round(y)
        return np.where(y == 0, 0.0, y + self.sign(y) * ulps * FLOAT32.ulp(y))

    def exp2(self, x):
        with np.errstate(over="ignore"):
            y = np.maximum(self.function(np.exp2(x), self.exp_ulp), 0.0)
        y = np.where(x == 0, 1.0, np.where(x < -300, 0.0, y))
        return np.where(y < 2.0**-126, 0.0, y) if self.flush else y


def hopper(a, b, c, fmt):
    """The tensor-core model of docs/error-budgets.md: 16 products a step, 25 bits, truncation."""

    def of(x, lowest):
        return np.where(x == 0, -1000, np.maximum(np.frexp(x)[1] - 1, lowest))

    exponent = of(a, fmt.emin), of(b, fmt.emin)
    for k in range(0, a.shape[-1], 16):
        left, right = a[..., k : k + 16, None], b[..., None, k : k + 16, :]
        top = exponent[0][..., k : k + 16, None] + exponent[1][..., None, k : k + 16, :]
        largest = np.maximum(np.maximum(top.max(-2), of(c, -126)), -133)
        unit = np.ldexp(1.0, largest - 25)
        total = (np.trunc(left * right / unit[..., None, :]).sum(-2) + np.trunc(c / unit)) * unit
        # nothing is added to c: exact for a float32, which a stressed value need not be
        c = np.where((left * right != 0).any(-2), FLOAT32.truncate(total), c)
    return c


def dot(a, b, c, order, to, fmt):
    """c + a @ b in float32; a and b of format fmt; order "hopper", "blas" or "sequential"."""
    if order == "hopper":
        return hopper(a, b, c, fmt)
    if order == "blas":
        product = np.matmul(a.astype(np.float32), b.astype(np.float32)).astype(np.float64)
        return FLOAT32.round(c + product)
    for k in range(a.shape[-1]):
        product = a[..., :, k, None] * b[..., None, k, :]
        c = to.add(c, to(product) if fmt is FLOAT32 else product)
    return c


@dataclass
class Kernel:
    """One schedule, and what may be wrong with it (`fault`). below: how l is rounded, if apart."""

    block: int = 16
    order: str = "hopper"
    to: Rounding = field(default_factory=Rounding)
    normalised: bool = False
    fault: str = ""
    lse: str = "base2"
    sink: str = "start"
    below: Rounding | None = None
    precision: str = "ieee"

    def __call__(self, problem):
        """(out, lse) before the last rounding of out to 16 bits; float32 values unless stressed."""
        to, dtype = self.to, FORMATS[problem.dtype]
        below, self.top = self.below or to, -np.inf
        groups, rows, keys = problem.visible.shape
        m, l = np.full((groups, rows, 1), -np.inf), np.zeros((groups, rows, 1))
        acc = np.zeros((groups, rows, problem.v.shape[-1]))
        first = None
        if problem.sink is not None:
            first = np.broadcast_to(FLOAT32.round(problem.sink * LOG2E)[:, None, None], m.shape)
            if self.sink == "start":
                m, l = first, np.ones(m.shape)
        for at in range(0, keys, self.block):
            cut = slice(at, at + self.block)
            t, x_of = self.logits(problem, cut)
            new = np.maximum(m, FLOAT32.round(t.max(-1, keepdims=True)))
            shift = np.where(np.isneginf(new), 0.0, new)
            p = to.exp2(x_of(shift))
            alpha = self.alpha(m, shift)
            m = new
            rounded, summed = self.cast(p, dtype)
            scaled = np.where(alpha == 1, l, below(l * alpha))
            total = below.add(scaled, self.row_sum(summed))
            if self.normalised:
                base = to(scaled * acc)
            else:
                base = np.where(alpha == 1, acc, to(acc * alpha))
            base = acc if self.fault == "acc not rescaled" and not self.normalised else base
            acc = self.dot(rounded, problem.v[:, cut], base, dtype)
            l = scaled if self.fault == "block not in l" and at else total
            if self.fault == "acc in bf16":
                acc = FORMATS["bfloat16"].round(acc)
            if self.normalised:
                acc = self.divide(acc, l)
        if first is not None and self.sink == "end":
            new = np.maximum(m, first)
            alpha = self.alpha(m, new)
            same = alpha == 1
            scaled = np.where(same, l, to(l * alpha))
            l = to.add(scaled, to.exp2(to(first - new)))
            moved = to(scaled * acc) if self.normalised else np.where(same, acc, to(acc * alpha))
            acc = self.divide(moved, l) if self.normalised else moved
            m = new
        out = acc if self.normalised else self.divide(acc, l)
        return out, self.log(m, l, problem)[..., 0]

    def logits(self, problem, cut):
        """t, -inf where masked, whose maximum is rounded to nearest; and x(shift)."""
        to, seen = self.to, problem.visible[..., cut]
        right = problem.k[:, cut].swapaxes(-1, -2)
        s = self.dot(problem.q, right, np.zeros((*problem.q.shape[:2], right.shape[-1])),
                     FORMATS[problem.dtype])  # fmt: skip
        if self.fault == "scores in fp16":
            s = FORMATS["float16"].round(s)
        if problem.softcap is None and problem.bias is None:
            c = float(np.float32(problem.softmax_scale * np.log2(np.e)))
            t = np.where(seen, s * c, -np.inf)
            self.top = np.maximum(self.top, np.where(seen, s, -np.inf).max(-1, keepdims=True))
            return t, lambda shift: np.where(seen, to(s * c - shift), -np.inf)
        z = self.capped(s, problem)
        if problem.bias is not None:
            z = to.add(z, problem.bias[..., cut])
        t = np.where(seen, to(z * LOG2E), -np.inf)
        return t, lambda shift: np.where(seen, to(np.where(seen, t, 0.0) - shift), -np.inf)

    def dot(self, a, b, c, fmt):
        """c + a @ b; float32 operands as they are, truncated to tf32, or split into two of them."""
        if fmt is not FLOAT32 or self.precision == "ieee":
            return dot(a, b, c, self.order, self.to, fmt)
        if self.precision == "tf32":
            return dot(TF32.truncate(a), TF32.truncate(b), c, self.order, self.to, TF32)
        big_a, big_b = TF32.round(a), TF32.round(b)
        small_a, small_b = TF32.truncate(a - big_a), TF32.truncate(b - big_b)
        total = np.zeros(c.shape)
        for left, right in ((small_a, big_b), (big_a, small_b), (big_a, big_b)):
            total = dot(left, right, total, self.order, self.to, TF32)
        return self.to.add(total, c)

    def capped(self, s, problem):
        to, cap = self.to, problem.softcap
        if cap is None:
            return to(s * float(np.float32(problem.softmax_scale)))
        y = to(s * float(np.float32(problem.softmax_scale / cap)))
        x = to(y * 2 * LOG2E)
        power = np.where(x >= 128, np.inf, to.exp2(np.minimum(x, 128.0)))
        one_more = np.where(np.isinf(power), np.inf, to(1 + np.where(np.isinf(power), 0, power)))
        half = np.where(np.isinf(one_more), 0.0, self.divide(2.0, one_more))
        return to(float(np.float32(cap)) * to(1 - half))

    def cast(self, p, dtype):
        """P as it is multiplied, and as it is summed."""
        rounded = p if dtype is FLOAT32 or self.fault == "P not rounded" else dtype.round(p)
        if self.fault == "P truncated":
            rounded = dtype.truncate(p)
        return rounded, rounded if self.fault == "l from rounded P" else p

    def alpha(self, m, shift):
        with np.errstate(invalid="ignore"):
            d = np.where(np.isneginf(m), -np.inf, self.to(np.where(np.isneginf(m), 0, m) - shift))
        alpha = self.to.exp2(d)
        return FORMATS["bfloat16"].round(alpha) if self.fault == "alpha in bf16" else alpha

    def row_sum(self, p):
        if self.to.pattern == "nearest":
            return p.astype(np.float32).sum(-1, keepdims=True).astype(np.float64)
        total = p[..., :1]
        for k in range(1, p.shape[-1]):
            total = (self.below or self.to).add(total, p[..., k : k + 1])
        return total

    def divide(self, a, b):
        return self.to.function(a / np.where(b == 0, 1.0, b), self.to.division_ulp)

    def log(self, m, l, problem):
        some = np.where(l == 0, 1.0, l)
        m = np.where(np.isneginf(m), 0.0, m)
        if self.lse == "base2":
            inner = self.to.add(m, self.to.function(np.log2(some), self.to.log_ulp))
            return np.where(l == 0, -np.inf, inner * LN2)
        top = np.where(l == 0, 0.0, self.top) * float(np.float32(problem.softmax_scale))
        value = self.to(top) + self.to.function(np.log(some), self.to.log_ulp)
        return np.where(l == 0, -np.inf, value)


def stressed(pattern, seed=0):
    """Full steps in one pattern, functions at the edge of what a stranger is granted."""
    return Rounding(pattern, seed, exp_ulp=2.5, division_ulp=2.5, log_ulp=1.0)
