"""The tokenizer of a model, by a name of its own, or one that is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharegen.engine.model.checkpoint.tokenizer import load_tokenizer
from sharegen.errors import ModelError
from tests.engine.tiny_models import make_tiny
from tests.tiny import save_tiny_model


def test_tokenizer_of_a_folder(tmp_path: Path) -> None:
    save_tiny_model(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    text = "Tom has 3 apples"
    assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == text
    named = load_tokenizer("a model that nobody looks for", tmp_path)
    assert named.get_vocab() == tokenizer.get_vocab()
    assert load_tokenizer(tmp_path, named) is named


def test_folder_without_a_tokenizer(tmp_path: Path) -> None:
    make_tiny("llama").save_pretrained(tmp_path)
    with pytest.raises(ModelError) as error:
        load_tokenizer(tmp_path)
    assert str(error.value) == (
        f"model folder {tmp_path} has no tokenizer (no tokenizer.json, tokenizer.model or "
        "vocab.json): save the model's tokenizer there"
    )


def test_a_loaded_model_has_none_with_it() -> None:
    with pytest.raises(ModelError, match="has no tokenizer with it: give one"):
        load_tokenizer(make_tiny("llama"))
    given = object()
    assert load_tokenizer(make_tiny("llama"), given) is given
