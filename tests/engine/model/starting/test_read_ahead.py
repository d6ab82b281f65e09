"""Files of weights that are read while Python imports."""

import os

import pytest

from sharegen.engine.model.starting import read_ahead as module
from sharegen.engine.model.starting.read_ahead import read_ahead, weight_files

pytestmark = pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="as on macOS")


def test_weights_are_asked_for_and_nothing_else(tmp_path, monkeypatch):
    for name in ("b.safetensors", "a.safetensors", "config.json", "c.bin"):
        (tmp_path / name).write_bytes(b"x" * 10)
    (tmp_path / "folder.safetensors").mkdir()
    assert [file.name for file in weight_files(tmp_path)] == ["a.safetensors", "b.safetensors"]
    asked = []
    monkeypatch.setattr(module.os, "posix_fadvise", lambda *said: asked.append(said[1:]))
    read_ahead(tmp_path).join(timeout=60)
    assert asked == [(0, 0, os.POSIX_FADV_WILLNEED)] * 2


def test_a_gguf_file_is_its_own_weights(tmp_path):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    assert weight_files(file) == [file]


def test_nothing_is_read_of_a_model_that_is_not_there(tmp_path):
    assert read_ahead(tmp_path / "gone") is None
    assert read_ahead(tmp_path) is None


def test_nothing_is_read_of_a_model_that_memory_does_not_hold(tmp_path, monkeypatch):
    (tmp_path / "model.safetensors").write_bytes(b"x" * 5000)
    monkeypatch.setattr(module.os, "sysconf", lambda _: 90)  # pages, and bytes of one
    assert weight_files(tmp_path) == []


def test_a_file_that_goes_meanwhile_is_no_error(tmp_path):
    module._ask_for([tmp_path / "gone.safetensors"])
