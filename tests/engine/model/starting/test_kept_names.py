"""The names of transformers' models, read from its files once."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from sharegen.engine.model.starting import kept_names
from sharegen.engine.model.starting.kept_names import _as_bytes, _read, _stamp, _with_memory

_NAMES = {
    frozenset({"torch"}): {"llama.modeling_llama": {"LlamaModel", "LlamaForCausalLM"}},
    frozenset(): {"llama.configuration_llama": {"LlamaConfig"}},
}


@pytest.fixture
def models(tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "__init__.py").touch()
    return folder


def _finder(calls):
    def find(path, prefix=None):
        calls.append((path, prefix))
        start = "" if prefix is None else f"{prefix}."
        return {
            needs: {f"{start}{module}": set(own) for module, own in modules.items()}
            for needs, modules in _NAMES.items()
        }

    return find


def test_what_was_found_once_is_not_looked_for_again(models, tmp_path):
    calls, file = [], tmp_path / "names.json"
    first = _with_memory(_finder(calls), models, file)
    prefixed = first(models, prefix="models")
    assert not file.exists()
    assert first(str(models / "__init__.py")) == _NAMES
    later = _with_memory(_finder([]), models, file)
    assert later(models, prefix="models") == prefixed
    assert later(models / "__init__.py") == _NAMES
    assert len(calls) == 2


def test_every_answer_is_the_caller_s_own(models, tmp_path):
    find = _with_memory(_finder([]), models, tmp_path / "names.json")
    for _ in range(3):  # found, kept, read
        names = find(models)
        assert names == _NAMES
        names[frozenset()]["llama.configuration_llama"].clear()


def test_other_folders_are_not_remembered(models, tmp_path):
    calls, file = [], tmp_path / "names.json"
    find = _with_memory(_finder(calls), models, file)
    find(tmp_path / "quantizers")
    assert calls == [(tmp_path / "quantizers", None)] and not file.exists()


_KEPT = _as_bytes(_NAMES)


@pytest.mark.parametrize(
    "damaged",
    [
        b"", b"\xff\x00", b"{}", b"[]", b"3", _KEPT[:-3], _KEPT[1:], _KEPT.partition(b"\n")[2],
        _KEPT.replace(b"LlamaModel", b"LlamaModem"), bytes(len(_KEPT)),
    ],
)  # fmt: skip
def test_a_damaged_file_is_none_and_replaced(damaged, models, tmp_path):
    file = tmp_path / "names.json"
    file.write_bytes(damaged)
    calls = []
    assert _with_memory(_finder(calls), models, file)(models) == _NAMES
    assert calls == [(models, None)] and _read(file) == _NAMES


def test_two_starts_at_once_find_the_same_and_leave_a_whole_file(models, tmp_path):
    file, both = tmp_path / "names.json", threading.Barrier(2)

    def find(path, prefix=None):
        both.wait(60)  # neither has kept anything yet
        return _finder([])(path, prefix)

    with ThreadPoolExecutor() as starts:
        found = [starts.submit(_with_memory(find, models, file), models) for _ in range(2)]
    assert [each.result() for each in found] == [_NAMES, _NAMES]
    assert _read(file) == _NAMES and list(tmp_path.glob("*.json*")) == [file]


def test_names_that_cannot_be_kept_are_found_each_time(models, tmp_path):
    calls, file = [], tmp_path / "gone" / "names.json"
    find = _with_memory(_finder(calls), models, file)
    assert find(models) == find(models) == _NAMES
    assert len(calls) == 2


def test_another_installation_has_another_file(models, monkeypatch):
    before = _stamp(models)
    assert _stamp(models) == before
    (models / "new").mkdir()
    after = _stamp(models)
    monkeypatch.setattr(kept_names.metadata, "version", lambda _: "0.1")
    assert len({before, after, _stamp(models)}) == 3


def test_transformers_that_its_user_works_on_is_left_alone(monkeypatch):
    monkeypatch.setattr(kept_names.PathFinder, "find_spec", lambda _: None)
    assert kept_names._installed_models() is None


_IMPORT = """
import sys
from sharegen.engine.model.starting.kept_names import keep_names
finders = list(sys.meta_path)
keep_names()
import transformers
assert sys.meta_path[: len(finders)] == finders
assert transformers.utils.import_utils.__spec__.loader is not None
config = transformers.models.llama.configuration_llama.LlamaConfig
assert transformers.LlamaConfig is config
print(sorted(dir(transformers)), sorted(dir(transformers.models)))
"""


@pytest.mark.slow
def test_transformers_is_the_same_with_and_without(tmp_path):
    said = []
    for _ in range(2):
        environment = {"PATH": "", "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
        command = [sys.executable, "-c", _IMPORT]
        done = subprocess.run(
            command, env=environment, check=True, timeout=250, capture_output=True
        )
        said.append(done.stdout)
        assert len(list((tmp_path / "sharegen" / "names").iterdir())) == 1
    assert said[0] == said[1]
