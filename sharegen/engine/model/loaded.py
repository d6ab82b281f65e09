"""A model that is ready for the engine, however it was loaded."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from sharegen.engine.model.attention.layer_spec import LayerSpec
from sharegen.engine.model.interface import ValuesOnly, active, each_layer_once
from sharegen.engine.model.last_layer import Wanted
from sharegen.engine.model.lent.lending import Lent
from sharegen.engine.model.lent.watching import Weights
from sharegen.engine.model.states.mixers import FreshStates, Mixer
from sharegen.engine.model.tensor_parallel.ranks import Ranks
from sharegen.errors import RequestError, UsageError


@contextmanager
def on(device: torch.device) -> Iterator[None]:
    """Open a block in which a GPU is the current one: Triton, streams and graphs go by that, not by
    tensors. An autocast that its caller is in has no part in it.
    """
    within = torch.is_autocast_enabled(device.type) if device.type != "meta" else False
    plain = torch.autocast(device.type, enabled=False) if within else nullcontext()
    with torch.cuda.device(device if device.type == "cuda" else -1), plain:
        yield


class _RowPositions:
    """Stands in for a KV cache in models that number the rows of a batch by themselves.

    Such a model adds the row's number to the length of the cache; this one's length is, row by
    row, what makes the sum the row's true position.
    """

    def __init__(self, position_ids: torch.Tensor) -> None:
        rows = torch.arange(len(position_ids), device=position_ids.device)
        self._length = position_ids - rows

    def get_seq_length(self, layer_idx: int = 0) -> torch.Tensor:
        return self._length

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, *args: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return key, value


@dataclass(eq=False)
class LoadedModel:
    """A model that is ready for the engine.

    model: the Hugging Face module, its attention switched to sharegen's until `release()`; where it
        is lent, only inside `ours` and `changing`.
    layers: one LayerSpec per attention call, in the order of the calls; mixers likewise.
    vocab_size: rows of the output head.
    fingerprint: a stable hash of the config and the weights' identity.
    quantization: what its weights were made as they were read; None: what the checkpoint has,
        or its numbers.
    ranks: where the module is one rank's shard of a model. Its layers are those of the shard, its
        logits the whole model's.
    weights: whether they are what they were, as somebody may ask who kept what they computed.
    wanted: where the last layer may be computed for some rows alone, who tells it for which.
    lent: what is ours on a module that belongs to somebody else.
    steady: whether a row's bits are not to depend on the others of a forward.
    """

    model: PreTrainedModel
    config: Any
    layers: list[LayerSpec]
    mixers: list[Mixer]
    eos_token_ids: tuple[int, ...]
    vocab_size: int
    dtype: torch.dtype
    device: torch.device
    fingerprint: str
    _limits: list[tuple[int, str]] = field(repr=False)  # (tokens, why)
    _undo: ExitStack = field(repr=False)
    ranks: Ranks | None = None
    wanted: Wanted | None = None
    lent: Lent | None = None
    steady: bool = False
    quantization: str | None = None
    _copies: list[Callable[[], None]] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        self.weights = Weights(self.model, is_lent=self.lent is not None)
        with self.ours():
            takes = inspect.signature(self.model.forward).parameters
        self._takes_rows = "logits_to_keep" in takes
        self._takes_positions = "position_ids" in takes
        # Llama 4 scales the queries of layers without RoPE by a position that it counts itself.
        text_config = self.config.get_text_config()
        self._counts_rows = bool(getattr(text_config, "attn_temperature_tuning", False))

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV cache that one token takes in all layers."""
        numbers = sum(
            layer.num_kv_heads * (layer.key_size + layer.value_size) for layer in self.layers
        )
        return numbers * self.dtype.itemsize

    @property
    def state_bytes(self) -> int:
        """Bytes of the states that one sequence has, in all mixers."""
        return sum(spec.bytes for mixer in self.mixers for spec in mixer.states)

    @property
    def weights_bytes(self) -> int:
        """The bytes of all weights, or of those of a rank's shard."""
        return sum(weight.nbytes for weight in self.model.parameters())

    @property
    def context_length(self) -> int:
        """The most tokens that prompt and output may have together."""
        return min(limit for limit, _ in self._limits)

    @property
    def declared_length(self) -> int:
        """The context length that the config names, which RoPE frequencies may not allow."""
        return self._limits[-1][0]

    def within(self, length: int) -> LoadedModel:
        """Return the same model with a context of so many tokens. Raises UsageError for more than
        it holds.
        """
        if length > self.context_length:
            raise UsageError(
                f"max_model_len is {length}, and the model's context holds {self.context_length}: "
                "give no more than that"
            )
        return replace(self, _limits=[(length, f"max_model_len is {length}")])

    def check_prompt(
        self,
        prompt: Sequence[int] | npt.NDArray[np.int32],
        max_tokens: int | None,
        may_fill: bool = False,
    ) -> None:
        """Raise RequestError, in one line, for a prompt that this model cannot go on from.

        max_tokens: that are to follow it; None for as many as there is room for. may_fill: whether
        it may be as long as the context, for what follows it is never fed.
        """
        if not len(prompt):
            raise RequestError("the prompt is empty: it needs at least one token")
        if max_tokens is not None:
            self.check_length(min(len(prompt) + max_tokens, self.declared_length))
        context = self.context_length
        if len(prompt) >= context + may_fill:
            raise RequestError(
                f"the prompt has {len(prompt)} tokens, but the model's context holds {context} "
                "and needs room for a new one: shorten the prompt or use fewer few-shot examples"
            )
        ids = np.asarray(prompt)
        if ids.min() < 0 or ids.max() >= self.vocab_size:
            raise RequestError(
                f"the prompt holds token ids outside the model's vocabulary of "
                f"{self.vocab_size}: is the tokenizer that of the model?"
            )

    def check_length(self, length: int) -> None:
        """Raise RequestError, naming the reason, if sequences of `length` tokens are too long."""
        limit, reason = min(self._limits, key=lambda pair: pair[0])
        if length > limit:
            raise RequestError(f"{length} tokens are too many for this model: {reason}")

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        logit_rows: torch.Tensor,
        every: bool = False,
    ) -> torch.Tensor:
        """Run the model on the tokens of a batch.

        Args:
            input_ids, position_ids: [T].
            logit_rows: [R], the rows of T whose logits are wanted.
            every: whether all rows go through all of the layers, as in decoding, for whatever
                logits.

        Returns:
            [R, vocab_size].

        Attention and mixers go to the contexts made current with `interface.active`.
        """
        inputs: dict[str, Any] = {"input_ids": input_ids[None], "use_cache": False}
        if self._takes_positions:
            inputs["position_ids"] = position_ids[None]
        if self._counts_rows:
            inputs["past_key_values"] = _RowPositions(position_ids)
        if self.ranks is not None:
            self.ranks.begin()
        with self.ours(), each_layer_once(len(self.layers), len(self.mixers)):
            few = 2 * len(logit_rows) <= len(input_ids)  # of more the layer is run twice for little
            if self.wanted is not None and not every and (few or self.steady):
                with self.wanted.only(logit_rows):
                    return self.model(**inputs).logits[0]
            if self._takes_rows:
                return self.model(**inputs, logits_to_keep=logit_rows).logits[0]
            return self.model(**inputs).logits[0, logit_rows]

    @torch.inference_mode()
    def trial_forward(self, tokens: int, rows: int) -> torch.Tensor:
        """A forward by itself, to see whether it runs, how long it takes and how much memory.

        tokens: their ids and positions differ, as far as vocabulary and context go. There is no KV
        cache, and a stand-in for attention, whose cost depends on prompts not known yet. Mixers
        take as many tokens as rows for a step of decoding, others for one prompt. Returns logits
        [rows, vocab_size], of the last token, the one before it, and so on; rows may be more than
        tokens.
        """
        index = torch.arange(tokens, device=self.device)
        states = FreshStates(self.mixers, 1 if tokens == rows else tokens)
        with active(ValuesOnly(), states):
            return self.forward(
                index % self.vocab_size,
                index % self.context_length,
                tokens - 1 - torch.arange(rows, device=self.device) % tokens,
                every=tokens == rows,
            )

    def ours(self) -> AbstractContextManager[None]:
        """Open a block in which the module is as the engine needs it; a forward does by itself."""
        return nullcontext() if self.lent is None else self.lent.ours()

    def changing(self) -> AbstractContextManager[None]:
        """Open a block that changes the module for the engine."""
        return nullcontext() if self.lent is None else self.lent.changing()

    def on_change(self, refresh: Callable[..., None], *arguments: Any) -> None:
        """Have copies that were made of weights made again, where they lie, by `refresh`."""
        self._copies.append(partial(refresh, *arguments))

    def refresh(self) -> None:
        """Take over what the weights have become, wherever there are copies of them."""
        with torch.inference_mode(False):  # which a trainer's weights know nothing of
            for refresh in self._copies:
                refresh()
        self.weights.look()  # some may lie elsewhere now

    def on_release(self, undo: Callable[..., object], *arguments: Any) -> None:
        """Have something that was done to the module undone by `release`."""
        self._undo.callback(undo, *arguments)

    def release(self) -> None:
        """Give the Hugging Face module back its own attention, and all else that was changed."""
        self.wanted = None
        self._copies.clear()
        with self.ours():
            self._undo.close()
        if self.lent is not None:
            self.lent.end()
