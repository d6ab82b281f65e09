"""How a model is cut into the shards of several ranks: attention by heads, the rest by columns.

A projection into heads or into an MLP's inner columns is cut by its outputs, the one that leads
back by its inputs, and the ranks' results are summed; so two sums a layer are all that is said.
What a module does is known by its name and by who called attention; only architectures for which
the tests prove that this gives one process's tokens are cut at all. transformers' own plans gather
q, k and v of some models, leave others whole, and differ from version to version.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

import torch
from torch import nn
from transformers import PreTrainedModel

from sharegen.engine.model.attention.layer_spec import LayerSpec
from sharegen.engine.model.probe import Recording
from sharegen.engine.model.tensor_parallel.ranks import share
from sharegen.errors import ModelError

# fmt: off
DIVISIBLE = frozenset({
    "afmoe", "apertus", "arcee", "aria_text", "biogpt", "cohere", "cohere2", "cohere2_moe",
    "cwm", "deepseek_v2", "deepseek_v3", "dots1", "ernie4_5", "ernie4_5_moe", "exaone4",
    "exaone_moe", "flex_olmo", "flint", "gemma", "gemma2", "gemma3_text", "gemma4_text", "glm",
    "glm4", "glm4_moe", "glm4_moe_lite", "gpt_neox", "gpt_oss", "granite", "granite_swa",
    "granitemoe", "granitemoe_swa", "granitemoeshared", "helium", "hunyuan_v1_dense",
    "hunyuan_v1_moe", "hy_v3", "hyperclovax", "iquestcoder", "jais2", "kolibri1", "laguna",
    "llama", "llama4_text", "mellum", "mimo_v2_flash", "minicpm3", "minimax_m2", "ministral",
    "ministral3", "mistral", "mixtral", "nanochat", "nemotron", "olmo", "olmo2", "olmo3",
    "olmoe", "phi", "phi3", "phimoe", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "seed_oss",
    "smollm3", "solar_open", "starcoder2", "vaultgemma", "youtu",
})
# fmt: on
"""The architectures for which the tests prove that the shards draw one process's tokens."""

# Children of an attention module, by what their outputs (or, of the last, inputs) are laid out in.
_BY_QUERY_HEADS = {"q_proj", "q_b_proj", "query_key_value", "g_proj", "gate_proj"}
_BY_KV_HEADS = {"k_proj", "v_proj", "kv_b_proj"}
_ALL_IN_ONE = {"qkv_proj"}
_OUT_OF_HEADS = {"o_proj", "out_proj", "dense"}
_QUERY_NORMS = {"q_norm", "query_layernorm", "q_layernorm"}
_KEY_NORMS = {"k_norm", "key_layernorm", "k_layernorm"}

# The rest of a layer.
_INTO_COLUMNS = {"gate_proj", "up_proj", "fc1", "c_fc", "dense_h_to_4h"}
_PAIRED_COLUMNS = {"gate_up_proj", "input_linear"}  # gate, then up
_OUT_OF_COLUMNS = {"down_proj", "fc2", "c_proj", "dense_4h_to_h", "output_linear"}

_ALIGNMENT = 16  # bytes that tensor cores take at once; grouped products refuse rows of others

# Experts' weights are [experts, out, in]; of these [experts, in, out], and gate and up of the
# first lie side by side, column by column.
_INTERLEAVED = {"gpt_oss"}
_TRANSPOSED = {"gpt_oss", "llama4_text", "aria_text"}


@dataclass(frozen=True)
class ShardSpec:
    """A parameter of which a rank has some units along one dimension.

    pieces: (length, units) of what follows one another there, each cut by itself.
    """

    dim: int
    pieces: tuple[tuple[int, int], ...]

    def take(self, whole: torch.Tensor, rank: int, size: int) -> torch.Tensor:
        """A view of the rank's shard, or a copy where it has several pieces."""
        shards = []
        lengths = [length for length, _ in self.pieces]
        for piece, (length, units) in zip(whole.split(lengths, self.dim), self.pieces, strict=True):
            first, count = share(units, rank, size)
            unit = length // units
            shards.append(piece.narrow(self.dim, first * unit, count * unit))
        return shards[0] if len(shards) == 1 else torch.cat(shards, self.dim)


@dataclass(frozen=True)
class OnFirstRank:
    """A bias inside a sum over the ranks: rank 0 has it, the others zeros."""

    def take(self, whole: torch.Tensor, rank: int, size: int) -> torch.Tensor:
        return whole if rank == 0 else torch.zeros_like(whole)


@dataclass(frozen=True)
class Sum:
    """A module whose outputs are added up over the ranks."""


@dataclass(frozen=True)
class Gather:
    """A module whose outputs are put together to `length`."""

    length: int


