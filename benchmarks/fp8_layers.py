"""What FP8 does to the layers of a large model, one after another, with random weights.

One layer is in memory at a time. Each is computed in float32 of its bfloat16 weights, then as a
job would compute it: in bfloat16, with FP8 weights, with FP8 keys and values, with both. Each way
is given what float32 gave the layer, for the error that the layer adds, and what the way itself
had made of all layers before, for what adds up.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel

from sharegen.engine.model.attention.layer_spec import LayerSpec
from sharegen.engine.model.fp8.products import check_device
from sharegen.engine.model.fp8.quantising import quantise_in_place
from sharegen.engine.model.interface import active
from sharegen.engine.model.load import IMPLEMENTATION
from sharegen.engine.model.self_check import DenseContext
from sharegen.kernels.fp8_blocks import from_fp8, least_exponent, to_fp8

WAYS = ("bfloat16", "FP8 weights", "FP8 KV", "both")
_VOCABULARY = 16  # hidden states go in, and no logits come out


@dataclass(frozen=True)
class LayerError:
    """Errors of one layer by way, root mean square.

    own: of what the layer adds to the hidden states, as a share of that, where float32 goes in.
    total: of the hidden states behind it, as a share of these, where the way's own go in.
    """

    layer: int
    own: dict[str, float]
    total: dict[str, float]


class FP8Context(DenseContext):
    """Whole sequences, all of whose keys and values are rounded as an FP8 KV cache rounds them."""

    def attend(
        self,
        layer_idx: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Tensor | None = None,
    ) -> Tensor:
        rounded = (from_fp8(*to_fp8(x, least_exponent(x.dtype))) for x in (k, v))
        k, v = (x.to(q.dtype) for x in rounded)
        return super().attend(layer_idx, q, k, v, sinks)


def layer_errors(
    config: Any, layers: int, tokens: int, device: torch.device, seed: int = 0
) -> Iterator[LayerError]:
    """Measure the errors layer by layer of a Llama of that config, for one sequence of random
    tokens.

    Weights are drawn as the config says, so are the embeddings that the first layer is given.
    Raises UsageError for a device without FP8, before anything is made.
    """
    check_device(device)
    config = copy.deepcopy(config)
    config.num_hidden_layers, config.vocab_size = 1, _VOCABULARY
    torch.manual_seed(seed)
    exact = torch.randn(tokens, config.hidden_size, device=device) * config.initializer_range
    streams = {way: exact.bfloat16() for way in WAYS}
    for index in range(layers):
        with device:
            model: Any = AutoModel.from_config(
                config, dtype=torch.bfloat16, attn_implementation=IMPLEMENTATION
            ).eval()
        model.norm = nn.Identity()
        before = exact
        [exact] = _forward(copy.deepcopy(model).float(), [before], DenseContext)
        own, total = {}, {}
        for way in WAYS:
            if way == "FP8 weights":
                fp8 = quantise_in_place(copy.deepcopy(model), "of random weights", device)
            part = fp8 if way in ("FP8 weights", "both") else model
            context = FP8Context if way in ("FP8 KV", "both") else DenseContext
            given, streams[way] = _forward(part, [before.bfloat16(), streams[way]], context)
            own[way] = ((given - exact).norm() / (exact - before).norm()).item()
            total[way] = ((streams[way] - exact).norm() / exact.norm()).item()
        yield LayerError(index + 1, own, total)


@torch.inference_mode()
def _forward(
    model: PreTrainedModel, sequences: list[Tensor], context: type[DenseContext]
) -> list[Tensor]:
    """Run sequences, [tokens, hidden] each, through the only layer of the model."""
    count, tokens = len(sequences), len(sequences[0])
    device = sequences[0].device
    position = torch.arange(tokens, device=device).repeat(count)
    sequence = torch.arange(count, device=device).repeat_interleave(tokens)
    with active(context([_spec(model.config)], sequence, position)):
        hidden = model(
            inputs_embeds=torch.cat(sequences)[None], position_ids=position[None], use_cache=False
        ).last_hidden_state[0]
    return list(hidden.split(tokens))


def _spec(config: Any) -> LayerSpec:
    size = config.head_dim
    return LayerSpec(
        config.num_attention_heads, config.num_key_value_heads, size, size, size**-0.5
    )  # fmt: skip
