"""Laws of tables whose frequencies are scaled for contexts longer than a model was trained for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tightrope import holds_for
from tightrope.budget import Violation
from tightrope.compare import budgets, reach, same_bits, within
from tightrope.formats import widen
from tightrope.oracles import rope_scaling
from tightrope.oracles.rope_table_scaling import amplitude, effective

SCALED = {
    "rope_scaling": ("linear", "ntk", "dynamic", "yarn", "longrope", "llama3", "proportional")
}
CHANGED = {"rope_scaling": ("ntk", "dynamic")}
BY_LENGTH = {"rope_scaling": ("dynamic", "longrope")}
MIXED = {"rope_scaling": ("yarn", "llama3")}
PLAIN = {"rope_scaling": ("default",)}
BOTH = ("cos", "sin")
MANY = {"axes": ("sections", "interleaved")}


def frequencies(impl, case):
    """What a table shows at position 1, (rotary_dim/2,): its angles, and bounds on their errors.

    Angles of bases from 1/2 on are below pi. A vector moved by d < 1/2 of its length turns by at
    most asin d < 1.2 d.
    """
    one = replace(case, axes="one", tokens=1, positions="range", start=1)
    inputs = impl.contract.inputs(one)
    found, spent = impl(one, inputs), budgets(impl, one, inputs)
    cos, sin = (widen(found[name])[0] for name in ("cos", "sin"))
    off = (reach(spent["cos"]) + reach(spent["sin"]))[0] / amplitude(case)
    return np.arctan2(sin, cos), np.where(off < 0.5, 1.2 * off, 4.0) + 2.0**-50


@holds_for("rope_table", returns=BOTH, limits=SCALED)
def test_pairs_have_the_declared_norm(impl, case):
    """Demands: cos^2 + sin^2 = attention_factor^2, within the larger error of both.

    Kills: attention_factor left out, squared, or applied to one of them; mscale left out. Blind to
    wrong angles.
    """
    inputs = impl.contract.inputs(case)
    found, spent, a = impl(case, inputs), budgets(impl, case, inputs), amplitude(case)
    c, s = widen(found["cos"]), widen(found["sin"])
    e = np.maximum(reach(spent["cos"]), reach(spent["sin"]))
    limit = 2 * (np.abs(c) + np.abs(s)) * e + 2 * e**2 + 2.0**-48 * a**2
    within("cos^2 + sin^2", c**2 + s**2 - a**2, limit, "pairs must have length attention_factor")


@holds_for("rope_table", returns=BOTH, limits=SCALED)
def test_frequencies_never_rise(impl, case):
    """Demands: with a base of 1 or more, no column turns faster than the one before it.

    Kills: a smooth factor the wrong way round, ends of a ramp exchanged.
    """
    if case.rope_theta < 1:
        return
    found, off = frequencies(impl, case)
    within("angle", np.maximum(np.diff(found), 0.0), off[1:] + off[:-1], "frequencies must fall")


@holds_for("rope_table", returns=BOTH, limits=CHANGED, needs=PLAIN)
def test_a_changed_base_keeps_the_first_frequency(impl, case):
    """Demands: column 0 turns as it does unscaled; under ntk the last one is slowed by the factor.

    Kills: interpolation in place of a change of base, an exponent of D/2 or D - 1.
    """
    found, off = frequencies(impl, case)
    plain, its = frequencies(impl, replace(case, rope_scaling="default"))
    within("angle", found[:1] - plain[:1], off[:1] + its[:1], "column 0 must stay")
    if case.rope_scaling == "ntk":
        apart = found[-1:] * case.factor - plain[-1:]
        within("angle", apart, off[-1:] * case.factor + its[-1:], "the last column must slow by s")


@holds_for("rope_table", returns=BOTH, limits=SCALED, needs=PLAIN)
def test_a_factor_of_one_changes_nothing(impl, case):
    """Demands: factor 1 gives the unscaled table, within both budgets, where columns turn at all.

    For dynamic, whose base grows with the sequence all the same, within the length trained for.
    Kills: an attention_factor or a base that does not start at 1.
    """
    if case.rope_scaling == "longrope":
        return  # its lists, not its factor, scale frequencies
    one = replace(case, factor=1.0, variant="plain", seq_len=None)
    found, off = frequencies(impl, one)
    plain, its = frequencies(impl, replace(one, rope_scaling="default"))
    turning = np.arange(len(found)) < effective(one).turning
    within("angle", (found - plain)[turning], (off + its)[turning], "factor 1 must change nothing")


@holds_for("rope_table", returns=BOTH, limits=BY_LENGTH)
def test_factors_switch_behind_the_trained_length(impl, case):
    """Demands: sequences up to L give one table, bit for bit; L + 1 the one declared for it.

    longrope jumps from its short factors to its long ones, dynamic grows by (1 + s/L)^(-2c/(D-2)).
    Kills: a switch one token early or late, short factors for long sequences.
    """
    inputs = impl.contract.inputs(case)
    last = impl(replace(case, seq_len=case.length), inputs)
    for seq_len in (None, 0, 1, case.length - 1):
        same = impl(replace(case, seq_len=seq_len), inputs)
        for name in impl.outputs:
            same_bits(name, last[name], same[name], "sequences up to L must have one table")
    before, off = frequencies(impl, replace(case, seq_len=case.length))
    after, its = frequencies(impl, replace(case, seq_len=case.length + 1))
    ratio = growth(case)
    limit = off * ratio + its + 2.0**-48
    within("angle", before * ratio - after, limit, "the switch must be the declared one")


def growth(case):
    """Frequencies of a sequence of L + 1 by those of L."""
    scaling = effective(case)
    if case.rope_scaling == "longrope":
        return np.array(scaling.short_factor) / np.array(scaling.long_factor)
    exponent = -np.arange(0, case.rotary_dim, 2) / (case.rotary_dim - 2)
    return (1 + case.factor / case.length) ** exponent


@holds_for("rope_table", limits=BY_LENGTH)
def test_a_longer_call_before_changes_nothing(impl, case):
    """Demands (bitwise): a table of L or L + 1 tokens is the same before and after one of far more.

    Kills: a base, or factors, kept from the longest sequence seen so far, also where a sequence
    within L lets go of them.
    """
    inputs = impl.contract.inputs(case)
    for seq_len in (case.length, case.length + 1):
        short = replace(case, seq_len=seq_len)
        first = impl(short, inputs)
        impl(replace(case, seq_len=64 * case.length), inputs)
        again = impl(short, inputs)
        for name in impl.outputs:
            same_bits(name, first[name], again[name], "a longer call must leave nothing behind")


@holds_for("rope_table", returns=BOTH, limits=MIXED, needs=PLAIN)
def test_fast_columns_stay_and_slow_ones_are_interpolated(impl, case):
    """Demands: columns that turn often within L keep their frequency, those that seldom turn have
    it divided by the factor, and all others lie between.

    Often is beta_fast times (yarn) or high_freq_factor times (llama3); seldom the other bound.
    Kills: ends exchanged, a ramp that ends elsewhere, the unscaled frequencies returned.
    """
    scaling = effective(case)
    found, off = frequencies(impl, case)
    plain, its = frequencies(impl, replace(case, rope_scaling="default"))
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    if case.rope_scaling == "yarn":
        ends = rope_scaling.corrections(case.rotary_dim, case.rope_theta, scaling)
        if ends[0] >= ends[1]:
            return  # a ramp that lies outside of all columns
        low, high = scaling.beta_slow, scaling.beta_fast
    w = rope_scaling.unscaled(case.rotary_dim, case.rope_theta, scaling)
    turns, s = case.length * w / (2 * np.pi), case.factor
    limit = off + its
    within("angle", np.maximum(found - plain, plain / s - found).clip(0), limit, "between both")
    stay, slow = turns > high * (1 + 2.0**-40), turns < low * (1 - 2.0**-40)
    within("angle", (found - plain)[stay], limit[stay], "columns that turn often must stay")
    within("angle", (found - plain / s)[slow], limit[slow], "slow ones must be interpolated")


@holds_for("rope_table", limits={"rope_scaling": ("linear", "yarn", "llama3", "ntk")})
def test_rotary_dim_contains_the_partial_factor(impl, case):
    """Demands (bitwise): partial_rotary_factor, of types that do not read it, changes nothing.

    Kills: the width of the head in the exponent's denominator.
    """
    inputs = impl.contract.inputs(case)
    whole, half = (impl(replace(case, variant=v), inputs) for v in ("plain", "partial"))
    for name in impl.outputs:
        same_bits(name, whole[name], half[name], "rotary_dim must contain the partial factor")


@holds_for("rope_table", limits={"rope_scaling": ("proportional",)})
def test_columns_past_the_proportion_rest(impl, case):
    """Demands (by value): columns that do not turn have cos 1 and sin 0 at every position.

    Kills: a proportion taken of the columns' count twice, all columns turned.
    """
    rest = effective(case).turning
    found = impl(case, impl.contract.inputs(case))
    for name, value in (("cos", 1.0), ("sin", 0.0)):
        within(name, widen(found[name])[:, rest:] - value, np.zeros(()), "a column must rest")


@holds_for("rope_table", limits=MANY, needs={"axes": ("one",)})
def test_equal_axes_are_one_axis(impl, case):
    """Demands (bitwise): a token whose three positions are equal has the row of that position.

    Kills: sections that leave a column out, axes added up.
    """
    one = impl.contract.inputs(replace(case, axes="one"))
    three = {"positions": np.stack([one["positions"]] * 3)}
    plain, found = impl(replace(case, axes="one"), one), impl(case, three)
    for name in impl.outputs:
        same_bits(name, plain[name], found[name], "equal positions must give one row")


@holds_for("rope_table", returns=BOTH, limits=MANY)
def test_each_column_turns_by_its_own_axis(impl, case):
    """Demands: moving one axis changes its own columns, and no others (bitwise).

    Kills: sections in another order, interleaved ones taken in a row.
    """
    inputs = impl.contract.inputs(case)
    scaling, first = effective(case), impl(case, inputs)
    mine = rope_scaling.axes(case.rotary_dim // 2, scaling)
    for axis in range(3):
        moved = inputs["positions"].copy()
        moved[axis] //= 2
        found = impl(case, {"positions": moved})
        for name in impl.outputs:
            kept = mine != axis
            story = f"axis {axis} must not turn the columns of others"
            same_bits(name, first[name][:, kept], found[name][:, kept], story)
    _moves(impl, case, mine)


def _moves(impl, case, mine):
    """Every axis turns its first column: at position 2 against position 1."""
    one = replace(case, tokens=1)
    still = np.ones((3, 1), impl.contract.inputs(one)["positions"].dtype)
    first = widen(impl(one, {"positions": still})["sin"])
    for axis in set(mine[: effective(case).turning].tolist()):
        moved = still.copy()
        moved[axis] = 2
        column = int(np.flatnonzero(mine == axis)[0])
        found = widen(impl(one, {"positions": moved})["sin"])
        if found[0, column] == first[0, column]:
            raise Violation(f"sin[0, {column}] does not move with axis {axis}")
