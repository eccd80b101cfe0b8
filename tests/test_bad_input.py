"""Bad input is refused before anything is launched, in one wording; odd but legal input is not."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tightrope.device import current
from tightrope.validate import check_rope

HOME = current().kind

from tightrope.impls import rope as triton_rope  # noqa: E402  (Triton after `current`)
from tightrope.impls import rope_torch  # noqa: E402

ROPES = pytest.mark.parametrize(
    "rope", [triton_rope.rope, rope_torch.rope], ids=["triton", "torch"]
)
WORDING = re.compile(r"^[^:]+: expected .+, got .+$", re.DOTALL)
TOKENS, HEADS, KV_HEADS, DIM, ROWS = 5, 4, 2, 32, 8


def good(**changes: Any) -> dict[str, Any]:
    """Arguments of a call that is right, but for the changes."""
    gen = torch.Generator().manual_seed(0)
    arguments = {
        "q": torch.randn(TOKENS, HEADS, DIM, generator=gen).half(),
        "k": torch.randn(TOKENS, KV_HEADS, DIM, generator=gen).half(),
        "cos": torch.randn(ROWS, DIM // 2, generator=gen),
        "sin": torch.randn(ROWS, DIM // 2, generator=gen),
        "positions": torch.tensor([7, 0, 3, 3, 1]),
    }
    arguments = {n: t.to(HOME) for n, t in arguments.items()}
    return {**arguments, "interleaved": False, **changes}


def like(*shape: int, dtype: str = "float16", device: str = HOME) -> torch.Tensor:
    return torch.zeros(shape, dtype=getattr(torch, dtype), device=device)


def tables(*shape: int, dtype: str = "float32") -> dict[str, torch.Tensor]:
    return {name: like(*shape, dtype=dtype) for name in ("cos", "sin")}


def at(*rows: int) -> torch.Tensor:
    return torch.tensor(rows, device=HOME)


META = {n: t.to("meta") if torch.is_tensor(t) else t for n, t in good().items()}
# Heads of one token that share memory, and tokens that overlap by a head.
SAME_HEADS = like(TOKENS, 1, DIM).expand(-1, HEADS, -1)
OVERLAP = like((TOKENS + 1) * DIM).as_strided((TOKENS, KV_HEADS, DIM), (DIM, DIM, 1))
NARROW = {"q": like(TOKENS, HEADS, DIM - 1), "k": like(TOKENS, KV_HEADS, DIM - 1)}

WRONG: dict[str, tuple[type[Exception], str, dict[str, Any]]] = {
    # what: error, argument named first, changes
    "no tensor": (TypeError, "q", {"q": [1.0]}),
    "two axes": (ValueError, "q.shape", {"q": like(TOKENS, DIM)}),
    "integers": (TypeError, "q.dtype", {"q": like(TOKENS, HEADS, DIM, dtype="int32")}),
    "two dtypes": (TypeError, "k.dtype", {"k": like(TOKENS, KV_HEADS, DIM, dtype="bfloat16")}),
    "two lengths": (ValueError, "k.shape", {"k": like(TOKENS + 1, KV_HEADS, DIM)}),
    "two widths": (ValueError, "k.shape", {"k": like(TOKENS, KV_HEADS, DIM - 2)}),
    "k elsewhere": (ValueError, "k.device", {"k": like(TOKENS, KV_HEADS, DIM, device="meta")}),
    "heads no multiple": (ValueError, "num_heads", {"k": like(TOKENS, 3, DIM)}),
    "no kv heads": (ValueError, "num_heads", {"k": like(TOKENS, 0, DIM)}),
    "rotary_dim > head_dim": (ValueError, "rotary_dim", tables(ROWS, DIM // 2 + 1)),
    "rotary_dim > odd head_dim": (ValueError, "rotary_dim", NARROW),
    "rotary_dim 0": (ValueError, "rotary_dim", tables(ROWS, 0)),
    "table with heads": (ValueError, "cos.shape", tables(ROWS, 1, DIM // 2)),
    "table float64": (TypeError, "cos.dtype", tables(ROWS, DIM // 2, dtype="float64")),
    "sin of other rows": (ValueError, "sin.shape", {"sin": tables(ROWS - 1, DIM // 2)["sin"]}),
    "sin of another dtype": (TypeError, "sin.dtype", {"sin": like(ROWS, DIM // 2)}),
    "sin elsewhere": (ValueError, "sin.device", {"sin": tables(ROWS, DIM // 2)["sin"].to("meta")}),
    "a position too few": (ValueError, "positions.shape", {"positions": at(0, 1, 2, 3)}),
    "positions in a row": (ValueError, "positions.shape", {"positions": at(0, 1, 2, 3, 4)[None]}),
    "positions float32": (TypeError, "positions.dtype", {"positions": at(0, 1, 2, 3, 4).float()}),
    "positions int16": (TypeError, "positions.dtype", {"positions": at(0, 1, 2, 3, 4).short()}),
    "position -1": (IndexError, "positions", {"positions": at(0, 1, -1, 2, 3), "validate": True}),
    "last + 1": (IndexError, "positions", {"positions": at(0, 1, ROWS, 2, 3), "validate": True}),
    "out_dtype": (TypeError, "out_dtype", {"out_dtype": torch.bfloat16}),
    "two outputs": (ValueError, "out_dtype", {"inplace": True, "out_dtype": torch.float32}),
    "interleaved": (TypeError, "interleaved", {"interleaved": "neox"}),
    "inplace": (TypeError, "inplace", {"inplace": 1}),
    "heads share memory": (ValueError, "q.stride()", {"q": SAME_HEADS, "inplace": True}),
    "tokens overlap": (ValueError, "k.stride()", {"k": OVERLAP, "inplace": True}),
}


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Programs of every launch of the bundled kernel, whose memory of earlier calls is empty."""
    found: list[int] = []
    real = triton_rope.launcher

    def watched(kernel: Any, device: Any, programs: int, *rest: Any) -> Callable[..., None]:
        launch = real(kernel, device, programs, *rest)

        def noted(*tensors: torch.Tensor) -> None:
            found.append(programs)
            launch(*tensors)

        return noted

    monkeypatch.setattr(triton_rope, "launcher", watched)
    monkeypatch.setattr(triton_rope, "_PLANS", {})
    return found


