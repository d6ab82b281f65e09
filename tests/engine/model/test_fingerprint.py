from __future__ import annotations

from pathlib import Path

import pytest

from sharegen.engine.model import fingerprint
from sharegen.engine.model.load import load_model
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
