"""The tokenizer of a model, by a name of its own, or one that is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sharegen import LLM, SamplingParams
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


@pytest.mark.parametrize("kind", ["Foo", None])
def test_a_tokenizer_that_is_of_no_known_kind(kind: str | None, tmp_path: Path) -> None:
    """tokenizers raises a plain Exception for it."""
    save_tiny_model(tmp_path)
    file = tmp_path / "tokenizer.json"
    content = json.loads(file.read_text())
    content["model"] = {**content["model"], "type": kind} if kind else None
    file.write_text(json.dumps(content))
    with pytest.raises(
        ModelError, match=f"^cannot load the tokenizer of model folder {tmp_path}: "
    ):
        load_tokenizer(tmp_path)


def test_an_llm_tells_why_its_model_has_no_tokenizer(tmp_path: Path) -> None:
    save_tiny_model(tmp_path)
    file = tmp_path / "tokenizer.json"
    file.write_text(file.read_text()[:3000])
    with pytest.warns(UserWarning, match="token ids alone can be asked: cannot load the tokenizer"):
        llm = LLM(tmp_path, device="cpu", kv_cache_memory=1 << 20)
    [output] = llm.generate([[5, 6]], SamplingParams(max_tokens=2, ignore_eos=True))
    assert len(output.outputs[0].token_ids) == 2


def test_a_loaded_model_has_none_with_it() -> None:
    with pytest.raises(ModelError, match="has no tokenizer with it: give one"):
        load_tokenizer(make_tiny("llama"))
    given = object()
    assert load_tokenizer(make_tiny("llama"), given) is given
