"""Around a launch: what the launcher passes on and refuses; layouts that may be written to."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tightrope.device import current

current()  # before Triton is imported

from tightrope.launch import launcher  # noqa: E402
from tightrope.validate import distinct_addresses  # noqa: E402


class Parameter:
    def __init__(self, name: str, constant: bool = False, free: bool = True) -> None:
        self.name, self.is_constexpr, self.do_not_specialize = name, constant, free


class Jitted:
    """What `launcher` relies on of a Triton kernel."""

    __name__ = "jitted"

    def __init__(self, *params: Parameter) -> None:
        self.params, self.calls = params, list[Any]()

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def first(*args: Any, **options: Any) -> Any:
            self.calls.append(("jit", grid, args, options))
            return {grid: lambda *bare: self.calls.append(("compiled", grid, bare))}

        return first


def test_later_launches_pass_addresses_numbers_and_constants_in_order() -> None:
    kernel = Jitted(Parameter("x"), Parameter("n"), Parameter("BLOCK", constant=True))
    x, y = torch.zeros(4), torch.zeros(4)
    launch = launcher(kernel, torch.device("cpu"), 3, (7,), {"BLOCK": 16}, 2)
    launch(x)
    launch(y)
    options = {"num_warps": 2, "enable_fp_fusion": False}
    assert kernel.calls[0] == ("jit", (3, 1, 1), (x, 7, 16), options)
    assert kernel.calls[1:] == [("compiled", (3, 1, 1), (y.data_ptr(), 7, 16))]
    launcher(kernel, torch.device("cpu"), 0, (7,), {"BLOCK": 16}, 2)(x)
    assert len(kernel.calls) == 2


def test_a_kernel_that_specializes_is_refused() -> None:
    kernel = Jitted(Parameter("x"), Parameter("n", free=False))
    with pytest.raises(TypeError, match=r"^jitted's n: expected do_not_specialize"):
        launcher(kernel, torch.device("cpu"), 1, (7,), {}, 2)


@pytest.mark.parametrize(
    ("shape", "stride", "distinct"),
    [
        ((3, 4), (4, 1), True), ((3, 4), (1, 3), True), ((3, 4), (0, 1), False),
        ((1, 4), (0, 1), True), ((3, 4), (3, 1), False), ((3, 0), (0, 0), True),
        ((2, 3, 4), (4, 8, 1), True),
    ],
)  # fmt: skip
def test_distinct_addresses(
    shape: tuple[int, ...], stride: tuple[int, ...], distinct: bool
) -> None:
    assert distinct_addresses(shape, stride) is distinct
    numbers = torch.arange(100).as_strided(shape, stride).flatten().tolist()
    assert (len(set(numbers)) == len(numbers)) is distinct
