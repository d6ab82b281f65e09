"""The one way to a tokenizer: of a model, by a name of its own, or one that is loaded."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from transformers import AutoTokenizer

from sharegen.engine.model.checkpoint.source import Source, explained, locate
from sharegen.errors import NoTokenizerError

_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model",
          "tiktoken.model", "tokenizer_config.json")  # fmt: skip


def load_tokenizer(
    model: Any,
    tokenizer: Any = None,
    *,
    trust_remote_code: bool = False,
    revision: str | None = None,
) -> Any:
    """The tokenizer that is given, or else the model's own.

    Args:
        model: a folder, GGUF file or hub id, or a model that is loaded, which comes without one.
        tokenizer: a folder or hub id of its own, or one that is loaded, which is returned as it is.
        revision: of the model, and so of a tokenizer that is its own.

    Raises:
        NoTokenizerError: where there is none.
        ModelError: where it cannot be loaded.
    """
    name = model if tokenizer is None else tokenizer
    if not isinstance(name, (str, os.PathLike)):
        if tokenizer is None:
            raise NoTokenizerError("a model that is loaded has no tokenizer with it: give one")
        return tokenizer
    source = locate(name, trust_remote_code, revision if name == model else None)
    if source.folder is not None and not any((source.folder / file).is_file() for file in _FILES):
        raise NoTokenizerError(
            f"model folder {source.name} has no tokenizer (no tokenizer.json, tokenizer.model "
            "or vocab.json): save the model's tokenizer there"
        )
    if source.gguf is not None:
        return _tokenizer_inside(source, source.gguf)
    with explained(source, "tokenizer"):
        return AutoTokenizer.from_pretrained(source.origin, **source.arguments)


def _tokenizer_inside(source: Source, file: Path) -> Any:
    """A GGUF file's own tokenizer: transformers would prefer one that lies beside the file."""
    with TemporaryDirectory(prefix="sharegen-") as folder, explained(source, "tokenizer"):
        os.symlink(file.absolute(), Path(folder, file.name))
        tokenizer = AutoTokenizer.from_pretrained(folder, **source.arguments)
    tokenizer.name_or_path = source.name
    return tokenizer
