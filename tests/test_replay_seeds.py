"""What Hypothesis's own ways of repeating a run do here, and what they do not."""

from __future__ import annotations

import pytest
from hypothesis import reproduce_failure
from hypothesis.errors import InvalidArgument
from test_core_attacks_runs import plain_pytest
from test_plugin import adapter
from test_replay import COUNT, calls

from tightrope import holds_for
from tightrope.device import prepare
from tightrope.subjects import under_test


def test_a_seed_repeats_what_a_law_draws(tmp_path):
    """Two files that borrow one law draw the same cases; each has random bits of its own without a
    seed.
    """
    adapter(tmp_path, extra=COUNT)
    borrow = "from tightrope.properties.test_oracle import *\ntightrope_impl = 'acme_adapter'\n"
    for name in ("one", "other"):
        (tmp_path / f"test_{name}.py").write_text(borrow)
    done = plain_pytest(tmp_path, "--hypothesis-seed=7", "-p", "no:cacheprovider")
    assert "2 passed" in done.stdout, done.stdout
    drawn = calls(tmp_path)
    assert len(drawn) >= 40
    assert drawn[: len(drawn) // 2] == drawn[len(drawn) // 2 :]
    assert len(set(drawn)) > 10


def test_a_blob_of_another_version_is_refused_not_run():
    ran = []

    @reproduce_failure("6.0.0", b"AXicY2BkAAIAABAAAw==")
    @holds_for("rope")
    def test_few(impl, case):
        ran.append(case)

    prepare()
    (impl,) = under_test(["tightrope.impls.rope_torch"])
    with pytest.raises(InvalidArgument, match="Attempting to reproduce a failure from a different"):
        test_few(impl=impl)
    assert not ran
