"""What the small files of a model folder may hold, looked at before transformers reads them.

They may be anyone's. A number in them decides how often a loop runs and how much is allocated, and
what transformers does with one that makes no sense is not always an error, nor one of one line.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from sharegen.errors import ModelError

_READ = ("config.json", "generation_config.json", "tokenizer_config.json", "adapter_config.json",
         "special_tokens_map.json", "added_tokens.json")  # fmt: skip
_MAX_BYTES = 2**24
_MAX_VOCABULARY_BYTES = 2**29  # of the other text files: the largest vocabularies take a tenth
_VOCABULARY = ("tokenizer.json", "vocab.json", "vocab.txt", "merges.txt",
               "model.safetensors.index.json", "pytorch_model.bin.index.json")  # fmt: skip
MOST_LAYERS = 10_000
_MOST = {
    "num_hidden_layers": MOST_LAYERS,
    "num_layers": MOST_LAYERS,
    "n_layer": MOST_LAYERS,
    "n_layers": MOST_LAYERS,
    "num_experts": 100_000,
    "num_local_experts": 100_000,
    "num_labels": 1_000_000,
}
"""What a module or a name is made for each of -> more of them than any model has."""

_MAX_INTEGER = 10**40
"""Some write 10**30 for no limit."""

_MAX_DEPTH = 64


def check_name(name: str | os.PathLike[str]) -> None:
    """Raise ModelError for the name of a model that cannot be one, as far as files say it."""
    path = Path(os.path.expanduser(name))
    if path.is_dir():
        check_folder(path)
    elif not path.exists():
        refuse_path(os.fspath(name))


def refuse_path(missing: str) -> None:
    """Raise ModelError where a name that is nobody's here is a path, and no model's on the hub."""
    if Path(missing).suffix.lower() == ".gguf":
        raise ModelError(f"no file {missing}: give a GGUF file, a model folder or a hub id")
    if (
        missing.startswith((".", "/", "~"))
        or missing.count("/") > 1
        or (os.sep != "/" and os.sep in missing)
    ):
        raise ModelError(f"no folder {missing}: give a model folder or a hub id like owner/name")


def check_folder(folder: Path) -> None:
    """Raises ModelError, naming the file and what is wrong in it."""
    for name in _VOCABULARY:
        _check_size(folder / name, _MAX_VOCABULARY_BYTES)
    for name in _READ:
        file = folder / name
        _check_size(file, _MAX_BYTES)
        if file.is_file():
            values = _read(file)
            if not isinstance(values, dict):
                raise ModelError(f"{file}: is not a JSON object")
            _check(file, values, 0)


def _check_size(file: Path, limit: int) -> None:
    if file.is_file() and file.stat().st_size > limit:
        raise ModelError(f"{file}: is larger than {limit >> 20:,} MiB, which no {file.name} is")


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except OSError as error:
        raise ModelError(f"{file}: cannot be read: {error.strerror}") from None
    except RecursionError:
        raise ModelError(f"{file}: is nested too deeply") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        return {}  # no JSON, as transformers says itself
    except ValueError:
        raise ModelError(f"{file}: has a number with too many digits") from None


def _check(file: Path, value: Any, depth: int, key: str = "") -> None:
    if depth > _MAX_DEPTH:
        raise ModelError(f"{file}: is nested too deeply")
    if isinstance(value, int) and not -_MAX_INTEGER <= value <= _MOST.get(key, _MAX_INTEGER):
        raise ModelError(f"{file}: {key!r:.80} is {value!s:.20}: more than any model has")
    if key == "model_max_length" and not isinstance(value, (int, float, type(None))):
        raise ModelError(f"{file}: {key!r} is no number")
    if key == "quantization_config" and not isinstance(value, (dict, type(None))):
        raise ModelError(f"{file}: {key!r} is {value!r:.40}: it must be an object, or left out")
    if isinstance(value, dict):
        for name, inner in value.items():
            _check(file, inner, depth + 1, name)
    elif isinstance(value, list):
        for inner in value:
            _check(file, inner, depth + 1, key)