@dataclass(frozen=True)
class LookUp:
    """An embedding of whose `length` rows each rank has some."""

    length: int


@dataclass(frozen=True)
class OverAllHeads:
    """A norm over all `heads` together: it sees them all, and the rank's own go on."""

    heads: int


@dataclass(frozen=True)
class Spread:
    """A projection into q, k and v at once, whose outputs the model takes apart by their places.

    The rank's own columns go to their places and zeros to the others, which attention leaves out.
    pieces: (length, heads) of q, k and v.
    """

    pieces: tuple[tuple[int, int], ...]


Collective = Sum | Gather | LookUp | OverAllHeads | Spread


@dataclass(frozen=True)
class TensorParallelPlan:
    """What a rank of `size` has, by the names of the whole model.

    shards: parameters that are cut; the others every rank has whole. collectives: what a module
    does beside its own forward. layers: the attention of a rank's shard.
    """

    size: int
    layers: list[LayerSpec]
    shards: dict[str, ShardSpec | OnFirstRank] = field(default_factory=dict)
    collectives: dict[str, Collective] = field(default_factory=dict)

    def shards_of(self, path: str, whole: torch.Tensor) -> list[torch.Tensor]:
        """Return each rank's shard of a parameter, by rank; one where all have the whole of it."""
        spec = self.shards.get(path)
        if spec is None:
            return [whole]
        return [spec.take(whole, rank, self.size) for rank in range(self.size)]