@ROPES
@pytest.mark.parametrize("what", WRONG)
def test_is_refused(rope: Callable[..., Any], what: str, launches: list[int]) -> None:
    error, argument, changes = WRONG[what]
    with pytest.raises(error) as raised:
        rope(**good(**changes))
    assert WORDING.match(str(raised.value)), raised.value
    assert str(raised.value).startswith(argument), raised.value
    assert not launches


@ROPES
def test_overlapping_outputs_are_refused(rope: Callable[..., Any]) -> None:
    q = like(TOKENS, HEADS, DIM)
    for k in (q, q[:, :KV_HEADS], q[:, 2:]):
        with pytest.raises(ValueError, match=r"^q and k: expected"):
            rope(**good(q=q, k=k, inplace=True))


@ROPES
def test_overlap_away_from_the_ends_is_seen(rope: Callable[..., Any]) -> None:
    """Tokens of q start at 0, 6, 12, 18, those of k at 2, 6, 10, 14: two start at 6."""
    buffer = like(64)
    rest = {**tables(ROWS, 1), "positions": at(0, 1, 2, 3), "inplace": True}
    q = buffer.as_strided((4, 1, 2), (6, 2, 1))
    k, apart = (buffer.as_strided((4, 1, 2), (step, 2, 1), 2) for step in (4, 6))
    with pytest.raises(ValueError, match=r"^q and k: expected"):
        rope(**good(q=q, k=k, **rest))
    rope(**good(q=q, k=apart, **rest))


@pytest.mark.parametrize("name", ["q", "k", "cos", "sin"])
def test_recording_a_gradient_is_refused(name: str) -> None:
    changed = {name: good()[name].requires_grad_()}
    triton_rope.rope(**good())  # what an earlier call left behind lets nothing through
    with pytest.raises(ValueError, match=r"^requires_grad: expected"):
        triton_rope.rope(**good(**changed))
    with torch.no_grad():
        triton_rope.rope(**good(**changed))


