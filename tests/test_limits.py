"""Limits construct cases; an unknown name is an error that lists the known ones."""

from __future__ import annotations

import pytest

from tightrope import Arithmetic
from tightrope.implementation import Implementation, implements, resolve
from tightrope.limits import Limits, Usual, check_limits, describe, meet
from tightrope.oracles.attention_cases import NARROWED_BY, related

DOMAIN = {"dtype": ("float32", "float16"), "head_dim": range(2, 257, 2)}


def test_limits_keep_the_domains_order_and_narrow_further():
    limits = Limits(DOMAIN, {"dtype": ("float16", "float32")})
    assert limits.values("dtype") == ("float32", "float16")
    narrowed = limits.narrowed({"dtype": ("float16",), "head_dim": (64, 128)}, ("square",))
    assert narrowed.values("head_dim") == (64, 128)
    assert narrowed.where == {"square"}
    assert narrowed.narrowed({"dtype": ("float32",)}) is None


def test_picking_falls_back_to_what_is_allowed():
    limits = Limits(DOMAIN, {"head_dim": (88,)})
    assert limits.pick("head_dim", (64, 128)) == (88,)
    assert limits.pick("dtype", ("float16",)) == ("float16",)
    assert Limits(DOMAIN, {"head_dim": range(90, 99, 2)}).pick("head_dim", (64,)) == (90,)


def test_of_integers_the_nearest_are_picked_without_walking_through_a_range():
    domain = {"n": range(0, 1 << 60)}
    stepped = Limits(domain, {"n": range(64, 1 << 60, 64)})
    assert stepped.pick("n", (3, 130, 200)) == (64, 128, 192)
    assert stepped.pick("n", (3, 130, 200), most=130) == (64, 128)
    assert stepped.pick("n", (3, 5)) == (64,)
    assert Limits(domain, {"n": (0, 7)}).pick("n", (1, 2)) == (7,)
    assert Limits(domain, {"n": (0,)}).pick("n", (1, 2)) == (0,)
    check_limits(domain, {"n": range(64, 1 << 60, 64)}, (), ())
    with pytest.raises(ValueError, match="unknown value"):
        check_limits({"n": range(0, 99, 2)}, {"n": range(0, 99, 3)}, (), ())


def test_limits_may_name_other_numbers_than_the_usual_ones():
    domain = {"window": Usual((None, 0, 7), 0, 4096), "softcap": Usual((None, 5.0), 0.5, 100.0)}
    check_limits(domain, {"window": (1024,), "softcap": (30.0, None)}, (), ())
    fixed = Limits(domain, {"window": (1024,), "softcap": (30.0, None)})
    assert fixed.pick("window", (None, 7)) == (1024,)
    assert fixed.pick("softcap", (5.0,)) == (30.0, None)
    assert Limits(domain).pick("window", (7, 9)) == (7, 9)
    assert Limits(domain, {"window": range(512, 515)}).values("window") == (512, 513, 514)
    without_0 = Usual((None, 7), 1, 4096)
    assert fixed.narrowed({"window": without_0}).values("window") == (1024,)
    assert Limits(domain, {"window": (0,)}).narrowed({"window": without_0}) is None
    for value in (4097, -1, 0.5, True, "7"):
        with pytest.raises(ValueError, match="or any number from 0 to 4096"):
            check_limits(domain, {"window": (value,)}, (), ())


@pytest.mark.parametrize("start", [0, 1, 5])
@pytest.mark.parametrize(("step", "other"), [(1, 1), (2, 3), (4, 6), (6, 4), (-3, 5), (7, 7)])
def test_two_ranges_meet_where_their_values_do(start, step, other):
    some = range(start, 60, step) if step > 0 else range(60, start, step)
    others = range(-4, 50, other)
    assert list(meet(some, others)) == sorted(set(some) & set(others))
    assert Limits({"n": others}).narrowed({"n": some}) is None or isinstance(
        Limits({"n": others}).narrowed({"n": some}).given["n"], range
    )


@pytest.mark.parametrize(
    ("given", "where", "message"),
    [
        ({"heads": (1,)}, (), "unknown limit 'heads'; known: dtype, head_dim"),
        ({"dtype": ("int8",)}, (), "unknown value 'int8'; known: float32, float16"),
        ({"dtype": "float32"}, (), "expected a tuple or range"),
        ({"dtype": ()}, (), "expected a tuple or range"),
        ({}, ("round",), "unknown relation 'round'; known: square"),
    ],
)
def test_an_unknown_name_lists_the_known_ones(given, where, message):
    with pytest.raises(ValueError, match=message):
        check_limits(DOMAIN, given, ("square",), where)


def test_describe():
    assert describe(range(16, 257, 8)) == "16..256 step 8"
    assert describe(("a", "b")) == "a, b"


def wrong(**changes):
    fields = {"contract_name": "rope", "name": "x", "fn": print, "source": "adapter.py:7"}
    return Implementation(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"contract_name": "rop"},
            "adapter.py:7: .*unknown contract 'rop'; known: rope_table, .*rope",
        ),
        ({"limits": {"head": (1,)}}, "adapter.py:7: .*unknown limit 'head'"),
        ({"where": ("round",)}, "adapter.py:7: .*unknown relation"),
        ({"returns": ("v",)}, "adapter.py:7: .*unknown output 'v'; known: q, k"),
        (
            {"arithmetic": Arithmetic(prodct="float32")},
            "adapter.py:7: .*unknown arithmetic stage prodct",
        ),
    ],
)
def test_a_wrong_name_is_reported_with_the_decorators_place(changes, message):
    with pytest.raises(ValueError, match=message):
        resolve(wrong(**changes))


def test_registering_a_name_twice_names_both_places():
    implements("rope", name="twice in this test")(print)
    with pytest.raises(ValueError, match=r"test_limits.py:\d+ and .*test_limits.py:\d+"):
        implements("rope", name="twice in this test")(repr)


def test_without_an_lse_cases_hold_data_whose_weights_show_in_out():
    both, alone = (
        Implementation(contract_name="attention", name="acme", fn=len, returns=returns).allowed()
        for returns in (None, ("out",))
    )
    assert "without_lse" in alone.where
    assert "without_lse" not in both.where
    narrowed = related(alone, NARROWED_BY, "attention")
    assert "constant" not in narrowed.values("data_v")
    assert "repeated_keys" not in narrowed.values("data")
