"""A configuration on its machine: the model and the tokenizer, and what the job can use at most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sharegen.common import confined
from sharegen.engine.cache.prefix_tree import PrefixTree
from sharegen.job.plan import most_blocks
from sharegen.workload.configuration import Configuration

if TYPE_CHECKING:
    import torch

    from sharegen.engine.model.loaded import LoadedModel


def load(
    configuration: Configuration, weights: bool = True, device: torch.device | None = None
) -> tuple[LoadedModel, Any]:
    """The model and its tokenizer; without weights, the model is on the meta device.

    device: in place of the configuration's; it need not be here for a model without weights.
    """
    from sharegen.engine.model.checkpoint import load_tokenizer
    from sharegen.engine.model.load import load_model

    assert configuration.model is not None
    if configuration.chat.enabled:
        from sharegen.workload import chat

        confined.prepare(chat.render)
    model = load_model(
        configuration.model,
        device=device or configuration.machine.device,
        dtype=configuration.machine.dtype,
        adapter=configuration.adapter,
        trust_remote_code=configuration.trust_remote_code,
        weights=weights,
    )
    return model, load_tokenizer(configuration.model, configuration.trust_remote_code)


def max_sequences(configuration: Configuration, device: torch.device) -> int:
    """Sequences that decode together: as configured, or what suits the device."""
    from sharegen.engine.config import MAX_SEQUENCES

    return configuration.machine.max_sequences or MAX_SEQUENCES[device.type]


def kv_cache_limit(
    configuration: Configuration,
    model: LoadedModel,
    device: torch.device,
    tree: PrefixTree,
) -> int:
    """The most bytes of KV cache that the job can use; tree: of its prompts."""
    sampling = configuration.sampling
    rows = max_sequences(configuration, device)
    blocks = most_blocks(tree, sampling.samples, sampling.max_tokens, rows)
    blocks = max(blocks, 2)  # the least that an engine takes
    return blocks * model.kv_bytes_per_token * tree.block_size
