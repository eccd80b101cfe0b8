"""`rope`: the replayed arithmetic, the float64 budget and the corners of rounding."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from simulated_rope import arithmetic, formats, kernel, nearest, split

from tightrope import Arithmetic
from tightrope.formats import FORMATS, stored, widen
from tightrope.oracles.rope import CONTRACT, RopeCase
from tightrope.verdict import judge

FLOAT64 = FORMATS["float64"]


def binade(value):
    """The exponent e with 2**e <= |value| < 2**(e + 1)."""
    e = value.numerator.bit_length() - value.denominator.bit_length()
    return e if abs(value) >= Fraction(2) ** e else e - 1


def stepped(a, b, sign):
    """a b in rational arithmetic, moved by half an ulp of float64 unless it is a float64 number."""
    moved = np.empty(a.shape, object)
    for i in np.ndindex(a.shape):
        product = Fraction(float(a[i])) * Fraction(float(b[i]))
        is_exact = Fraction(FLOAT64.round_fraction(product)) == product
        half = 0 if is_exact else Fraction(2) ** (max(binade(product), FLOAT64.emin) - 53)
        moved[i] = product + sign * half
    return moved


@pytest.mark.parametrize("data", ["normal", "cancellation", "subnormal", "few_bits"])
@pytest.mark.parametrize("table_dtype", ["float64", "float32"])
def test_full_half_ulp_steps_in_float64_stay_within_the_budget(data, table_dtype):
    case = RopeCase(
        tokens=2, num_heads=2, head_dim=18, rotary_dim=16, positions="random", dtype="float64",
        table_dtype=table_dtype, data=data,
    )  # fmt: skip
    inputs = CONTRACT.inputs(case)
    budget = CONTRACT.budget(case, inputs, arithmetic())["q"]
    x1, x2, c, s, put = split(inputs, "q", False)
    exact = CONTRACT.exact(case, inputs, "q", range(inputs["q"].size))
    bound = [Fraction(float(e)) for e in budget.bound.ravel()]
    ones = np.ones(x1.shape)
    for signs in ((1, 1), (-1, -1), (1, -1)):
        parts = [stepped(own, c * ones, signs[0]) for own in (x1, x2)]
        others = [stepped(other, s * ones, signs[1]) for other in (-x2, x1)]
        v = put(x1, x2).astype(object)
        v[..., :8], v[..., 8:16] = parts[0] + others[0], parts[1] + others[1]
        for value, y, e in zip(v.ravel(), exact, bound, strict=True):
            assert abs(Fraction(value) - y) <= e


@pytest.mark.parametrize(
    "stages",
    [
        {},
        {"table": "input"},
        {"sum": "input"},
        {"table": "input", "product": "input", "sum": "input"},
    ],
)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("data", ["mixed_scales", "subnormal"])
def test_the_replay_is_the_declared_arithmetic_in_rationals(stages, dtype, data):
    """Each rounding done once, by another algorithm, on exact rationals."""
    case = RopeCase(
        tokens=3, head_dim=18, rotary_dim=16, dtype=dtype, data=data, positions="random",
        table_dtype="float64" if dtype == "float64" else "float32",
    )  # fmt: skip
    inputs, promise = CONTRACT.inputs(case), arithmetic(**stages)
    replay = CONTRACT.budget(case, inputs, promise)["q"].replay
    names = {n: FLOAT64 if dtype == "float64" else f for n, f in formats(case, promise).items()}

    def rounded(fmt, value):
        return value if fmt is None else Fraction(fmt.round_fraction(value))

    table = names["table"] if "table" in stages else None
    for token, row in enumerate(inputs["positions"]):
        for j in range(16):
            own, other = (Fraction(float(inputs["q"][token, 0, i])) for i in (j, (j + 8) % 16))
            c, s = (rounded(table, Fraction(float(inputs[t][row, j % 8]))) for t in ("cos", "sin"))
            other = other if j >= 8 else -other
            total = rounded(names["product"], own * c) + rounded(names["product"], other * s)
            assert replay.centre[token, 0, j] == float(rounded(names["sum"], total))
    assert replay.radius == 0.0
    assert np.array_equal(replay.centre[..., 16:], widen(inputs["q"])[..., 16:])


def test_a_sum_far_below_a_midpoint_is_not_rounded_twice():
    """p is a midpoint of bfloat16, q is 2**-70 below it: through float64 the tie would be lost."""
    case = RopeCase(head_dim=2, rotary_dim=2, table_rows=1)
    inputs = CONTRACT.inputs(case)
    inputs["q"][...] = [[[1 + 2.0**-8 + 2.0**-7, 2.0**-70]]]
    inputs["cos"][...] = inputs["sin"][...] = 1
    replay = CONTRACT.budget(case, inputs, arithmetic(sum="bfloat16"))["q"].replay
    assert replay.centre[0, 0, 0] == 1 + 2.0**-7


def beside_a_midpoint():
    """y1 is 2**-27 below a midpoint of float16; a float32 sum is that midpoint, the tie goes up."""
    case = RopeCase(head_dim=2, rotary_dim=2, table_rows=1, dtype="float16", table_dtype="float16")
    inputs = CONTRACT.inputs(case)
    inputs["q"][...] = [[[1.5, 2.0**-14]]]
    inputs["k"][...] = inputs["q"]
    inputs["cos"][...], inputs["sin"][...] = 0.5 + 2.0**-11, 2.0**-13
    return case, inputs


def test_a_right_kernel_beside_a_midpoint_needs_the_term_of_the_sum():
    case, inputs = beside_a_midpoint()
    budget = CONTRACT.budget(case, inputs, arithmetic("any"))["q"]
    out = stored(kernel(case, inputs, "q", arithmetic(), nearest), "float16")
    exact = stored(budget.expected, "float16")
    assert out[0, 0, 0] != exact[0, 0, 0]
    assert judge("q", out, budget).ok
    assert judge("q", exact, budget).ok
    assert not judge("q", out, budget.without("sum rounded to float32")).ok


def test_a_sum_that_float64_cannot_hold_still_has_its_term():
    """y1 is a midpoint of float16 and 2**-48, 58 bits lower; float32 ends on the tie."""
    case = RopeCase(head_dim=2, rotary_dim=2, table_rows=1, dtype="float16", table_dtype="float16")
    inputs = CONTRACT.inputs(case)
    inputs["q"][...], inputs["cos"][...] = [[[1366.0, -(2.0**-24)]]], 0.75
    inputs["sin"][...] = 2.0**-24
    budget = CONTRACT.budget(case, inputs, arithmetic("any"))["q"]
    out = stored(kernel(case, inputs, "q", arithmetic(), nearest), "float16")
    assert (out[0, 0, 0], FORMATS["float16"].round(np.nextafter(1024.5, 2000))) == (1024, 1025)
    exact = lambda at: CONTRACT.exact(case, inputs, "q", at)  # noqa: E731
    assert judge("q", out, budget, exact).ok
    assert judge("q", stored([[[1025.0, widen(out)[0, 0, 1]]]], "float16"), budget, exact).ok


def test_exact_operations_and_the_last_rounding_have_no_terms():
    half = {"dtype": "float16", "table_dtype": "float16", "data": "few_bits", "table": "few_bits"}
    case = RopeCase(tokens=4, **half)
    assert not CONTRACT.budget(case, CONTRACT.inputs(case), arithmetic("any"))["q"].bound.any()
    for out, terms in (("float32", ["products"]), ("input", ["products", "sum"])):
        case = RopeCase(tokens=4, dtype="bfloat16", out_dtype=out)
        found = CONTRACT.budget(case, CONTRACT.inputs(case), arithmetic("any"))["q"].terms
        assert list(found) == [f"{term} rounded to float32" for term in terms]


def test_the_replay_tells_both_neighbours_apart():
    case, inputs = beside_a_midpoint()
    budget = CONTRACT.budget(case, inputs, arithmetic())["q"]
    assert judge(
        "q", stored(kernel(case, inputs, "q", arithmetic(), nearest), "float16"), budget
    ).ok
    assert not judge("q", stored(budget.expected, "float16"), budget).ok


def test_fused_products_have_the_same_worst_case_and_no_replay():
    case = RopeCase(tokens=16, head_dim=64, rotary_dim=64, dtype="bfloat16")
    inputs = CONTRACT.inputs(case)
    fused, plain = (CONTRACT.budget(case, inputs, arithmetic(c))["q"] for c in ("any", "none"))
    assert np.array_equal(fused.bound, plain.bound)
    assert fused.replay is None
    x1, x2, c, s, put = split(inputs, "q", False)
    single = FORMATS["float32"]
    for first in (x1 * c - single.round(x2 * s), single.round(x1 * c) - x2 * s):
        v = put(single.round(first), x2)
        error = np.abs(v - fused.expected)[..., :32]
        assert (error <= fused.bound[..., :32]).all()


def test_a_sum_that_may_overflow_has_an_infinite_term():
    case = RopeCase(head_dim=2, rotary_dim=2, table_rows=1, dtype="float16", out_dtype="float32")
    inputs = CONTRACT.inputs(case)
    inputs["q"][...] = [[[65504.0, 16.0]]]  # 65,520 is the first number that overflows
    inputs["cos"][...] = inputs["sin"][...] = 1
    budget = CONTRACT.budget(case, inputs, arithmetic("any", sum="input"))["q"]
    assert np.isinf(budget.bound[0, 0, 1])
    assert np.isfinite(budget.bound[0, 0, 0])


@pytest.mark.parametrize(
    ("dtype", "stages", "message"),
    [
        ("float16", {"product": "fp32"}, "product='fp32' is no format"),
        ("float64", {"sum": "bfloat16"}, "sum='bfloat16' is no format for float64"),
        ("float32", {"contraction": "often"}, "contraction is 'none' or 'any'"),
    ],
)
def test_an_arithmetic_that_means_nothing_is_refused(dtype, stages, message):
    case = RopeCase(dtype=dtype)
    with pytest.raises(ValueError, match=message):
        CONTRACT.budget(case, CONTRACT.inputs(case), Arithmetic(**stages).over(CONTRACT.stages))


def test_two_right_kernels_differ_by_more_than_a_millesimal_but_not_by_more_than_their_budgets():
    """float32 arithmetic against arithmetic in float16 throughout: docs/error-budgets.md, rope."""
    case = RopeCase(
        tokens=64, num_heads=8, num_kv_heads=2, head_dim=128, rotary_dim=128, dtype="float16",
        table="trigonometric", table_rows=512, positions="random",
    )  # fmt: skip
    inputs, half = CONTRACT.inputs(case), FORMATS["float16"]
    promises = arithmetic(), arithmetic(table="input", product="input", sum="input")
    outs = [half.round(kernel(case, inputs, "q", promise, nearest)) for promise in promises]
    spent = [CONTRACT.budget(case, inputs, promise)["q"] for promise in promises]
    difference = np.abs(outs[0] - outs[1])
    assert 0.005 < np.mean(difference > 1e-3) < 0.02
    last = [half.half_ulp(np.abs(b.expected) + b.bound) for b in spent]
    assert (difference <= spent[0].bound + spent[1].bound + last[0] + last[1]).all()
    assert all(b.inside(out).all() for b, out in zip(spent, outs, strict=True))
    assert not spent[0].inside(outs[1]).all()
