import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

_PROGRAM = """
import sys
from sharegen.common.kept_bytecode import kept_bytecode
before = sys.pycache_prefix, sys.dont_write_bytecode
with kept_bytecode():
    import torch
assert (sys.pycache_prefix, sys.dont_write_bytecode) == before
import later
print(torch.VALUE, later.VALUE)
"""


@pytest.fixture
def packages(tmp_path):
    """A torch that the interpreter has no bytecode of, and a module that is imported afterwards."""
    folder = tmp_path / "packages"
    (folder / "torch").mkdir(parents=True)
    (folder / "torch/__init__.py").write_text("VALUE = 'as written'\n")
    (folder / "later.py").write_text("VALUE = 'too'\n")
    return folder


def _import(packages: Path, **environment: str) -> None:
    """Import both in a process of their own, and see that they are what was written."""
    path = os.pathsep.join([str(packages), str(Path(__file__).parents[2])])
    cache = {"XDG_CACHE_HOME": str(packages.parent / "cache"), "PYTHONPATH": path}
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_PROGRAM)],
        env=os.environ | cache | environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (found.stdout, found.stderr) == ("as written too\n", "")


def _kept(packages: Path) -> list[Path]:
    return sorted((packages.parent / "cache").rglob("*.pyc"))


def test_it_is_kept_where_python_keeps_none(packages):
    _import(packages, PYTHONDONTWRITEBYTECODE="1")
    kept = _kept(packages)
    assert [file.name.partition(".")[0] for file in kept] == ["__init__"]  # and not what is later
    assert list(packages.rglob("*.pyc")) == []
    first = kept[0].stat()
    _import(packages, PYTHONDONTWRITEBYTECODE="1")
    assert kept[0].stat().st_mtime_ns == first.st_mtime_ns


def _cut(data: bytes) -> bytes:
    return data[:-20]


def _one_bit(data: bytes) -> bytes:
    return data[:40] + bytes([data[40] ^ 1]) + data[41:]


@pytest.mark.parametrize("damage", [_cut, _one_bit, lambda data: b""])
def test_a_damaged_file_is_compiled_anew(packages, damage):
    _import(packages, PYTHONDONTWRITEBYTECODE="1")
    (file,) = _kept(packages)
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    _import(packages, PYTHONDONTWRITEBYTECODE="1")
    assert file.read_bytes() == whole


def test_another_source_is_compiled_anew(packages):
    _import(packages, PYTHONDONTWRITEBYTECODE="1")
    (file,) = _kept(packages)
    before = file.read_bytes()
    (packages / "torch/__init__.py").write_text("ANOTHER = 1\nVALUE = 'as written'\n")
    _import(packages, PYTHONDONTWRITEBYTECODE="1")
    assert file.read_bytes() != before


def test_python_keeps_it_by_itself(packages):
    _import(packages, PYTHONDONTWRITEBYTECODE="")
    assert _kept(packages) == []
    assert len(list(packages.rglob("*.pyc"))) == 2
    _import(packages, PYTHONDONTWRITEBYTECODE="1")  # what an installer compiled is there as well
    assert _kept(packages) == []


def test_a_folder_that_cannot_be_written(packages, monkeypatch):
    from sharegen.common import kept_bytecode as module

    monkeypatch.syspath_prepend(packages)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert not module._is_needed()
    monkeypatch.setattr(os, "access", lambda place, mode: Path(place) != packages / "torch")
    assert module._is_needed()


def test_the_user_s_own_folder_stays(packages):
    own = packages.parent / "own"
    _import(packages, PYTHONPYCACHEPREFIX=str(own))
    assert _kept(packages) == []
    assert list(own.rglob("*.pyc"))


@pytest.mark.parametrize("home", ["/proc", "/dev/null"])
def test_a_cache_that_cannot_be_used(packages, home):
    _import(packages, PYTHONDONTWRITEBYTECODE="1", XDG_CACHE_HOME=home)
    assert _kept(packages) == []
