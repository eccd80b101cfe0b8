"""The audit of PoPE as tables and pictures."""

from __future__ import annotations

from tightrope.audit_pictures import Picture
from tightrope.audit_rope_view import CERTIFIED, POWERS, limit
from tightrope.audit_tables import Result, Table, number

LEAD = (
    "The largest position at which cos and sin of polar angles stay within 2^-8, 2^-11 and 2^-20, "
    "for both signs of the exponent, and what formulas for the magnitude ln(1 + e^x) lose."
)


def tables(found: Result) -> list[Table]:
    limits: list[tuple[str, ...]] = [
        (r["way"], f"{r['exponent_sign']:+d}", f"{r['base']:g}", str(r["rotary_dim"]),
         *(limit(r[m][p]) for m in ("table", "pair") for p in POWERS))
        for r in found["limits"]
    ]  # fmt: skip
    columns: tuple[str, ...] = ("angles", "sign of the exponent", "base", "rotary_dim")
    columns += tuple(f"{m} 2^{p}" for m in ("table", "pair") for p in POWERS)
    magnitudes: list[tuple[str, ...]] = [
        (r["dtype"], r["formula"], r["steps"], "all" if r["exhaustive"] else "sampled",
         number(r["worst_ulps"]), number(r["at"]), number(r["zero_from"]),
         number(r["infinite_from"]))
        for r in found["magnitudes"]
    ]  # fmt: skip
    made = [
        Table("Largest position within a tolerance", columns, limits,
              f"{CERTIFIED} Kernels with exact fixed-point turns hold at every position."),
        Table(
            "Magnitudes ln(1 + e^x), x from -100 to 100",
            ("dtype", "formula", "steps in", "numbers tried", "worst error, ulps", "at x",
             "0 up to x =", "infinite from x ="),
            magnitudes,
            "Worst errors where the result is a normal number of the dtype; the reference is "
            "proved to 2^-49. Steps are correctly rounded one by one; 'all': every number of it.",
        ),
    ]  # fmt: skip
    return [table for table in made if table.rows]


def pictures(found: Result) -> list[tuple[Picture, str]]:
    return [(
        Picture(
            "Error of cos and sin against position (base 10000, rotary_dim 64)",
            "position (tokens)", "largest error of cos or sin (absolute)", found["curves"],
            {f"2^{p}": 2.0 ** int(p) for p in POWERS},
            alt="with exponent +1 frequencies reach the base, and every line lies higher",
        ),
        "With exponent +1 frequencies grow to the base itself, and angles with them; sines of "
        "float32 angles are lost within a few positions.",
    )]  # fmt: skip
