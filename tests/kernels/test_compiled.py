"""The kernels compile for a GPU, which the interpreter does not show."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sharegen.kernels.tiles import HOPPER_SHARED_MEMORY
from tests.kernels.compiled import CASES


@pytest.mark.parametrize("case", CASES)
@pytest.mark.slow
@pytest.mark.turn(7)
def test_kernels_compile_for_hopper(case: str, tmp_path: Path) -> None:
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.compiled", case],
        env=environment, capture_output=True, text=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    sizes = [int(line.split()[1]) for line in done.stdout.splitlines()]
    assert sizes and max(sizes) <= HOPPER_SHARED_MEMORY