def make_plan(
    model: PreTrainedModel, recording: Recording, name: str, size: int
) -> TensorParallelPlan:
    """Plan the shards of a model that was probed; its weights are not looked at.

    Raises ModelError, in one line, for an architecture or a number of heads that is not cut.
    """
    kind = model.config.get_text_config().model_type
    if not type(model).__module__.startswith("transformers."):
        raise _refusal(name, size, "it brings its own code")
    if kind not in DIVISIBLE:
        raise _refusal(name, size, f"sharegen has no plan for {kind}")
    for layer in recording.layers:
        _check_heads(layer, name, size)
    names = {id(module): path for path, module in model.named_modules()}
    own = [
        replace(
            layer,
            num_heads=layer.num_heads // size,
            num_kv_heads=max(1, layer.num_kv_heads // size),
        )
        for layer in recording.layers
    ]
    plan = TensorParallelPlan(size, own)
    inside: set[str] = set()  # attention
    for module, layer in zip(recording.modules, recording.layers, strict=True):
        path = names[id(module)]
        _cut_attention(plan, path, module, layer)
        inside.update(names[id(submodule)] for submodule in module.modules())
    roots = {_layer_of(names[id(module)]) for module in recording.modules}
    for path, module in model.named_modules():
        if path not in inside and _layer_of(path) in roots:
            _cut_columns(plan, path, module, kind)
    _cut_vocabulary(plan, model, names)
    return plan


def _check_heads(layer: LayerSpec, name: str, size: int) -> None:
    heads, kv_heads = layer.num_heads, layer.num_kv_heads
    fitting = [n for n in range(2, heads + 1) if _divides(heads, kv_heads, n)]
    if size not in fitting:
        raise _refusal(
            name, size,
            f"it has {heads} attention heads on {kv_heads} of keys and values: "
            f"--tensor-parallel-size may be {', '.join(map(str, [1, *fitting]))}",
        )  # fmt: skip


def _divides(heads: int, kv_heads: int, size: int) -> bool:
    return heads % size == 0 and (kv_heads % size == 0 or size % kv_heads == 0)


def _refusal(name: str, size: int, reason: str) -> ModelError:
    return ModelError(f"model {name} cannot be cut into {size} shards: {reason}")


def _layer_of(path: str) -> str | None:
    """Return the layer of a module: "model.layers.3" of "model.layers.3.self_attn"."""
    found = re.match(r"(.*?\.\d+)(\.|$)", path)
    return found[1] if found else None


def _cut_attention(
    plan: TensorParallelPlan, path: str, module: nn.Module, layer: LayerSpec
) -> None:
    heads, kv_heads = layer.num_heads, layer.num_kv_heads
    for child, submodule in module.named_children():
        inner = f"{path}.{child}"
        if child in _BY_QUERY_HEADS:
            _cut_outputs(plan, inner, submodule, heads)
        elif child in _BY_KV_HEADS:
            _cut_outputs(plan, inner, submodule, kv_heads)
        elif child in _ALL_IN_ONE:
            lengths = (
                heads * layer.key_size,
                kv_heads * layer.key_size,
                kv_heads * layer.value_size,
            )
            pieces = tuple(zip(lengths, (heads, kv_heads, kv_heads), strict=True))
            for name, _ in submodule.named_parameters():
                plan.shards[f"{inner}.{name}"] = ShardSpec(0, pieces)
            plan.collectives[inner] = Spread(pieces)
        elif child in _OUT_OF_HEADS:
            _cut_inputs(plan, inner, submodule, heads)
        elif child in _QUERY_NORMS | _KEY_NORMS:
            _cut_norm(plan, inner, submodule, heads if child in _QUERY_NORMS else kv_heads, layer)
    for name, parameter in module.named_parameters(recurse=False):
        if name == "sinks":
            plan.shards[f"{path}.{name}"] = ShardSpec(0, ((parameter.shape[0], heads),))


def _cut_norm(
    plan: TensorParallelPlan, path: str, norm: nn.Module, heads: int, layer: LayerSpec
) -> None:
    """A norm of each head by itself has one head's weights, which stay; or weights for each."""
    for name, weight in norm.named_parameters():
        if weight.ndim == 2 and weight.shape[0] == heads:
            plan.shards[f"{path}.{name}"] = ShardSpec(0, ((heads, heads),))
        elif weight.shape != (layer.key_size,):
            plan.collectives[path] = OverAllHeads(heads)


def _cut_columns(plan: TensorParallelPlan, path: str, module: nn.Module, kind: str) -> None:
    child = path.rpartition(".")[2]
    if isinstance(module, nn.Linear):
        if child in _INTO_COLUMNS:
            _cut_outputs(plan, path, module, _units(module.out_features, module.weight, plan.size))
        elif child in _PAIRED_COLUMNS:
            half = module.out_features // 2
            pair = ShardSpec(0, ((half, _units(half, module.weight, plan.size)),) * 2)
            plan.shards.update({f"{path}.{name}": pair for name, _ in module.named_parameters()})
        elif child in _OUT_OF_COLUMNS:
            _cut_inputs(plan, path, module, _units(module.in_features, module.weight, plan.size))
    elif "gate_up_proj" in module._parameters:
        _cut_experts(plan, path, module, kind)


def _cut_experts(plan: TensorParallelPlan, path: str, module: nn.Module, kind: str) -> None:
    """Cut gate_up_proj and down_proj of all experts; every rank has some columns of each expert."""
    into, out_of = (2, 1) if kind in _TRANSPOSED else (1, 2)
    for name, weight in module.named_parameters(recurse=False):
        if name.startswith("gate_up_proj"):
            dim = into if weight.ndim == 3 else 1
            half = weight.shape[dim] // 2
            units = _units(half, weight, plan.size)
            pieces = ((2 * half, units),) if kind in _INTERLEAVED else ((half, units),) * 2
            plan.shards[f"{path}.{name}"] = ShardSpec(dim, pieces)
        elif name == "down_proj":
            columns = weight.shape[out_of]
            units = _units(columns, weight, plan.size)
            plan.shards[f"{path}.{name}"] = ShardSpec(out_of, ((columns, units),))
        elif name == "down_proj_bias":
            plan.shards[f"{path}.{name}"] = OnFirstRank()
    plan.collectives[path] = Sum()


def _units(columns: int, weight: torch.Tensor, size: int) -> int:
    """How many units the columns of an MLP are cut in: single ones where they would not do else."""
    together = _ALIGNMENT // weight.element_size()
    units = columns // together if columns % together == 0 else columns
    units = units if units >= size else columns
    assert units >= size, f"{columns} columns for {size} ranks"
    return units


def _cut_outputs(plan: TensorParallelPlan, path: str, module: nn.Module, units: int) -> None:
    for name, parameter in module.named_parameters():
        plan.shards[f"{path}.{name}"] = ShardSpec(0, ((parameter.shape[0], units),))


def _cut_inputs(plan: TensorParallelPlan, path: str, module: nn.Module, units: int) -> None:
    for name, parameter in module.named_parameters():
        if name == "bias":
            plan.shards[f"{path}.{name}"] = OnFirstRank()
        else:
            plan.shards[f"{path}.{name}"] = ShardSpec(1, ((parameter.shape[1], units),))
    plan.collectives[path] = Sum()


def _cut_vocabulary(
    plan: TensorParallelPlan, model: PreTrainedModel, names: dict[int, str]
) -> None:
    """Cut both ends of the model by tokens, so that weights that both share are cut alike."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    assert isinstance(embedding, nn.Embedding) and isinstance(head, nn.Linear)
    for module in (embedding, head):
        path = names[id(module)]
        _cut_outputs(plan, path, module, module.weight.shape[0])
    plan.collectives[names[id(embedding)]] = LookUp(embedding.num_embeddings)
    plan.collectives[names[id(head)]] = Gather(head.out_features)
