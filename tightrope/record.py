"""The record of a device (`tightrope audit device`) as the source of a budget's constants.

A constant of an arithmetic that names functions of Triton's (tightrope.arithmetic.Ulps) may be
replaced by what the record of this run's device proves of them, where that is smaller. Proved
means: no float32 argument exceeds it where argument and result are normal numbers; division, which
is only searched, and what was sampled, as on the interpreter, prove nothing, and a plain number is
never replaced, nor what a stranger is granted. A function is compiled alike in the record's kernel
and in others as long as Triton is the same. Every budget so made says the record's id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tightrope.arithmetic import Arithmetic, Device, Ulps

LOWEST = 0.5  # ulps: what one rounding to nearest takes
VERSIONS = ("torch", "triton")


@dataclass(frozen=True)
class Record:
    """device: its name, capability "9.0" or None; with the versions of VERSIONS, what it is of.

    constants: stage -> ulps. functions: stage -> names of the functions that they are proved of.
    """

    id: str
    of: Mapping[str, Any]
    constants: Mapping[str, float]
    functions: Mapping[str, tuple[str, ...]]

    def __str__(self) -> str:
        told = ", ".join(f"{stage} {ulps:.6g}" for stage, ulps in self.constants.items())
        return f"record {self.id} of {self.of['name']}: {told or 'proves no constant'}"

    def replaced(self, stage: str, value: Any) -> Any:
        """A stage's value, or what is proved of the functions that it names, if that is smaller."""
        known = isinstance(value, Ulps) and value.functions == self.functions.get(stage)
        if not known or stage not in self.constants or value <= self.constants[stage]:
            return value
        return Ulps(self.constants[stage], *value.functions, record=self.id)


_in_use: Record | None = None


def read(path: str) -> Record:
    """A record from its file. Raises OSError, ValueError for what is none or was changed."""
    from tightrope import audit_device

    found = audit_device.read(path)
    try:
        of = {"name": found["device"]["name"], "capability": found["device"].get("capability")}
        of |= {name: found["packages"][name] for name in VERSIONS}
        constants = audit_device.constants(found)
        wrong = {stage: u for stage, u in constants.items() if not LOWEST <= u < 2.0**20}
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no record of a device: {error!r}") from error
    if wrong:
        raise ValueError(f"{path}: expected ulps of at least {LOWEST}, got {wrong}")
    return Record(found["id"], of, constants, audit_device.STAGES)


def use(record: Record | None, device: Device) -> None:
    """Make budgets of its constants from now on; None: of the named ones.

    Raises ValueError for a record of another device or of other versions than this process's.
    """
    global _in_use
    _in_use = None
    if record is None:
        return
    from tightrope.environment import installed

    capability = ".".join(map(str, device.capability)) if device.capability else None
    here = {"name": device.name, "capability": capability, **{n: installed(n) for n in VERSIONS}}
    for what, expected in record.of.items():
        if here[what] != expected:
            raise ValueError(
                f"record {record.id} is of one device and its versions; {what}: expected "
                f"{expected!r} as in the record, got {here[what]!r}"
            )
    _in_use = record


def over(arithmetic: Arithmetic, device: Device) -> Arithmetic:
    """An arithmetic with the constants of the record in use put over its named ones."""
    if _in_use is None or device.name != _in_use.of["name"]:
        return arithmetic
    return Arithmetic(**{stage: _in_use.replaced(stage, v) for stage, v in arithmetic.items()})


def used(arithmetic: Mapping[str, Any]) -> str:
    """Id of the record that one of its constants is taken from; empty for none."""
    return next((v.record for v in arithmetic.values() if isinstance(v, Ulps) and v.record), "")


def of_report(report: Mapping[str, Any]) -> str | None:
    """Id of the record that a run's budgets were made under, None for none."""
    found: str | None = report.get("run", {}).get("record")
    return found
