"""What an implementation promises about its roundings: named stages and constants.

An arithmetic is data. `rope`, say, has the stages `table`, `product` and `sum`; their values name
the format that the stage is rounded to. The contract lists its stages with the value that an
unknown kernel is granted (an honest float32 kernel, any order); a budget is derived from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


class Arithmetic(Mapping[str, Any]):
    """A frozen mapping stage -> value, written as keywords: `Arithmetic(product="float32")`."""

    def __init__(self, **stages: Any) -> None:
        self._stages = dict(stages)

    def __getitem__(self, stage: str) -> Any:
        return self._stages[stage]

    def __iter__(self) -> Iterator[str]:
        return iter(self._stages)

    def __len__(self) -> int:
        return len(self._stages)

    def __hash__(self) -> int:
        return hash(tuple(sorted(self._stages.items(), key=lambda item: item[0])))

    def __repr__(self) -> str:
        return f"Arithmetic({', '.join(f'{k}={v!r}' for k, v in self._stages.items())})"

    def over(self, defaults: Mapping[str, Any]) -> Arithmetic:
        """The defaults with these stages put over them. Unknown stages raise ValueError."""
        unknown = set(self) - set(defaults)
        if unknown:
            names = ", ".join(sorted(unknown))
            raise ValueError(f"unknown arithmetic stage {names}; known: {', '.join(defaults)}")
        return Arithmetic(**{**defaults, **self})


class Ulps(float):
    """A stage's accuracy in float32 ulps, the rounding included, that names whose it is.

    `Ulps(2.5, "exp2")`: the stage takes exactly these functions of Triton's, on float32. A record
    of the device may replace the number of a named constant (tightrope.record), never a plain one;
    `record` is then its id.
    """

    functions: tuple[str, ...]
    record: str

    def __new__(cls, ulps: float, *functions: str, record: str = "") -> Ulps:
        made = super().__new__(cls, ulps)
        made.functions, made.record = functions, record
        return made


EXP2, LOG2, SIN_COS = Ulps(2.5, "exp2"), Ulps(1.0, "log2"), Ulps(2.5, "sin", "cos")


@dataclass(frozen=True)
class Device:
    """Where kernels run: `kind` is "cuda" or "cpu"; `capability` is (major, minor) or None."""

    kind: str = "cpu"
    name: str = "cpu"
    capability: tuple[int, int] | None = None
    interpreted: bool = False
