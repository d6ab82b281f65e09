"""What bits depend on: written down, and compared."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sharegen.job import arithmetic
from sharegen.job.arithmetic import changed, kernels_version


def test_a_cpu_has_nothing_to_write_down() -> None:
    assert arithmetic.arithmetic(torch.device("cpu")) == {}


def test_the_kernels_version_is_of_their_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = kernels_version()
    assert first == kernels_version() and len(first) == 12
    (tmp_path / "other.py").write_text("x = 1\n")
    monkeypatch.setattr(arithmetic, "KERNELS", tmp_path)
    other = kernels_version()
    (tmp_path / "other.py").write_text("x = 2\n")
    assert len({first, other, kernels_version()}) == 3


def test_what_differs_is_named() -> None:
    before = {"card": "NVIDIA H200", "torch": "2.11.0", "python": "3.11"}
    assert changed(before, before | {"python": "3.12", "driver": "580"}) is None
    now = before | {"card": "NVIDIA H100", "torch": "2.12.0"}
    assert changed(before, now) == "card NVIDIA H200, now NVIDIA H100; torch 2.11.0, now 2.12.0"
    assert changed({}, now) is None
