"""A rank's shard of a model: planned on the whole without weights, then read or drawn at random."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from sharegen.engine.model.checkpoint.source import Source, quiet
from sharegen.engine.model.checkpoint.weights import (
    build_on_meta,
    refuse_other_forms,
    stored_quantization,
    tell,
    without_quantization,
)
from sharegen.engine.model.fp8.loading import install_on_meta
from sharegen.engine.model.fp8.quantising import check, places
from sharegen.engine.model.fp8.stored_fp8 import StoredFP8
from sharegen.engine.model.probe import IMPLEMENTATION as PROBE
from sharegen.engine.model.probe import probe
from sharegen.engine.model.rope import hold_frequencies
from sharegen.engine.model.stored.forms import KEPT
from sharegen.engine.model.tensor_parallel.collectives import install_collectives
from sharegen.engine.model.tensor_parallel.fp8_shards import places_of_shards, quantise_shard
from sharegen.engine.model.tensor_parallel.ranks import Ranks
from sharegen.engine.model.tensor_parallel.shard import keep_own_shards, read_own_shards
from sharegen.engine.model.tensor_parallel.sharding_plan import TensorParallelPlan, make_plan
from sharegen.errors import ModelError


def load_shard(
    source: Source,
    config: Any,
    dtype: torch.dtype,
    ranks: Ranks,
    weights: bool,
    quantization: str | None,
    why: str | None = None,
) -> tuple[PreTrainedModel, TensorParallelPlan]:
    """Load the rank's shard of a checkpoint, on its device; without weights, on torch's meta
    device.

    quantization, why: as `load_weights` takes them. Raises ModelError for a model that cannot be
    cut, before weights are read.
    """
    if source.gguf is not None:
        raise ModelError(
            f"model {source.name} is a GGUF file, which several GPUs do not read: leave "
            "--tensor-parallel-size at 1, or give the model's folder in safetensors"
        )
    stored = stored_quantization(source, config, quantization)
    if isinstance(stored, str):
        raise ModelError(
            f"model {source.name} is quantised ({stored}), which several GPUs do not read: leave "
            "--tensor-parallel-size at 1"
        )
    refuse_other_forms(source.name, stored, quantization)
    _refuse_as_stored(source.name, quantization)
    config = without_quantization(config)
    whole = build_on_meta(source, deepcopy(config), dtype)  # which it changes
    plan = plan_shards(whole, source.name, ranks.size)
    own = stored if isinstance(stored, StoredFP8) else None
    form = None if isinstance(stored, StoredFP8) else stored
    has_fp8 = quantization is not None or own is not None
    found = places_of_shards(whole, plan, source.name, own) if has_fp8 else []
    if weights:
        if has_fp8:
            check(found, whole, source.name, ranks.device)
        kind, is_stored = type(whole), own is not None
        shard = read_own_shards(source, config, kind, dtype, plan, ranks, found, is_stored, form)
        if form is not None:
            tell(source.name, form, dtype, quantization, why)
    else:
        shard = whole
        keep_own_shards(shard, plan, ranks)
        install_on_meta(shard, found)
    install_collectives(shard, plan, ranks)
    return shard, plan


def _refuse_as_stored(name: str, quantization: str | None) -> None:
    if quantization in KEPT:
        raise ModelError(
            f"model {name}: {KEPT[quantization].name} is not multiplied as it is stored on several "
            f"GPUs: leave out --quantization {quantization}, or leave --tensor-parallel-size at 1"
        )


def random_shard(
    config: Any, name: str, dtype: torch.dtype, ranks: Ranks, quantization: str | None
) -> tuple[PreTrainedModel, TensorParallelPlan]:
    """The rank's shard of a model of random weights, made on its device; the whole is nowhere.

    What is not cut is alike on all ranks. Raises ModelError for a model that cannot be cut.
    """
    _refuse_as_stored(name, quantization)
    with quiet(), torch.device("meta"):
        shard = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="eager")
    plan = plan_shards(shard.eval(), name, ranks.size)
    found = [] if quantization is None else places(shard, plan.shards_of)
    if quantization is not None:
        check(found, shard, name, ranks.device)
    keep_own_shards(shard, plan, ranks)
    shard.to_empty(device=ranks.device)
    torch.manual_seed(ranks.rank)
    shard.init_weights()
    for path, parameter in shard.named_parameters():
        if path not in plan.shards:
            ranks.broadcast(parameter.data)
    quantise_shard(shard, found, plan, ranks, name)
    install_collectives(shard, plan, ranks)
    return shard, plan


def plan_shards(whole: PreTrainedModel, name: str, size: int) -> TensorParallelPlan:
    """How a model on torch's meta device is cut; it is left as it was. Raises ModelError."""
    with quiet():
        held = hold_frequencies(whole)
        experts = whole.get_experts_implementation()
        whole.set_experts_implementation("batched_mm")  # the one that needs no numbers
        whole.set_attn_implementation(PROBE)
        try:
            recording, _ = probe(whole, name)
        finally:
            whole.set_attn_implementation("eager")
            whole.set_experts_implementation(experts)
            for frequencies in held:
                frequencies.release()
    return make_plan(whole, recording, name, size)
