"""Reads SASS of sm_90: do the operands that wgmma takes from shared memory lie at addresses?

`HGMMA ... gdesc[UR8]` takes descriptors of matrices from the uniform registers UR8 to UR11, the
second matrix's last. The upper word of each, strides and swizzle, is a constant; the lower one is
an address, which may depend on an argument where tiles lie in a ring. So only upper words tell:
ptxas 12.8 makes some of an argument, so that products of all but the first 16 features are those of
other memory (docs/findings.md). One walks back from each upper word, and names arguments it meets.

`python tests/sass_descriptors.py FOLDER` reads all that a Triton cache holds.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import triton

ARGUMENTS = 0x210  # where they begin in constant bank 0 of sm_90
_LINE = re.compile(r"/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)\s*([^;]*);")
_REGISTER = re.compile(r"\bUR(\d+)\b")
_CONSTANT = re.compile(r"c\[0x0\]\[0x([0-9a-f]+)\]")
_WIDE = (".64", ".WIDE")


def _parsed(sass: str) -> list[tuple[str, str]]:
    return [(m[1], m[2]) for m in _LINE.finditer(sass)]


def _written(opcode: str, operands: str) -> range:
    """Numbers of the uniform registers that an instruction writes."""
    first = operands.split(",")[0].strip()
    if not re.fullmatch(r"UR\d+", first):
        return range(0)
    number = int(first[2:])
    return range(number, number + (2 if any(w in opcode for w in _WIDE) else 1))


def _read(opcode: str, operands: str, upper: bool) -> Iterator[int]:
    """Registers that the result is made of; upper: the second one's of two, but for a carry."""
    _, _, rest = operands.partition(",")
    for match in _REGISTER.finditer(rest):
        yield int(match[1]) + (".64" in opcode and upper)


def _arguments(code: list[tuple[str, str]], at: int, register: int, seen: set[int]) -> set[int]:
    """Offsets of kernel arguments that `register` is made of before instruction `at`."""
    for i in range(at - 1, -1, -1):
        opcode, operands = code[i]
        written = _written(opcode, operands)
        if register in written:
            break
    else:
        return set()
    if i in seen:
        return set()
    seen.add(i)
    found = {int(m[1], 16) for m in _CONSTANT.finditer(operands)}
    found = {offset for offset in found if offset >= ARGUMENTS}
    for source in _read(opcode, operands, register > written[0]):
        found |= _arguments(code, i, source, seen)
    return found


def arguments_in_descriptors(sass: str) -> list[str]:
    """One line for each matrix product whose descriptors are made of kernel arguments."""
    code, found = _parsed(sass), []
    for i, (opcode, operands) in enumerate(code):
        descriptor = re.search(r"gdesc\[UR(\d+)\]", operands)
        if not opcode.startswith("HGMMA") or descriptor is None:
            continue
        first = int(descriptor[1])
        # With the first matrix in registers, only the second one's descriptor counts.
        of_both = re.match(r"R\d+, gdesc", operands) is not None
        registers = (first + 1, first + 3) if of_both else (first + 3,)
        arguments = {a for r in registers for a in _arguments(code, i, r, set())}
        if arguments:
            places = ", ".join(f"c[0x0][{a:#x}]" for a in sorted(arguments))
            found.append(f"{opcode} {operands.strip()} takes its operands from {places}")
    return found


def disassembled(cubin: Path) -> str:
    """The SASS of a cubin, by the nvdisasm that comes with Triton."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm"
    run = subprocess.run([tool, "-c", cubin], capture_output=True, text=True, check=True)
    return run.stdout


def main(folder: str) -> int:
    """Read every cubin of a Triton cache; 1 if some descriptor is made of an argument."""
    cubins = sorted(Path(folder).rglob("*.cubin"))
    wrong = {c: found for c in cubins if (found := arguments_in_descriptors(disassembled(c)))}
    for cubin, found in wrong.items():
        print(cubin, *found, sep="\n  ")
    print(f"{len(wrong)} of {len(cubins)} cubins are wrong")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
