"""A configuration on its machine: the model and the tokenizer, and what the job can use at most."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sharegen.common import confined
from sharegen.common.log import log
from sharegen.common.parameters.data import CheckpointParameters
from sharegen.common.parameters.machine import LoadParameters
from sharegen.common.parameters.parameter import values_of
from sharegen.engine.cache.prefix_tree import PrefixTree
from sharegen.engine.parallel.outline import ModelOutline
from sharegen.job.imports import import_engine, put_off_torch
from sharegen.job.sharing_plan import most_blocks
from sharegen.workload.configuration import Configuration
from sharegen.workload.files.content import read_text
from sharegen.workload.sampling_section import Sampling

if TYPE_CHECKING:
    import torch

    from sharegen.engine.core.block_format import BlockFormat
    from sharegen.engine.model.loaded import LoadedModel
    from sharegen.engine.verifying import Distance, Step


def load(
    configuration: Configuration, weights: bool = True, device: torch.device | None = None
) -> tuple[LoadedModel, Any]:
    """The model and its tokenizer; without weights, the model is on the meta device.

    device: in place of the configuration's; it need not be here for a model without weights. Of a
    model that is cut among ranks it is the first one's part, of which only the shapes are ever
    asked for here.
    """
    import_engine(configuration, computes=weights)
    from sharegen.engine.model.checkpoint.source import resolve_device
    from sharegen.engine.model.load import load_model
    from sharegen.engine.model.tensor_parallel.ranks import Ranks

    assert configuration.model is not None
    prepare_templates(configuration)
    size = configuration.machine.tensor_parallel_size
    assert size == 1 or not weights
    device = device or resolve_device(configuration.machine.device)
    model = load_model(
        configuration.model,
        weights=weights,
        ranks=None if size == 1 else Ranks(0, size, device),
        **values_of(CheckpointParameters, configuration),
        **values_of(LoadParameters, configuration.machine) | {"device": device},
    )
    return model, tokenizer_of(configuration)


def prepare_templates(configuration: Configuration) -> None:
    """Let what renders chat templates begin, where the job has any."""
    if configuration.chat.enabled:
        from sharegen.workload import chat

        confined.prepare(chat.render)


def tokenizer_of(
    configuration: Configuration, computes: bool = True, with_torch: bool = True
) -> Any:
    """The model's tokenizer, with the job's chat template where it has one of its own.

    computes: whether this process does, and not others alone. with_torch: whether torch is imported
    at once, and not when something is asked of it.
    """
    if with_torch:
        import_engine(configuration, computes)
    else:
        put_off_torch()
    from sharegen.engine.model.checkpoint.tokenizer import load_tokenizer

    assert configuration.model is not None
    tokenizer = load_tokenizer(
        configuration.model,
        trust_remote_code=configuration.trust_remote_code,
        revision=configuration.revision,
    )
    if configuration.chat.template is not None:
        tokenizer.chat_template = read_text(Path(configuration.chat.template))
    _log_unnamed(configuration, tokenizer)
    return tokenizer


def _log_unnamed(configuration: Configuration, tokenizer: Any) -> None:
    """Log variables that are given to a chat template which does not name them."""
    templates = tokenizer.chat_template
    text = " ".join(templates.values()) if isinstance(templates, dict) else str(templates)
    for name in configuration.chat.template_kwargs:
        if name not in text:
            log(f"chat.template_kwargs: the chat template has no variable {name!r:.80}")


def distance_from_stored(
    configuration: Configuration, model: LoadedModel, steps: Sequence[Step]
) -> Distance:
    """How far steps of a job are from the weights as the checkpoint has them.

    model: the job's, released.
    """
    from sharegen.engine.from_checkpoint import distance_from_checkpoint
    from sharegen.engine.model.load import load_as_stored

    assert configuration.model is not None
    stored = load_as_stored(
        configuration.model,
        model.dtype,
        **values_of(CheckpointParameters, configuration),
    )
    return distance_from_checkpoint(stored, model, steps)


def max_sequences(configuration: Configuration, device: torch.device) -> int:
    """Sequences that decode together: as configured, or what suits the device."""
    from sharegen.engine.config import MAX_SEQUENCES

    return configuration.machine.max_sequences or MAX_SEQUENCES[device.type]


def blocks_of(configuration: Configuration, model: LoadedModel | ModelOutline) -> BlockFormat:
    """What the blocks of the job's KV cache are."""
    if isinstance(model, ModelOutline):
        return model.blocks
    from sharegen.engine.execute.kv_cache import block_format
    from sharegen.engine.model.checkpoint.source import resolve_device

    machine = configuration.machine
    latents = not machine.deterministic or resolve_device(machine.device).type == "cpu"
    return block_format(model.layers, model.dtype, machine.kv_cache_dtype, latents)


def state_slots(
    configuration: Configuration, model: LoadedModel, device: torch.device, memory: int
) -> int | None:
    """Slots for states that so much memory of an engine has; None for a model without mixers."""
    from sharegen.engine.execute.memory import slots_in

    if not model.mixers:
        return None
    rows = max_sequences(configuration, device)
    return slots_in(memory, model.state_bytes, rows, bool(model.layers))


def single(
    configuration: Configuration, model: LoadedModel | ModelOutline, samplings: Iterable[Sampling]
) -> list[bool] | None:
    """Whether so few samples continue each prompt that it lies where their own tokens do; None
    where nothing depends on it: all KV has one format, and what runs decides how it is read.

    In the deterministic mode only those count of which there can never be more: a job that was
    begun with few samples and goes on with more draws them all in one way.
    """
    blocks = blocks_of(configuration, model)
    if blocks.blocks_per_full == 1 and not configuration.machine.deterministic:
        return None
    from sharegen.engine.core.request import GREEDY_BELOW

    grows = configuration.machine.deterministic
    return [
        s.temperature < GREEDY_BELOW or (s.rows <= blocks.readers and not grows)
        if s.decoding == "sample"
        else s.rows <= blocks.readers
        for s in samplings
    ]


def kv_cache_limit(
    configuration: Configuration,
    model: LoadedModel | ModelOutline,
    device: torch.device,
    tree: PrefixTree,
    samplings: Sequence[Sampling],
) -> int:
    """The most bytes of KV cache that the job can use, on each rank.

    tree: of its prompts; samplings: by the prompts' places there.
    """
    from sharegen.engine.execute.memory import most_slots

    made_of = blocks_of(configuration, model)
    rows = max_sequences(configuration, device)
    _, tokens = extents(samplings, model.context_length)
    blocks = most_blocks(tree, [s.rows for s in samplings], tokens, rows, made_of.blocks_per_full)
    full_blocks = max(-(-blocks // made_of.blocks_per_full), 2)  # the least that an engine takes
    kv = full_blocks * made_of.shared_token_bytes * tree.block_size
    states = most_slots(rows) * model.state_bytes
    return 2 * max(kv, states) if states else kv  # one of the two has half of it at most


def extents(samplings: Sequence[Sampling], context_length: int) -> tuple[list[int], list[int]]:
    """How many samples each problem has, and how many tokens one of them has at most."""
    return [s.samples for s in samplings], [s.max_tokens or context_length for s in samplings]


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that samples depend on."""
    names = ("sharegen", "torch", "transformers", "triton")
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # a plain checkout, a platform without triton
            continue
    return found
