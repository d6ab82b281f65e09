"""What the driver of workers on a CPU has to know of their model, in numbers and names.

The process that loads the model for them tells it, so that the driver need not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from sharegen.engine.core.block_format import BlockFormat

if TYPE_CHECKING:
    import torch

    from sharegen.engine.model.loaded import LoadedModel


@dataclass(frozen=True)
class ModelOutline:
    """A model as its driver knows it; the names are those of LoadedModel.

    dtype: its name. blocks: what the blocks of the job's KV cache are.
    """

    fingerprint: str
    dtype: str
    context_length: int
    state_bytes: int
    weights_bytes: int
    blocks: BlockFormat
    quantization: str | None

    @classmethod
    def of(cls, model: LoadedModel, kv_cache_dtype: str) -> ModelOutline:
        from sharegen.engine.execute.kv_cache import block_format

        return cls(
            fingerprint=model.fingerprint,
            dtype=str(model.dtype).removeprefix("torch."),
            context_length=model.context_length,
            state_bytes=model.state_bytes,
            weights_bytes=model.weights_bytes,
            blocks=block_format(model.layers, model.dtype, kv_cache_dtype),
            quantization=model.quantization,
        )


class _CPU:
    type = "cpu"


CPU = cast("torch.device", _CPU())
"""What is asked of torch's CPU before torch is imported: its type."""
