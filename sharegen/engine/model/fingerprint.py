"""A stable name for a model's config and weights, so that a journal is never continued by another.

It follows the contents, not the place: a folder may move. Large files are sampled, since hashing
a hundred gigabytes would take longer than loading them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub import try_to_load_from_cache

from sharegen.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from sharegen.engine.model.checkpoint.source import Source

_FULLY_HASHED = 32 * 2**20  # bytes; of larger files samples are hashed
_CONFIG_FILES = ("config.json", "generation_config.json", "adapter_config.json")


def fingerprint_of_source(source: Source) -> str:
    """A stable hash of the config and the weights' identity, wherever the folder lies.

    Where the hub's client keeps a config that was read says of which commit it is.
    """
    place = source.folder or source.gguf
    if place is not None:
        return fingerprint_of_place(place)
    file = try_to_load_from_cache(source.name, "config.json", revision=source.revision)
    commit = Path(file).parent.name if isinstance(file, str) else None
    name = json.dumps([source.name, commit])
    return hashlib.blake2b(name.encode(), digest_size=16).hexdigest()


def fingerprint_of_place(place: Path) -> str:
    """Return the fingerprint for a folder or a GGUF file, told without torch.

    Raises ModelError for a file that cannot be read.
    """
    if place.is_dir():
        files = [file for file in place.iterdir() if _is_model(file.name)]
        return _hash_files(files)
    return _hash_files([place], named=False)


def fingerprint_of_others(place: Path) -> str:
    """A fingerprint of all other files in the folder: while it stays, so does the tokenizer.

    A GGUF file has its tokenizer inside.
    """
    if place.is_dir():
        return _hash_files([f for f in place.iterdir() if not _is_model(f.name)])
    return fingerprint_of_place(place)


def _is_model(name: str) -> bool:
    return name.endswith((".safetensors", ".bin")) or name in _CONFIG_FILES


def _hash_files(files: Iterable[Path], named: bool = True) -> str:
    """Hash the files; named: whether a file of another name is another."""
    digest = hashlib.blake2b(digest_size=16)
    for file in sorted(files):
        if not file.is_file():
            continue
        try:
            digest.update(f"{file.name if named else ''}:{file.stat().st_size}:".encode())
            _hash_file(file, digest.update)
        except OSError as error:
            raise ModelError(f"{file}: cannot be read: {error.strerror}") from None
    return digest.hexdigest()


def _hash_file(file: Path, update: Callable[[bytes], None]) -> None:
    """Hash all of a small file; of a large one its head, its tail and samples in between."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        if size <= _FULLY_HASHED:
            update(stream.read())
            return
        for offset in range(0, size, size // 64):
            stream.seek(offset)
            update(stream.read(2**16))
        stream.seek(-(2**16), os.SEEK_END)
        update(stream.read())


def fingerprint_of_module(model: PreTrainedModel) -> str:
    """Return the fingerprint for a model that was already loaded: its config and a sample of every
    weight.
    """
    digest = hashlib.blake2b(digest_size=16)
    digest.update(model.config.to_json_string(use_diff=True).encode())
    for name, weight in model.named_parameters():
        sample = weight.detach().flatten()
        sample = sample[:: max(1, sample.numel() // 256)].float().cpu()
        digest.update(f"{name}:{tuple(weight.shape)}:{weight.dtype}:".encode())
        digest.update(sample.numpy().tobytes())
    return digest.hexdigest()
