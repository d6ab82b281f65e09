import errno
import os
import subprocess
import sys
from importlib import metadata
from types import SimpleNamespace

import pytest

from sharegen.common import cache_folder
from sharegen.engine.model.compile import kept_code
from sharegen.engine.model.compile.kept_code import keep_compiled_code

_SETTINGS = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cache_folder, "_LEAST_FREE", 1)
    for setting in _SETTINGS:  # set, so that it is set back, then removed
        monkeypatch.setenv(setting, "")
        monkeypatch.delenv(setting)
    return tmp_path


def test_what_is_compiled_lies_by_card_and_versions(home):
    folder = keep_compiled_code("NVIDIA H200 NVL/MIG 1g")
    assert folder.parent == home / "sharegen/compiled"
    assert metadata.version("torch").split("+")[0] in folder.name
    for setting, name in zip(_SETTINGS, ("inductor", "triton"), strict=True):
        assert os.environ[setting] == str(folder / name)
    assert keep_compiled_code("another card") != folder


def test_another_torch_has_another_folder(monkeypatch):
    folder = keep_compiled_code("a card")
    monkeypatch.setattr(metadata, "version", lambda package: "9.9.9")
    assert keep_compiled_code("a card") != folder


def test_a_user_s_own_settings_stay(monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", "/mine")
    folder = keep_compiled_code("a card")
    assert os.environ["TRITON_CACHE_DIR"] == "/mine"
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(folder / "inductor")


def test_a_place_from_which_no_code_runs_or_without_locks_is_no_cache(monkeypatch):
    blocks = dict.fromkeys(("f_frsize", "f_blocks", "f_bfree", "f_bavail"), 4096)
    mounted = SimpleNamespace(f_flag=8, **blocks)
    with monkeypatch.context() as patch:
        patch.setattr(kept_code.os, "statvfs", lambda place: mounted)
        patch.setattr(os, "ST_NOEXEC", 8, raising=False)
        assert keep_compiled_code("a card") is None

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    with monkeypatch.context() as patch:
        patch.setattr(kept_code.fcntl, "flock", refuse)
        assert keep_compiled_code("a card") is None
    assert not any(setting in os.environ for setting in _SETTINGS)
    assert keep_compiled_code("a card") is not None


@pytest.mark.slow
def test_what_torch_has_set_is_no_setting_of_the_user(monkeypatch):
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", default_cache_dir())
    folder = keep_compiled_code("a card")
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(folder / "inductor")


def test_where_nothing_can_be_kept_all_is_as_torch_has_it(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc")
    assert keep_compiled_code("a card") is None
    assert not any(setting in os.environ for setting in _SETTINGS)


_COMPILES = """
import sys
import torch
from torch._dynamo.utils import counters
from sharegen.common import cache_folder
from sharegen.engine.model.compile.kept_code import keep_compiled_code

cache_folder._LEAST_FREE = 1
assert keep_compiled_code("cpu") is not None

def model(x):
    return (x.sin() * 2).cos()


x = torch.arange(64.0)
torch.testing.assert_close(torch.compile(model, dynamic=True)(x), model(x))
print(counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"])
"""


def _begin(program=_COMPILES):
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)


def _found(process) -> str:
    said, _ = process.communicate(timeout=250)
    assert process.returncode == 0
    return said.strip()


def _compile(program=_COMPILES) -> str:
    return _found(_begin(program))


@pytest.mark.slow
@pytest.mark.turn(6)
def test_a_second_process_finds_it_and_what_is_damaged_is_compiled_again(home):
    assert _compile() == "0 1"
    assert _compile() == "1 0"
    damaged = 0
    for place, _, names in os.walk(home / "sharegen/compiled"):
        for name in names:
            with open(os.path.join(place, name), "r+b") as file:
                file.truncate(os.path.getsize(file.name) // 2)
                damaged += 1
    assert damaged
    assert _compile() == "0 1"


@pytest.mark.slow
@pytest.mark.turn(6)
def test_two_first_starts_at_once_both_work_and_a_model_that_changed_is_compiled_anew(home):
    for process in [_begin(), _begin()]:
        assert _found(process) in ("0 1", "1 0")
    assert _compile() == "1 0"
    assert _compile(_COMPILES.replace("x.sin() * 2", "x.sin() * 3")) == "0 1"
