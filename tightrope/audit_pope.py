"""`tightrope audit pope`: to which position polar angles carry, and what magnitudes lose.

Angles m theta of both signs of the exponent, three arithmetics; magnitudes ln(1 + e^x) of every
number of each 16-bit format, and of a sample of float32 ones, by formulas in use, judged by
`audit_reference`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np

from tightrope.audit import Progress
from tightrope.audit_angles import of_pope
from tightrope.audit_positions import UNSCANNABLE, Built, bracket, curve, scan
from tightrope.audit_reference import REFERENCES
from tightrope.audit_ways import Way
from tightrope.environment import environment
from tightrope.formats import FORMATS, Array

BASES, DIMS, SIGNS = (10000.0, 500000.0, 1000000.0), (64, 128), (-1, 1)
DRAWN = (10000.0, 64)
WAYS = (
    Way(name="float64 throughout", position="exact", inv_freq="float64", angle="float64"),
    Way(name="float32 inv_freq, float64 product", angle="float64"),
    Way(name="float32 throughout"),
    Way(name="bfloat16 inv_freq", inv_freq="bfloat16"),
)
FORMULAS: dict[str, Callable[[Any, Any], Any]] = {
    "ln(1 + e^x)": lambda x, near: near(np.log(near(1 + near(np.exp(x))))),
    "log1p(e^x)": lambda x, near: near(np.log1p(near(np.exp(x)))),
    "x above 20, else log1p(e^x)": lambda x, near: near(
        np.where(x > 20, x, np.log1p(near(np.exp(np.minimum(x, 20.0)))))
    ),
    "max(x, 0) + log1p(e^-|x|)": lambda x, near: near(
        np.maximum(x, 0) + near(np.log1p(near(np.exp(-np.abs(x)))))
    ),
}


def audit(options: Any, progress: Progress) -> dict[str, Any]:
    """Everything, as JSON. Raises ValueError for positions past what is scanned and for a dtype
    that is no format of q and k.
    """
    to, formats = options.max_position, tuple(options.dtype) or ("float32", "bfloat16", "float16")
    if to >= UNSCANNABLE:
        raise ValueError(f"--max-position: expected below 2^26 for tables, got {to}")
    for name in formats:
        if name not in FORMATS or name == "float64":
            known = "float32, bfloat16, float16"
            raise ValueError(f"--dtype: expected one of {known}, got {name!r}")
    found: dict[str, Any] = {
        "audit": "pope", "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": environment(), "to": to, "limits": [], "curves": {}, "magnitudes": [],
    }  # fmt: skip
    steps = list(_steps(to, formats, found))
    for done, (name, step) in enumerate(steps):
        progress(name, done / len(steps))
        step()
    progress("done", 1.0)
    return found


def _steps(to: int, formats: tuple[str, ...], found: dict[str, Any]) -> Iterator[Any]:
    for sign in SIGNS:
        for base in BASES if sign < 0 else BASES[:1]:
            for dim in DIMS:
                yield (
                    f"exponent {sign:+d}, base {base:g}, rotary_dim {dim}",
                    (lambda s=sign, b=base, d=dim: found["limits"].extend(_limits(s, b, d, to))),
                )
        yield (
            f"exponent {sign:+d}: curves",
            lambda s=sign: found["curves"].update(
                {f"exponent {s:+d}, {w.name}": curve(_built(w, s, *DRAWN), to) for w in WAYS}
            ),
        )
    for name in formats:
        yield f"magnitudes in {name}", lambda n=name: found["magnitudes"].extend(magnitudes(n))


def _built(way: Way, sign: int, base: float, dim: int) -> Built:
    exact = of_pope(dim, base, sign)
    return Built(way=way, inv_freq=exact.rounded(way.inv_freq), exact=exact)


def _limits(sign: int, base: float, dim: int, to: int) -> Iterator[dict[str, Any]]:
    for way in WAYS:
        built = _built(way, sign, base, dim)
        wide = way.inv_freq == way.angle == "float64"
        found = bracket(built) if wide else scan(built, to)
        yield {
            "way": way.name, "exponent_sign": sign, "base": base, "rotary_dim": dim, **found,
        }  # fmt: skip


def numbers(name: str) -> tuple[Array, bool]:
    """Numbers of a format from -100 to 100, and whether they are all there are."""
    if name == "float32":
        rng = np.random.default_rng(0)
        return FORMATS[name].round(rng.uniform(-100, 100, 1 << 15)), False
    bits = np.arange(1 << 16, dtype=np.uint16)
    with np.errstate(invalid="ignore"):  # of NaN, which the next line leaves out
        every: Array = bits.view(FORMATS[name].dtype).astype(np.float64)
    return every[np.abs(every) <= 100], True


def magnitudes(name: str) -> Iterator[dict[str, Any]]:
    """Worst error of each formula, in ulps, where every step is rounded to the format, or to
    float32 and the end to it.
    """
    x, every = numbers(name)
    right = REFERENCES["softplus"].of(np, x)
    fmt = FORMATS[name]
    told = right >= 2.0**fmt.emin  # where the result is a normal number
    for steps in dict.fromkeys((name, "float32")):
        for formula, compute in FORMULAS.items():
            with np.errstate(over="ignore", divide="ignore"):
                got = fmt.round(compute(x, FORMATS[steps].round))
            off = np.where(told, np.abs(got - right) / fmt.ulp(right), 0.0)
            worst = int(np.argmax(off))
            zero = (got == 0) & told
            yield {
                "dtype": name, "steps": steps, "formula": formula, "exhaustive": every,
                "worst_ulps": float(off[worst]), "at": float(x[worst]),
                "zero_from": float(x[zero].max()) if zero.any() else None,
                "infinite_from": float(x[np.isinf(got)].min()) if np.isinf(got).any() else None,
            }  # fmt: skip
