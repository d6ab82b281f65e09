"""A check that all ranks run the same steps: for whoever looks for the first one that differs.

Set SHAREGEN_CHECK_RANKS=1 in the environment. Each step then waits for the device and for all
ranks, so it is no way to run a job.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch

from sharegen.engine.model.tensor_parallel.ranks import Ranks
from sharegen.errors import SharegenError

VARIABLE = "SHAREGEN_CHECK_RANKS"


def asked() -> bool:
    """Whether steps are to be compared; rank 0 says it for all."""
    return os.environ.get(VARIABLE, "0") not in ("", "0")


class RanksDiffer(SharegenError):
    """Two ranks were about to run different steps."""


class Agreement:
    """Compares, step by step, what the ranks are about to run."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._steps = 0

    def check(self, **parts: Any) -> None:
        """Raise RanksDiffer where some rank's parts of the step differ from rank 0's."""
        said = self._ranks.all_of(" ".join(digest(part) for part in parts.values()))
        first = said[0].split()
        for rank, digests in enumerate(said):
            for name, mine, theirs in zip(parts, first, digests.split(), strict=True):
                if mine != theirs:
                    raise RanksDiffer(
                        f"step {self._steps}: {name} differs: rank 0 has {mine}, rank {rank} "
                        f"{theirs}"
                    )
        self._steps += 1


def digest(value: Any) -> str:
    """A short hash of the content of a batch, or of what else a step depends on."""
    hashed = hashlib.blake2b(digest_size=4)
    for part in _parts(value):
        hashed.update(part)
    return hashed.hexdigest()


def _parts(value: Any) -> Iterator[bytes]:
    if isinstance(value, torch.Tensor):
        value = value.cpu().numpy()
    if isinstance(value, np.ndarray):
        yield f"{value.dtype}{value.shape}".encode()
        yield np.ascontiguousarray(value).tobytes()
    elif is_dataclass(value):
        for field in fields(value):
            yield from _parts(getattr(value, field.name))
    elif isinstance(value, (list, tuple)):
        yield str(len(value)).encode()
        for item in value:
            yield from _parts(item)
    else:
        yield repr(value).encode()
