"""The audit of positions: published limits again, certified ones, and builders under test."""

from __future__ import annotations

import numpy as np
import pytest

from tightrope import audit_builders, audit_rope, audit_shift
from tightrope.audit_angles import of_rope
from tightrope.audit_papers import shifted_attention
from tightrope.audit_positions import Built, bracket, curve, scan
from tightrope.audit_ways import WAYS, Way, angles, frequencies, stored
from tightrope.implementation import Implementation

BY_NAME = {way.name: way for way in WAYS}
HF = "Hugging Face (float32, torch pow)"
# Largest positions for bases 1e4, 5e5, 1e6 and 64, 128 columns: least and largest of the six, at
# 2^-8, 2^-11 and 2^-20, as scans of every position with another program had found them.
KNOWN = {
    "float32 inv_freq, float64 product": ((131438, 373421), (16435, 46680), (35, 92)),
    HF: ((49388, 100947), (6324, 12633), (19, 43)),
    "Hugging Face, bfloat16 table": ((35160, 77725), (0, 0), (0, 0)),
    "Hugging Face, float16 table": ((49388, 100947), (4992, 10043), (0, 0)),
    "TF32 positions and inv_freq, float32 product": ((17, 63), (2, 9), (0, 0)),
    "TF32 throughout": ((9, 19), (1, 4), (0, 0)),
    "float16 throughout": ((9, 19), (1, 4), (0, 0)),
    "float16 positions": ((2048, 2048), (2048, 2048), (21, 43)),
    "bfloat16 positions": ((256, 256), (256, 256), (21, 43)),
    "bfloat16 throughout": ((2, 9), (0, 1), (0, 0)),
    "bfloat16 inv_freq": ((2, 9), (0, 1), (0, 0)),
    "bfloat16 angles": ((2, 9), (0, 1), (0, 0)),
}
# Medians of the shift violation at t = 1, 4096, 65536, 2^20, 2^23, two digits, in CHAINS' order.
SHIFTS = (1, 4096, 65536, 2**20, 2**23)
MEDIANS = {
    3: ("2.4e-04", "2.5e-04", "2.5e-04", "2.4e-04", "2.3e-04"),
    4: (None, "2.0e-06", "2.6e-05", "4.1e-04", "3.1e-03"),
    5: ("2.6e-04", "3.1e-04", "3.2e-04", "5.6e-04", "3.1e-03"),
    6: ("1.6e-02", "3.9e-02", "6.3e-02", "8.3e-02", "8.3e-02"),
    7: ("2.5e-04", "2.7e-04", "2.6e-04", "4.1e-04", "3.3e-03"),
}


def built(name: str, base: float = 10000.0, dim: int = 128) -> Built:
    return audit_rope.made(BY_NAME[name], dim, base, None)


@pytest.mark.parametrize("name", KNOWN)
def test_limits_that_another_program_found_are_found_again(name):
    cases = [(b, d) for b in (1e4, 5e5, 1e6) for d in (64, 128)]
    found = [scan(built(name, *case), 1 << 19)["table"] for case in cases]
    for power, (low, high) in zip(("-8", "-11", "-20"), KNOWN[name], strict=True):
        limits = [f[power]["limit"] for f in found]
        assert low <= min(limits)
        assert max(limits) <= high
        if low > 20:  # of short ones only the range was given, for several ways together
            assert (min(limits), max(limits)) == (low, high)


@pytest.mark.parametrize("name", [HF, "Hugging Face, bfloat16 table", "TF32 throughout"])
def test_a_limit_is_the_first_violation_of_all_positions(name):
    """Every position up to the limit, one by one, in float64 without a candidate left out."""
    it, to = built(name, 500000.0, 64), 9000
    found, positions = scan(it, to), np.arange(to + 1)
    angle = angles(it.way, it.inv_freq, positions[:, None])
    sine, cosine = it.exact.sin_cos(positions[:, None])
    off = [stored(it.way, f(angle)) - x for f, x in ((np.sin, sine), (np.cos, cosine))]
    measures = {"table": np.maximum(*np.abs(off)), "pair": np.hypot(*off)}
    for measure, error in measures.items():
        for power, entry in found[measure].items():
            bad = np.nonzero(error.max(axis=1) >= 2.0 ** int(power))[0]
            assert entry["limit"] == (bad[0] - 1 if bad.size else to)
            assert ("at" in entry) == bool(bad.size)


def test_float64_tables_have_proved_and_found_limits():
    found = bracket(built("float64 throughout"))["table"]
    for power, lowest, highest in (
        ("-8", 2**44, 2**48),
        ("-11", 2**41, 2**45),
        ("-20", 2**32, 2**40),
    ):
        assert lowest < found[power]["limit"] < found[power]["at"][0] < highest
        assert not found[power]["exact"]
        assert found[power]["error"] >= 2.0 ** int(power)


