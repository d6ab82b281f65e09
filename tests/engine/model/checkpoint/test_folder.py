from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sharegen.engine.model.checkpoint.folder import check_folder
from sharegen.engine.model.checkpoint.tokenizer import load_tokenizer
from sharegen.engine.model.load import load_model
from sharegen.errors import ModelError
from tests.tiny import save_tiny_model

DEEP = "[" * 100_000 + "]" * 100_000
DIGITS = "9" * 5000


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("models") / "good")


@pytest.fixture
def spoil(good: Path, tmp_path: Path) -> Callable[[str, str | None, str], Path]:
    """A copy of a good folder in which a file, or one of its keys, is another text."""

    def spoiled(name: str, key: str | None, text: str) -> Path:
        folder = shutil.copytree(good, tmp_path / "bad")
        values: dict[str, Any] = json.loads((folder / name).read_text()) if key else {}
        whole = json.dumps(values | {key: "@"}).replace('"@"', text) if key else text
        (folder / name).write_text(whole)
        return folder

    return spoiled


def test_a_good_folder_passes(good: Path) -> None:
    check_folder(good)


@pytest.mark.parametrize(
    ("name", "key", "text", "message"),
    [
        ("config.json", "x", DEEP, r"config\.json: is nested too deeply"),
        ("config.json", "x", "[" * 80 + "]" * 80, r"config\.json: is nested too deeply"),
        ("config.json", "vocab_size", DIGITS, "a number with too many digits"),
        ("config.json", "vocab_size", "9" * 50, "'vocab_size' is 99999999999999999999: more"),
        ("config.json", "num_hidden_layers", "1000000000", "'num_hidden_layers' is 1000000000: "),
        ("config.json", "num_labels", "100000000", "'num_labels' is 100000000: more than"),
        ("config.json", None, "[1]", "is not a JSON object"),
        ("config.json", None, " " * (2**24 + 1), "is larger than 16 MiB, which no config.json is"),
        ("generation_config.json", "max_length", DIGITS, r"generation_config\.json: .*digits"),
        ("tokenizer_config.json", "model_max_length", '"a"', "'model_max_length' is no number"),
        ("tokenizer_config.json", "x", DEEP, r"tokenizer_config\.json: is nested too deeply"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else str(value),
)
def test_what_no_model_has_is_named(
    spoil: Callable[..., Path], name: str, key: str | None, text: str, message: str
) -> None:
    folder = spoil(name, key, text)
    for load in (load_model, load_tokenizer):
        with pytest.raises(ModelError, match=message) as error:
            load(folder)
        assert "\n" not in str(error.value) and len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("name", "key", "text"),
    [
        ("config.json", "hidden_size", '"a"'),
        ("config.json", "max_position_embeddings", "20.5"),
        ("config.json", "rope_parameters", "[1]"),
        ("config.json", "hidden_act", "[1]"),
        ("config.json", "tie_word_embeddings", "[1]"),
        ("config.json", "initializer_range", "1e999"),
        ("config.json", "dtype", "[1]"),
        ("config.json", "num_attention_heads", "0"),
        ("config.json", "eos_token_id", '"a"'),
        ("config.json", "quantization_config", '"fp8"'),
        ("config.json", "quantization_config", '["fp8"]'),
        ("generation_config.json", "eos_token_id", '"a"'),
        ("generation_config.json", "eos_token_id", '["a", [1]]'),
        ("generation_config.json", "eos_token_id", "{}"),
        ("generation_config.json", "eos_token_id", "1000000000000000000000000"),
    ],
)
def test_values_of_a_wrong_kind_are_one_line(
    spoil: Callable[..., Path], name: str, key: str, text: str
) -> None:
    with pytest.raises(ModelError) as error:
        load_model(spoil(name, key, text))
    assert "\n" not in str(error.value) and len(str(error.value)) < 500


@pytest.mark.parametrize("text", [DEEP, "", "[]", '{"version": ' + DIGITS + "}"])
def test_a_tokenizer_that_is_none_is_one_line(spoil: Callable[..., Path], text: str) -> None:
    folder = spoil("tokenizer.json", None, text)
    with pytest.raises(ModelError, match="cannot load the tokenizer") as error:
        load_tokenizer(folder)
    assert "\n" not in str(error.value) and len(str(error.value)) < 500
