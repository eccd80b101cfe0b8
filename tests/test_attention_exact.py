"""`attention` in ball arithmetic: what float64 cannot decide, and where its edges are."""

from __future__ import annotations

from fractions import Fraction

import mpmath
import numpy as np
import pytest
from attention_limits import OUTPUTS, SETTINGS, call, check_layers, exact

from tightrope.oracles import attention_exact, attention_row_exact


def weighed(values, keys, **settings):
    """A call with one query 1 of width 1, these keys, and values of width 1."""
    sizes = {"seqlen_q": 1, "seqlen_k": len(keys), "head_dim": 1, "head_dim_v": 1}
    case, inputs = call(**{"softmax_scale": 1.0, **sizes, **settings})
    inputs["q"][...] = 1
    inputs["k"][..., 0], inputs["v"][..., 0] = keys, values
    return case, inputs


@pytest.fixture
def only_the_first_precision(monkeypatch):
    monkeypatch.setattr(attention_row_exact, "ENOUGH", attention_row_exact.BITS)


@pytest.mark.usefixtures("only_the_first_precision")
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_exact_knows_a_sum_that_cancels_to_nothing(softcap):
    """Equal keys weigh the same: +1 and -1 leave 0, which no precision would tell from a ball."""
    case, inputs = weighed([1, 2, -2, -1], [3, 0.5, 0.5, 3], softcap=softcap)
    assert exact(case, inputs, "out") == [0]
    inputs["v"][..., 3, 0] = -1.5
    assert exact(case, inputs, "out")[0] < 0


def test_keys_with_one_score_and_different_biases_are_told_apart():
    case, inputs = weighed([1, -1, 0], [3, 3, 9], softcap=2.0)
    inputs["bias"] = np.float32([[[[0, 2.0**-130, 0]]]])
    assert exact(case, inputs, "out")[0] < 0


def test_what_nearly_cancels_has_a_hundred_bits_too():
    """Weights of 1 and e**(2 x) and values of 1 and -1: -tanh(x), x near 2**-114."""
    case, inputs = weighed([1, -1], [0, 1], softmax_scale=0.1 * 2.0**-110)
    (value,) = exact(case, inputs, "out")
    x = Fraction(0.1) / 2**111
    assert abs(value / -(x - x**3 / 3) - 1) < Fraction(1, 2**100)


def test_keys_and_rows_taken_in_parts_give_the_same(monkeypatch):
    case, inputs = call(**SETTINGS["everything"])
    whole = {output: exact(case, inputs, output) for output in OUTPUTS}
    monkeypatch.setattr(attention_exact, "CHUNK", 2)
    monkeypatch.setattr(attention_exact, "MOST", 2 * case.seqlen_k)
    for output, values in whole.items():
        for x, y in zip(values, exact(case, inputs, output), strict=True):
            assert abs(x - y) <= abs(x) / 2**99  # midpoints of two balls around one value


@pytest.mark.parametrize(
    "values", [[1.5, 0, -3], [96, 2.0**62], [-(2.0**61), 0.5], [1e300, -5e-324], [2.0**-1022], []]
)
def test_integers_stand_for_the_stored_values_as_they_are(values):
    mantissas, exponent = attention_row_exact.dyadic(np.array([values]))
    assert exponent <= 0
    assert [int(x) * Fraction(2) ** exponent for x in mantissas[0]] == values


def test_exact_spans_weights_far_below_float64():
    """Only the key that weighs e**-5000 has a value; what is below 2**-8192 counts as 0."""
    case, inputs = weighed([1, 0], [0, 50], seqlen_q=2)
    inputs["q"][..., 0] = [100, 200]
    with_value, nothing = exact(case, inputs, "out")
    with mpmath.workdps(60):
        share = 1 / (1 + mpmath.exp(5000))
        ratio = mpmath.mpf(with_value.numerator) / with_value.denominator / share
        assert abs(ratio - 1) < mpmath.mpf(2) ** -100
    assert nothing == 0
    for lse, logit in zip(exact(case, inputs, "lse"), (5000, 10000), strict=True):
        assert abs(lse - logit) < Fraction(logit, 2**100)


def test_lse_of_a_single_key_is_its_logit_and_of_none_does_not_exist():
    case, inputs = call(causal=True, q_offset=-1, seqlen_q=2, seqlen_k=2, softmax_scale=0.1)
    none, one = exact(case, inputs, "lse")
    q, k = inputs["q"][0, 0, 1], inputs["k"][0, 0, 0]
    products = (Fraction(float(a)) * Fraction(float(b)) for a, b in zip(q, k, strict=True))
    assert none is None
    assert one == Fraction(0.1) * sum(products)
    assert exact(case, inputs, "out")[:5] == [0] * 5


def test_exact_refuses_what_is_not_finite_only_where_a_row_looks():
    case, inputs = call(seqlen_q=2, causal=True, q_offset=1)
    inputs["k"][..., 3:, :] = np.nan
    inputs["v"][..., 3:, :] = np.inf
    check_layers(case, inputs)
    inputs["v"][..., 2, :] = np.inf
    attention_exact.exact(case, inputs, "out", [0])
    with pytest.raises(ArithmeticError, match="infinite or NaN"):
        attention_exact.exact(case, inputs, "out", [case.head_dim_v])


def test_the_default_scale_is_the_float64_number_nearest_to_the_root():
    for head_dim in range(1, 513):
        case, _ = call()
        assert attention_exact.Rule.of(case, head_dim).softmax_scale == head_dim**-0.5
