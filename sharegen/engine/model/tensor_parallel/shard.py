"""A rank's shard of the weights, cut while they are read.

transformers renames and merges what a checkpoint holds, of which nothing is read yet (`unread.py`);
every parameter that it gives to a module passes `_keeping_own_shards`, which reads the rank's shard
onto its device. So a rank holds its shard and a piece of one tensor in a file, also of experts that
are stored one by one, and the checkpoint's conversion stays transformers' own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as registration
from transformers import PreTrainedModel

from sharegen.engine.model.checkpoint.source import Source, explained
from sharegen.engine.model.checkpoint.tensors import stored_tensors, take_generation_config
from sharegen.engine.model.checkpoint.weights import refuse_missing, refuse_scales
from sharegen.engine.model.fp8.quantising import Place
from sharegen.engine.model.stored.forms import Form, as_numbers
from sharegen.engine.model.stored.unread import Unread
from sharegen.engine.model.tensor_parallel.fp8_shards import install_stored_shard, quantise_shard
from sharegen.engine.model.tensor_parallel.ranks import Ranks
from sharegen.engine.model.tensor_parallel.sharding_plan import TensorParallelPlan


def read_own_shards(
    source: Source,
    config: Any,
    kind: type[PreTrainedModel],
    dtype: torch.dtype,
    plan: TensorParallelPlan,
    ranks: Ranks,
    fp8: Sequence[Place] = (),
    stored: bool = False,
    form: Form | None = None,
) -> PreTrainedModel:
    """Make a model of that kind with the rank's shard of the weights, on the rank's device.

    fp8: the weights that become FP8 as they are read, or are `stored` so. form: in which the
    checkpoint has its weights, if another one than numbers. Raises ModelError when weights are
    missing, not in safetensors, or not finite where they must be.
    """
    with explained(source, "weights"):
        tensors = stored_tensors(source)
        if form is not None:
            tensors = as_numbers(source.name, form, tensors, dtype)
        scales = {place: tensors.pop(f"{place.name}_scale", None) for place in fp8 if stored}
        with _keeping_own_shards(plan, ranks, {place.name for place in fp8}):
            loaded: Any = kind.from_pretrained(
                None,
                config=config,
                state_dict=tensors,
                dtype=dtype,
                attn_implementation="eager",
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # reported, and refused below in our words
            )
        shard, report = loaded
        take_generation_config(shard, source)
    refuse_missing(source, report)
    if form is None and not stored:
        refuse_scales(source, report["unexpected_keys"])
    if stored:
        refuse_missing(source, _missing_scales(scales))
        read = {place: scale.read() for place, scale in scales.items() if scale is not None}
        install_stored_shard(shard, read, plan, ranks, source.name)
    else:
        quantise_shard(shard, fp8, plan, ranks, source.name)
    return shard.to(ranks.device).eval()


def _missing_scales(scales: Mapping[Place, Unread | None]) -> dict[str, Any]:
    """Name missing scales as transformers reports what is missing."""
    missing = [f"{place.name}_scale" for place, scale in scales.items() if scale is None]
    return {"missing_keys": missing, "mismatched_keys": []}


@contextmanager
def _keeping_own_shards(plan: TensorParallelPlan, ranks: Ranks, later: set[str]) -> Iterator[None]:
    """Open a block in which a module that is given a parameter of the whole model keeps the rank's
    shard.

    later: the names of those that are not read yet.
    """
    owners: dict[int, tuple[nn.Module, str]] = {}
    kept: dict[int, nn.Parameter] = {}  # held, so that no other takes the id of one

    def note_owner(module: nn.Module, name: str, child: nn.Module | None) -> None:
        if child is not None:
            owners[id(child)] = (module, name)

    def keep_own_shard(module: nn.Module, name: str, parameter: nn.Parameter | None) -> Any:
        if parameter is None or parameter.is_meta or id(parameter) in kept:
            return None
        path = [name]
        while id(module) in owners:
            module, name = owners[id(module)]
            path.insert(0, name)
        full_name = ".".join(path)
        own = own_shard(plan, full_name, parameter, ranks, read=full_name not in later)
        kept[id(own)] = own
        return own

    def read(module: nn.Module, name: str, buffer: torch.Tensor | None) -> Any:
        return buffer.read(ranks.device) if isinstance(buffer, Unread) else None

    hooks = (
        registration.register_module_module_registration_hook(note_owner),
        registration.register_module_buffer_registration_hook(read),
        registration.register_module_parameter_registration_hook(keep_own_shard),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def own_shard(
    plan: TensorParallelPlan, path: str, whole: nn.Parameter, ranks: Ranks, read: bool = True
) -> nn.Parameter:
    """Return the rank's shard of a parameter, in memory of its own on the rank's device.

    read: whether what is not read yet will be.
    """
    spec = plan.shards.get(path)
    data = whole.detach()
    data = data if spec is None else spec.take(data, ranks.rank, ranks.size)
    if isinstance(data, Unread):
        data = data.read(ranks.device) if read else data
    else:
        device = data.device if data.is_meta else ranks.device
        data = data.to(device, copy=True, memory_format=torch.contiguous_format)
    own = nn.Parameter(data, requires_grad=False)
    marks = whole.__dict__.items()  # transformers', of what was read
    own.__dict__.update((name, mark) for name, mark in marks if name != "source")
    return own


def keep_own_shards(model: PreTrainedModel, plan: TensorParallelPlan, ranks: Ranks) -> None:
    """Keep the rank's shard of a model that is there, as on torch's meta device."""
    shards: dict[int, nn.Parameter] = {}
    for path, module in model.named_modules():
        for name, whole in list(module.named_parameters(recurse=False)):
            if id(whole) not in shards:
                shards[id(whole)] = own_shard(plan, f"{path}.{name}".lstrip("."), whole, ranks)
            module._parameters[name] = shards[id(whole)]
