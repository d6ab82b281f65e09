from __future__ import annotations

import errno
from pathlib import Path

import pytest

from sharegen.engine.model import fingerprint
from sharegen.engine.model.fingerprint import fingerprint_of_others, fingerprint_of_place
from sharegen.engine.model.load import load_model
from sharegen.errors import ModelError
from tests.engine.tiny_models import make_tiny


def test_fingerprint_follows_config_and_weights_not_the_place(tmp_path: Path) -> None:
    for name, seed in (("one", 0), ("same", 0), ("other", 1)):
        make_tiny("llama", seed=seed).save_pretrained(tmp_path / name)
    prints = {name: load_model(tmp_path / name).fingerprint for name in ("one", "same", "other")}
    assert prints["one"] == prints["same"] != prints["other"]
    config = tmp_path / "same" / "config.json"
    config.write_text(config.read_text().replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": 1e-05'))
    assert load_model(tmp_path / "same").fingerprint != prints["one"]


def test_fingerprint_of_a_loaded_model_follows_its_weights() -> None:
    one, same, other = make_tiny("llama"), make_tiny("llama"), make_tiny("llama", seed=1)
    prints = [load_model(model).fingerprint for model in (one, same, other)]
    assert prints[0] == prints[1] != prints[2]


def test_large_files_are_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_tiny("llama").save_pretrained(tmp_path)
    monkeypatch.setattr(fingerprint, "_FULLY_HASHED", 1000)
    before = load_model(tmp_path).fingerprint
    assert load_model(tmp_path).fingerprint == before
    weights = tmp_path / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert load_model(tmp_path).fingerprint != before


def test_what_lies_beside_the_weights_has_a_fingerprint_of_its_own(tmp_path: Path) -> None:
    make_tiny("llama").save_pretrained(tmp_path)
    weights = fingerprint_of_place(tmp_path)
    assert load_model(tmp_path).fingerprint == weights
    others = fingerprint_of_others(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    (tmp_path / "lost.json").symlink_to(tmp_path / "nowhere")
    assert fingerprint_of_place(tmp_path) == weights
    assert fingerprint_of_others(tmp_path) != others


def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tiny("llama").save_pretrained(tmp_path)

    def broken(file: Path, update: object) -> None:
        raise OSError(errno.EIO, "Input/output error", str(file))

    monkeypatch.setattr(fingerprint, "_hash_file", broken)
    with pytest.raises(ModelError, match=r"config\.json: cannot be read: Input/output error"):
        load_model(tmp_path)
