"""What there is to measure on: cards, versions, and the commit of the clone."""

from __future__ import annotations

import csv
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.measurement import Card, Versions
from sharegen.common.cores import available_cores
from sharegen.errors import UsageError
from sharegen.version import __version__

ROOT = Path(__file__).parents[2]
_MEASURED = ("sharegen", "kernels", "benchmarks/shapes", "recipes")
"""Folders whose changes make another program of a commit."""


@dataclass(frozen=True)
class Gpu:
    """One card, as its driver tells it."""

    name: str
    uuid: str
    gib: float
    watts: float | None
    driver: str


@dataclass(frozen=True)
class Machine:
    """gpus: those that programs see. cuda: that torch was built with; None without GPUs."""

    gpus: tuple[Gpu, ...]
    cpu: str
    commit: str
    cuda: str | None

    def card(self, gpus: int) -> Card:
        """The first so many GPUs, or the CPU."""
        if not gpus:
            return Card(kind="cpu", name=self.cpu, power_limit_watts=None)
        used = self.gpus[:gpus]
        uuids = tuple(gpu.uuid for gpu in used)
        name, watts = used[0].name, used[0].watts
        return Card(kind="gpu", name=name, count=gpus, power_limit_watts=watts, uuids=uuids)

    def versions(self, gpus: int) -> Versions:
        packages = {name: _version(name) for name in ("torch", "triton", "transformers")}
        driver, cuda = (self.gpus[0].driver, self.cuda) if gpus else (None, None)
        return Versions(sharegen=__version__, driver=driver, cuda=cuda, **packages)


def find_machine(commit: str | None) -> Machine:
    """This machine. commit: of the code, where there is no clone to ask. Raises UsageError."""
    gpus = tuple(visible(list(_gpus()), os.environ.get("CUDA_VISIBLE_DEVICES")))
    code = "import torch; print(torch.version.cuda or '')"
    cuda = _said(sys.executable, "-c", code) if gpus else ""
    return Machine(gpus, _cpu(), commit or _commit(), cuda or None)


def _gpus() -> Iterator[Gpu]:
    fields = "name,uuid,memory.total,power.limit,driver_version"
    said = _said("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits")
    for cells in csv.reader(said.splitlines(), skipinitialspace=True):
        name, uuid, mib, watts, driver = cells
        limit = float(watts) if re.fullmatch(r"[\d.]+", watts) else None
        yield Gpu(name, uuid, float(mib) / 1024, limit, driver)


def visible(gpus: list[Gpu], named: str | None) -> Iterator[Gpu]:
    """Those that CUDA_VISIBLE_DEVICES names, by number or by id; all where it is not set."""
    if named is None:
        yield from gpus
        return
    for each in filter(None, (part.strip() for part in named.split(","))):
        number = int(each) if each.isdigit() else -1
        found = [gpu for i, gpu in enumerate(gpus) if i == number or gpu.uuid.startswith(each)]
        if not found:
            return  # CUDA, too, sees nothing from the first wrong name on
        yield found[0]


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name}, {available_cores()} cores"


def _commit() -> str:
    commit = _said("git", "-C", str(ROOT), "rev-parse", "--short=7", "HEAD")
    if not commit:
        raise UsageError("this is no clone with its history: give --commit, the code's own")
    folders = [str(ROOT / name) for name in _MEASURED]
    changes = _said("git", "-C", str(ROOT), "status", "--porcelain", "--", *folders)
    return f"{commit}+changes" if changes else commit


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _said(*command: str) -> str:
    """What a program prints; nothing where it is not there or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()
