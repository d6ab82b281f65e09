"""Where a model lies on this machine, for whoever asks before transformers is imported."""

from __future__ import annotations

import os
from pathlib import Path


def model_on_disk(model: str | os.PathLike[str], revision: str | None = None) -> Path | None:
    """Its folder, or its GGUF file; of a model of the hub what the hub's cache has.

    None where it is not on this machine, as far as one looks here: who loads it says what is wrong.
    """
    path = Path(os.path.expanduser(model))
    try:
        return path if path.exists() else _in_the_hub_s_cache(os.fspath(model), revision)
    except (OSError, ValueError):  # too long a name, or one with zeros
        return None


def _in_the_hub_s_cache(model: str, revision: str | None) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(model, "config.json", revision=revision)
    return Path(found).parent if isinstance(found, str) else None