def test_what_float64_and_balls_say_of_an_element_agrees():
    rng = np.random.default_rng(0)
    for name in ("float32 throughout", "float32 inv_freq, float64 product", "TF32 throughout",
                 "Hugging Face, bfloat16 table"):  # fmt: skip
        it = built(name)
        positions, columns = rng.integers(0, 2**20, 40), rng.integers(0, 64, 40)
        low, high = it.errors(positions, columns)
        for i in range(40):
            exact = it.ball_error(int(positions[i]), int(columns[i]))
            for row in range(2):
                assert low[row, i] <= exact[row] * (1 + 2.0**-50) + 2.0**-55
                assert exact[row] <= high[row, i] * (1 + 2.0**-50) + 2.0**-55
                assert high[row, i] - low[row, i] < 2.0**-7


def test_linear_scaling_by_eight_carries_eight_times_as_far():
    way = BY_NAME["float32 inv_freq, float64 product"]
    plain, slowed = (
        scan(audit_rope.made(way, 128, 10000.0, kind), 1 << 18)["table"]["-11"]["limit"]
        for kind in (None, "linear")
    )
    assert 8 * plain - 64 <= slowed <= 8 * plain + 64  # the frequencies' digits stay, 8 = 2^3


def test_curves_rise_to_the_tolerance_where_the_limit_is():
    it = built(HF)
    limit = scan(it, 1 << 17)["table"]["-8"]["limit"]
    points = curve(it, 1 << 20)
    assert all(error < 2.0**-8 for position, error in points if position <= limit)
    assert any(error >= 2.0**-8 for position, error in points if position <= 2 * limit)


@pytest.mark.parametrize(
    ("name", "pair"),
    [
        ("bfloat16 positions", (256, 257)), ("float16 positions", (2048, 2049)),
        ("TF32 throughout", (2048, 2049)), (HF, (2**24, 2**24 + 1)), ("float64 throughout", None),
    ],
)  # fmt: skip
def test_positions_collide_where_their_format_ends(name, pair):
    assert audit_rope.collision(built(name))["pair"] == pair


@pytest.mark.parametrize("place", MEDIANS)
def test_shift_violations_are_those_that_were_published(place):
    found = audit_shift.violations(audit_shift.CHAINS[place], SHIFTS)["median"]
    for ours, known in zip(found, MEDIANS[place], strict=True):
        assert known is None or f"{ours:.1e}" == known


def test_exact_tables_leave_a_floor_that_does_not_grow():
    for place, low, high in ((0, 3.5e-9, 5.5e-9), (1, 2e-5, 3e-5), (2, 1.5e-4, 2.1e-4)):
        median = audit_shift.violations(audit_shift.CHAINS[place], (1, 65536, 2**23))["median"]
        assert low < min(median) < max(median) < high


def test_attention_moves_with_the_length_and_the_first_key_most():
    rows = shifted_attention((64, 256))["rows"]
    by_way = {}
    for row in rows:
        by_way.setdefault(row["way"], []).append(row)
    for short, long in by_way.values():
        assert long["total"] > 2 * short["total"]
        assert long["first_key"] > 2 * long["middle_key"]
    exact, half, positions = by_way.values()
    assert exact[1]["total"] < half[1]["total"] / 1000
    assert positions[1]["total"] > half[1]["total"]


def builder(torch_dtype):
    import torch

    def build(positions, *, rotary_dim, rope_theta, rope_scaling=None, seq_len=None):
        exponents = torch.arange(0, rotary_dim, 2, dtype=torch.int64).float() / rotary_dim
        angle = positions.to(torch_dtype).float()[:, None] * (1.0 / rope_theta**exponents)
        return angle.cos(), angle.sin()

    return Implementation(contract_name="rope_table", name="own", fn=build)


def test_a_builder_under_test_has_the_limits_of_its_way():
    import torch

    at = audit_builders.scaled("default", 128, 10000.0)
    own = audit_builders.limits(builder(torch.bfloat16), 128, 10000.0, at, 2048, 60.0)
    for measure, entries in scan(built("bfloat16 positions"), 2048).items():
        for power in ("-8", "-11"):
            assert own[measure][power]["limit"] == entries[power]["limit"] == 256
            assert own[measure][power]["exact"]


def test_a_builder_out_of_time_is_searched_and_says_so():
    import torch

    at = audit_builders.scaled("default", 64, 10000.0)
    found = audit_builders.limits(builder(torch.float32), 64, 10000.0, at, 1 << 20, 0.0)["table"]
    assert not found["-8"]["exact"]
    assert found["-8"]["limit"] == audit_builders.BLOCK - 1  # all that was tried one by one
    assert found["-8"]["at"][0] > 87393  # the first violation of all; a search finds a later one
    assert found["-20"]["exact"]


def test_a_builder_of_another_shape_is_refused():
    at = audit_builders.scaled("default", 64, 10000.0)
    bad = Implementation(
        contract_name="rope_table", name="bad", fn=lambda p, **_: (p[:, None].float(),) * 2
    )
    with pytest.raises(ValueError, match="expected cos, sin of shape"):
        audit_builders.limits(bad, 64, 10000.0, at, 64, 1.0)


def test_frequencies_of_a_way_are_rounded_once_to_its_format():
    exact = of_rope(64, 10000.0)
    found = frequencies(Way(name="", inv_freq="bfloat16"), exact, 64, 10000.0)
    assert not (found.astype(np.float32).view(np.uint32) & 0xFFFF).any()
    assert np.abs(found / exact.rounded("float64") - 1).max() <= 2.0**-8
