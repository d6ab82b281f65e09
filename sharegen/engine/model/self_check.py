"""A model against its own eager attention, for architectures that the tests don't cover.

Both sides are Hugging Face's modelling code; they differ in who computes attention and in how the
prompts are laid out. So the check sees what the probe can't: positions that the model counts by
itself, attention that the constants of the layers don't describe, rows that disturb each other.
"""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from sharegen.engine.model.attention.layer_spec import LayerSpec
from sharegen.engine.model.checkpoint.source import quiet
from sharegen.engine.model.fp8.products import E4M3
from sharegen.engine.model.interface import active
from sharegen.engine.model.loaded import LoadedModel
from sharegen.engine.model.probe import check_numbers, refusal
from sharegen.engine.model.states.mixers import WholeSequences, as_they_were

# fmt: off
TESTED = frozenset({
    "afmoe", "apertus", "arcee", "aria_text", "bailing_hybrid", "bamba", "biogpt", "bitnet",
    "cohere", "cohere2", "cohere2_moe", "cwm", "dbrx", "deepseek_v2", "deepseek_v3",
    "dots1", "ernie4_5", "ernie4_5_moe", "exaone4", "exaone_moe", "falcon_h1",
    "falcon_mamba", "flex_olmo", "flint", "gemma", "gemma2", "gemma3", "gemma3_text",
    "gemma3n_text", "gemma4_text", "glm", "glm4", "glm4_moe", "glm4_moe_lite", "gpt2",
    "gpt_bigcode", "gpt_neox", "gpt_oss", "granite", "granite_swa", "granitemoe",
    "granitemoe_swa", "granitemoehybrid", "granitemoeshared", "helium", "hunyuan_v1_dense",
    "hunyuan_v1_moe", "hy_v3", "hyperclovax", "iquestcoder", "jais2", "jamba", "jetmoe",
    "kimi_linear", "kolibri1", "laguna", "lfm2", "lfm2_moe", "lfm3", "llama", "llama4_text",
    "longcat_flash", "mamba", "mamba2", "mellum", "mimo_v2_flash", "minicpm3", "minimax_m2",
    "ministral", "ministral3", "mistral", "mixtral", "modernbert-decoder", "nanochat",
    "nemotron", "nemotron_h", "olmo", "olmo2", "olmo3", "olmo_hybrid", "olmoe", "opt",
    "persimmon", "phi", "phi3", "phimoe", "qwen2", "qwen2_moe", "qwen3", "qwen3_5_moe_text",
    "qwen3_5_text", "qwen3_moe", "qwen3_next", "seed_oss", "smollm3", "solar_open",
    "stablelm", "starcoder2", "vaultgemma", "youtu", "zamba", "zamba2", "zaya",
})
# fmt: on
"""The architectures whose exactness the tests prove, by transformers' model types."""


class DenseContext:
    """Exact attention over whole sequences that lie in one batch, in plain torch.

    The ground truth of the engine's contexts, and what the self-check at load runs on.

    sequence: [T] which sequence a row belongs to; position: [T] its position there. The rows of a
    sequence may come in any order but must all be present: there is no KV cache.
    """

    def __init__(
        self, layers: list[LayerSpec], sequence: torch.Tensor, position: torch.Tensor
    ) -> None:
        self._layers = layers
        self._distance = position[:, None] - position[None, :]
        self._visible = (sequence[:, None] == sequence[None, :]) & (self._distance >= 0)
        self._position = position

    def attend(
        self,
        layer_idx: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute a layer's attention.

        Args:
            q: [T, Hq, Dk].
            k: [T, Hkv, Dk].
            v: [T, Hkv, Dv].
            sinks: [Hq], or None.

        Returns:
            [T, Hq, Dv].
        """
        layer = self._layers[layer_idx]
        visible = self._visible
        if layer.window is not None:
            visible = visible & (self._distance < layer.window)
        if layer.attention_chunk is not None:
            chunk = self._position // layer.attention_chunk
            visible = visible & (chunk[:, None] == chunk[None, :])
        group = layer.num_heads // layer.num_kv_heads
        keys = k.repeat_interleave(group, dim=1).float()
        values = v.repeat_interleave(group, dim=1).float()
        scores = torch.einsum("thd,shd->hts", q.float(), keys) * layer.scaling
        if layer.softcap is not None:
            scores = layer.softcap * torch.tanh(scores / layer.softcap)
        scores = scores.masked_fill(~visible, float("-inf"))
        if sinks is not None:
            column = sinks.float()[:, None, None].expand(-1, len(q), 1)
            weights = torch.cat([scores, column], dim=-1).softmax(dim=-1)[..., :-1]
        else:
            weights = scores.softmax(dim=-1)
        return torch.einsum("hts,shd->thd", weights, values).to(q.dtype)


_PROMPT_LENGTHS = (19, 7)
_TOLERANCE_OF_FP8 = 0.5  # activations on the verge of two numbers of e4m3 may become either
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 1e-1}  # of the logits' norm


def self_check(loaded: LoadedModel, name: str) -> None:
    """Compare the logits of two prompts, shuffled into one batch. Raises ModelError."""
    generator = torch.Generator().manual_seed(0)
    prompts = [
        torch.randint(loaded.vocab_size, (length,), generator=generator).to(loaded.device)
        for length in _PROMPT_LENGTHS
    ]
    with as_they_were(loaded.mixers):
        expected = torch.cat(_eager_logits(loaded.model, prompts))
    check_numbers(expected, name)
    expected = expected.float()
    ids = torch.cat(prompts)
    position = torch.cat([torch.arange(len(prompt), device=loaded.device) for prompt in prompts])
    sequence = torch.cat([torch.full_like(prompt, i) for i, prompt in enumerate(prompts)])
    order = torch.randperm(len(ids), generator=generator).to(loaded.device)
    context = DenseContext(loaded.layers, sequence[order], position[order])
    rows = torch.arange(len(ids), device=loaded.device)
    states = WholeSequences(loaded.mixers, sequence[order], position[order])
    with torch.no_grad(), active(context, states):
        logits = loaded.forward(ids[order], position[order], rows).float()
    barred = expected.isneginf()  # by both, it makes no difference
    expected = expected.masked_fill(barred, 0.0)
    logits = logits.masked_fill(barred[order] & logits.isneginf(), 0.0)
    spread = (expected - expected.mean(dim=-1, keepdim=True)).norm()
    error = ((logits - expected[order]).norm() / spread).item()
    is_fp8 = any(weight.dtype is E4M3 for weight in loaded.model.parameters())
    if not error <= (_TOLERANCE_OF_FP8 if is_fp8 else _TOLERANCE[loaded.dtype]):
        raise refusal(
            name, f"its logits differ from those of its own eager attention (by {error:.1%})"
        )


def _eager_logits(model: PreTrainedModel, prompts: list[torch.Tensor]) -> list[torch.Tensor]:
    ours = model.config._attn_implementation
    with quiet():
        model.set_attn_implementation("eager")
        try:
            with torch.no_grad():
                return [model(input_ids=ids[None], use_cache=False).logits[0] for ids in prompts]
        finally:
            model.set_attn_implementation(ours)
