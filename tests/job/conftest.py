from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sharegen.job.run_job import run_job
from tests.job.parts import ROWS, configure, records
from tests.tiny import save_tiny_model


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    save_tiny_model(folder / "model", context=512)
    rows, examples = ROWS[2:], ROWS[:2]
    for name, values in (("rows", rows), ("examples", examples)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in values))
    return folder


@pytest.fixture(scope="session")
def whole(folder: Path) -> dict[tuple[str, int | None], dict[str, Any]]:
    path = folder / "whole.jsonl"
    run_job(configure(folder), path)
    return records(path)