def test_a_pending_minus_sign_is_refused() -> None:
    """The imaginary part of a conjugate is memory whose sign is still to be turned."""
    turns = torch.polar(torch.ones(ROWS, DIM // 2, device=HOME), good()["cos"]).conj()
    assert turns.imag.is_neg()
    with pytest.raises(ValueError, match=r"^is_neg"):
        triton_rope.rope(**good(cos=turns.real, sin=turns.imag))
    triton_rope.rope(**good(cos=turns.real, sin=turns.imag.resolve_neg()))


@pytest.mark.parametrize("what", ["interleaved", "inplace"])
def test_one_is_not_true_after_true_either(what: str) -> None:
    triton_rope.rope(**good(**{what: True}))
    for wrong in (1, [], "neox"):
        with pytest.raises(TypeError, match=rf"^{what}: expected"):
            triton_rope.rope(**good(**{what: wrong}))


def test_tensors_without_memory_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^device: expected"):
        triton_rope.rope(**META)


@ROPES
def test_the_call_that_the_cases_spoil_is_accepted(rope: Callable[..., Any]) -> None:
    arguments = good()
    q, k = rope(**arguments)
    assert (q.shape, k.dtype) == (arguments["q"].shape, torch.float16)


@ROPES
def test_in_place_returns_its_arguments_and_counts_a_version(rope: Callable[..., Any]) -> None:
    arguments = good(inplace=True)
    before = arguments["q"]._version
    q, k = rope(**arguments)
    assert q is arguments["q"]
    assert k is arguments["k"]
    assert q._version > before


@ROPES
def test_interleaved_views_of_one_storage_may_be_rotated_in_place(rope: Callable[..., Any]) -> None:
    arguments = good()
    expected = rope(**arguments)
    packed = like(TOKENS, HEADS + 2 * KV_HEADS, DIM)
    q, k = packed[:, :HEADS], packed[:, HEADS : HEADS + KV_HEADS]
    q.copy_(arguments["q"])
    k.copy_(arguments["k"])
    rope(**{**arguments, "q": q, "k": k, "inplace": True})
    assert torch.equal(q, expected[0])
    assert torch.equal(k, expected[1])
    assert not packed[:, HEADS + KV_HEADS :].any()


@ROPES
def test_an_expanded_input_may_be_rotated_out_of_place(rope: Callable[..., Any]) -> None:
    one = good()["q"][:, :1]
    q, _ = rope(**good(q=one.expand(-1, HEADS, -1)))
    for_each, _ = rope(**good(q=one.repeat(1, HEADS, 1)))
    assert torch.equal(q, for_each)


@ROPES
def test_no_tokens_need_no_program(rope: Callable[..., Any], launches: list[int]) -> None:
    empty = {"q": like(0, HEADS, DIM), "k": like(0, KV_HEADS, DIM)}
    q, k = rope(**good(**empty, positions=like(0, dtype="int32")))
    assert (q.shape, k.shape) == ((0, HEADS, DIM), (0, KV_HEADS, DIM))
    assert not any(launches)


def test_unchecked_positions_read_nothing_and_rotate_nothing(launches: list[int]) -> None:
    """Far outside the table; on the CPU the plan is told that its positions lie on a GPU."""
    triton_rope.rope(**good())
    ((key, plan),) = triton_rope._PLANS.items()
    triton_rope._PLANS[key] = plan._replace(on_cpu=False)
    arguments = good(positions=at(2**62, -1, ROWS, 1, -(2**63)))
    q, _ = triton_rope.rope(**arguments)
    assert len(launches) == 2
    outside = [0, 1, 2, 4]
    assert torch.equal(q[outside], arguments["q"][outside])
    assert not torch.equal(q[3], arguments["q"][3])


def test_checks_read_no_element() -> None:
    check_rope(**META)
