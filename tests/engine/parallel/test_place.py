"""Where workers run: one a GPU, or the cores of a CPU divided among them."""

from __future__ import annotations

import pytest
import torch

from sharegen.engine.config import EngineConfig
from sharegen.engine.parallel import place, rank_zero
from sharegen.engine.parallel.messages import Setting
from sharegen.engine.parallel.place import places, room
from sharegen.errors import UsageError


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "resolve_device", lambda name: torch.device(name))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(place, "available_cores", lambda: 16)


def setting(device: str, ranks: int = 1) -> Setting:
    return Setting("model", None, EngineConfig(), device=device, ranks=ranks)


@pytest.mark.usefixtures("two_gpus")
def test_a_gpu_each() -> None:
    found = places(setting("cuda"), 2)
    assert [(one.device, one.threads) for one in found] == [("cuda:0", 8), ("cuda:1", 8)]
    assert places(setting("cuda:1"), 1) == [setting("cuda:1")]


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("device", "count", "why"),
    [
        ("cuda", 3, "3 workers are too many: there are 2 GPUs"),
        ("cuda:1", 2, "cuda:1 is one GPU, and 2 workers take one each"),
        ("cuda", 0, "there must be at least 1"),
        ("cpu", 17, "17 workers are too many: this machine has 16 cores"),
    ],
)
def test_workers_without_a_place(device: str, count: int, why: str) -> None:
    with pytest.raises(UsageError, match=why) as raised:
        places(setting(device), count)
    assert raised.value.exit_code == 2


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("device", "ranks", "count"),
    [("cuda", 1, 2), ("cuda", 2, 1), ("cuda", 4, 1), ("cpu", 1, None), ("cpu", 4, 4)],
)
def test_room_for_workers(device: str, ranks: int, count: int | None) -> None:
    assert room(torch.device(device), ranks) == count


@pytest.mark.usefixtures("two_gpus")
def test_cores_and_memory_are_divided() -> None:
    alone, both = places(setting("cpu"), 1), places(setting("cpu"), 2)
    assert [one.threads for one in (*alone, *both)] == [16, 8, 8]
    limits = [one.config.kv_cache_limit for one in (*alone, *both)]
    assert limits[1] == limits[2] == (limits[0] or 0) // 2
    [four] = places(setting("cpu", ranks=4), 1)
    assert four.threads == 16 and four.config.kv_cache_limit == (limits[0] or 0) // 4


@pytest.mark.usefixtures("two_gpus")
def test_a_gpu_for_each_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    [one] = places(setting("cuda", ranks=2), 1)
    monkeypatch.setattr(rank_zero, "resolve_device", torch.device)
    assert rank_zero.devices_of(one) == ["cuda:0", "cuda:1"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 6)
    devices = [rank_zero.devices_of(worker) for worker in places(setting("cuda", ranks=2), 3)]
    assert devices == [["cuda:0", "cuda:1"], ["cuda:2", "cuda:3"], ["cuda:4", "cuda:5"]]
    assert rank_zero.devices_of(setting("cpu", ranks=3)) == ["cpu"] * 3


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("device", "ranks", "count", "why"),
    [
        ("cuda", 4, 1, "4 ranks are too many: there are 2 GPUs"),
        ("cuda", 2, 2, "2 workers of 2 ranks are too many: there are 2 GPUs"),
        ("cuda:0", 2, 1, "cuda:0 is one GPU, and 2 ranks take one each"),
        ("cuda", 0, 1, "a tensor parallel size of 0: it must be at least 1"),
    ],
)
def test_ranks_without_a_place(device: str, ranks: int, count: int, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        places(setting(device, ranks), count)
