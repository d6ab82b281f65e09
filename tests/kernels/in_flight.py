"""Looks for registers that are written while a product of the matrix unit may still read them.

A product of Hopper's matrix unit (HGMMA) takes its first factor from registers, if that is where it
is, some time after it was begun. Until its wait (WARPGROUP.DEPBAR) they must stay as they are.
Triton lets the last product of a loop run on into the next turn, and neither it nor ptxas keeps
those registers (seen with Triton 3.6 and 3.7.1 and their ptxas).
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import triton

_PRODUCT = re.compile(r"HGMMA\S* R\d+, R(\d+), gdesc")
_WAIT = re.compile(r"WARPGROUP\.DEPBAR\S* gsb0, 0x([0-9a-f]+)")
_BRANCH = re.compile(r"\bBRA(?:\.\S+)? (?:\S+, )?`\((\S+)\)")
_WRITTEN = re.compile(r"(?:@!?U?P\w+ )?([A-Z][\w.]*) R(\d+)\b")
_WRITE_NONE = ("ST", "LDGSTS", "RED", "BAR", "UBLKCP", "UTMA", "SYNCS", "HGMMA")
_FACTOR_REGISTERS = 4


def written_in_flight(cubin: bytes) -> list[str]:
    """The instructions in a loop that write what a product may still read."""
    return list(written_in_loops(_instructions(cubin)))


def written_in_loops(lines: Sequence[str]) -> Iterator[str]:
    """lines: instructions in the card's language, and labels."""
    places = {text: i for i, text in enumerate(lines) if text.startswith(".L")}
    for i, text in enumerate(lines):
        branch = _BRANCH.search(text)
        begin = places.get(branch[1], i) if branch else i
        if begin < i:
            yield from _of_turn(lines[begin:i])


def _of_turn(body: Sequence[str]) -> Iterator[str]:
    """A wait for all but some products is taken as for none."""
    busy: set[int] = set()
    for text in (*body, *body):
        product, wait = _PRODUCT.match(text), _WAIT.match(text)
        written = _WRITTEN.match(text)
        if wait and int(wait[1], 16) == 0:
            busy.clear()
        elif product:
            busy |= _from(int(product[1]), _FACTOR_REGISTERS)
        elif (
            written
            and not written[1].startswith(_WRITE_NONE)
            and busy & _from(int(written[2]), _width(written[1]))
        ):
            yield text


def _from(first: int, count: int) -> set[int]:
    return set(range(first, first + count))


def _width(operation: str) -> int:
    """How many registers an instruction writes."""
    if operation.startswith("LDSM"):
        return int(operation[-1])
    if operation.startswith("LD"):
        return 4 if ".128" in operation else 2 if ".64" in operation else 1
    return 2 if "WIDE" in operation else 1


def _instructions(cubin: bytes) -> list[str]:
    """The lines of a program in the card's language: labels, and instructions without address."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        command = [triton.knobs.nvidia.nvdisasm.path, "-c", str(path)]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = []
    for line in said.splitlines():
        found = re.match(r"(\.L\w+):|\s*/\*[0-9a-f]+\*/\s+(.*?)\s*;", line)
        if found:
            lines.append(found[1] or found[2])
    return lines
