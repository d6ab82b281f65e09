"""Opening an engine: in this process or apart, and what is refused before anything is loaded."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sharegen.engine.config import EngineConfig
from sharegen.engine.engine import Engine
from sharegen.engine.model.load import load_model
from sharegen.engine.parallel.messages import Setting
from sharegen.engine.parallel.opening import open_engine
from sharegen.errors import UsageError
from tests.tiny import save_tiny_model

CONFIG = EngineConfig(max_sequences=4, kv_cache_memory=1 << 20, block_size=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"), context=64)


def test_a_folder_a_loaded_model_and_what_makes_one_are_opened_alike(folder: Path) -> None:
    setting = Setting(folder, None, CONFIG, device="cpu")

    def make(device: Any) -> Any:
        return load_model(folder, device=device)

    found = set()
    for each in (
        setting,
        replace(setting, model=load_model(folder, device="cpu")),
        replace(setting, model="a name", load=make),
    ):
        with closing(open_engine(each)) as engine:
            assert isinstance(engine, Engine)
            found.add(engine.model.fingerprint)
    assert len(found) == 1


@pytest.mark.parametrize("workers", [True, "2", 1.0])
def test_workers_are_a_whole_number(workers: Any) -> None:
    with pytest.raises(UsageError, match=r"workers is .*: it must be a whole number"):
        open_engine(Setting("model", None, CONFIG), workers)


@pytest.mark.parametrize(
    ("ranks", "workers", "apart", "ray", "who"),
    [
        (1, 2, False, None, "workers"),
        (2, 1, False, None, "ranks"),
        (1, 1, True, None, "workers"),
        (1, None, False, "auto", "workers"),
        (1, None, False, None, "workers"),
        (1, "auto", False, None, "workers"),
    ],
)
def test_other_processes_load_the_model_themselves(
    folder: Path, ranks: int, workers: Any, apart: bool, ray: str | None, who: str
) -> None:
    setting = Setting(load_model(folder, device="cpu"), None, CONFIG, device="cpu", ranks=ranks)
    with pytest.raises(UsageError, match=f"^{who} load the model themselves"):
        open_engine(setting, workers, apart=apart, ray=ray)
