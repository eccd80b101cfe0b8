"""`tightrope init`: what it writes runs, is red until it is filled in, and green then."""

from __future__ import annotations

import pytest
from test_plugin import tightrope

from tightrope.cli import main
from tightrope.contract import contract, names
from tightrope.device import prepare
from tightrope.init import limits, parameters, write
from tightrope.subjects import under_test

FILLED = {
    "rope": """\
    from tightrope.adapt import rows

    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    c, s = (rows(t, positions).to(wide)[:, None] for t in (cos, sin))
    half, outs = c.shape[-1], []
    first, second = (slice(0, half), slice(half, 2 * half))
    if interleaved:
        first, second = (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
    for x in (q, k):
        y, a, b = x.clone(), x[..., first].to(wide), x[..., second].to(wide)
        y[..., first], y[..., second] = a * c - b * s, b * c + a * s
        outs.append(y)
    return tuple(outs)
""",
    "attention": """\
    seen = k.shape[2] if not causal else min(q.shape[2], k.shape[2])
    k, v = (x[:, :, :seen].float().repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    t = (q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale) * (q.float() @ k.mT)
    if causal:
        t = t.masked_fill(torch.ones_like(t, dtype=torch.bool).triu(1), -torch.inf)
    return (torch.softmax(t, -1) @ v).to(q.dtype), torch.logsumexp(t, -1)
""",
}


@pytest.mark.parametrize("name", names())
def test_every_contracts_adapter_can_be_called_and_says_that_it_is_empty(name, tmp_path):
    prepare()
    (impl,) = under_test([str(write(name, tmp_path / f"empty_{name}.py"))])
    assert impl.name == f"empty_{name}"
    narrow = impl.narrow({"dtype": impl.allowed().values("dtype")[:1]})
    expected = ", ".join(impl.contract.outputs)
    with pytest.raises(NotImplementedError, match=rf"call your kernel here and return {expected}$"):
        narrow(impl.contract.case(dtype=narrow.allowed().values("dtype")[0]))


def test_what_is_left_out_of_the_signature_is_left_out_of_the_cases():
    spec = contract("attention")
    assert parameters(spec)["causal"] is True
    assert parameters(spec)["v"] is False
    given = limits(spec, {"window_size", "q_offset", "sink"})
    assert list(given) == ["dtype", "q_offset", "offsets", "window_left", "window_right", "sink"]
    assert given["window_left"] == "(None,)"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("rope", "there.py"), "there.py exists and is left as it is"),
        (("rope", "there.txt"), "expected a name that ends in .py, got 'there.txt'"),
        (("rose",), "unknown contract 'rose'; known: rope_table, "),
    ],
)
def test_what_it_cannot_write_it_says(words, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.py").write_text("mine\n")
    assert main(["init", *words]) == 4
    assert told in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["there.py"]
    assert (tmp_path / "there.py").read_text() == "mine\n"


def test_first_red_then_green_as_the_printed_command_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in FILLED:
        assert main(["init", name]) == 0
    commands = [c for c in capsys.readouterr().out.splitlines() if c.startswith("  tightrope run")]
    assert commands[0] == "  tightrope run --impl=rope_adapter.py -k matches_oracle"
    words = ["run", *(f"--impl={name}_adapter.py" for name in FILLED), "-k", "matches_oracle"]
    words += ["--workers=0", "--examples=10", "--dtype=float32", "--profile=ci"]
    red = tightrope(tmp_path, *words)
    assert red.returncode == 1
    for name in FILLED:
        assert f'{name}_adapter.py", line' in red.stdout
        assert f"does not hold for {name} mine (float32)" in red.stdout
    assert red.stdout.count("NotImplementedError: not filled in: call your kernel here") == 2
    for name, body in FILLED.items():
        path = tmp_path / f"{name}_adapter.py"
        above = path.read_text().rpartition("    raise")[0]
        path.write_text(above.replace("from tight", "import torch\n\nfrom tight", 1) + body)
    green = tightrope(tmp_path, *words)
    assert green.returncode == 0, green.stdout
    assert "2 passed" in green.stdout
