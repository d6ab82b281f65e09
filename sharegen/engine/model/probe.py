"""What a model's attention looks like, learnt by watching it rather than from its config.

Configs lie by omission (tensor parallel, MLA, layers without attention), so every model is run once
on two tokens through a recording attention and a recording mask function. What the recording
cannot vouch for is refused by name: nothing is ever silently wrong.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from sharegen.engine.model.attention.latents import Spreads
from sharegen.engine.model.attention.layer_spec import LayerSpec
from sharegen.engine.model.interface import ValuesOnly, active, each_layer_once, own_heads
from sharegen.engine.model.states.mixers import (
    CACHE_ARGUMENTS,
    HANDS_STATES_OVER,
    FreshStates,
    Mixer,
    Watching,
    choose_by_device,
    install,
)
from sharegen.errors import ModelError

IMPLEMENTATION = "sharegen_probe"
_ATTENTION_KINDS = {"full_attention", "sliding_attention", "chunked_attention", "attention"}
_CHOOSING = "indexed_attention"

# Keyword arguments of attention functions that say nothing about the result in inference without
# a cache, or that the recording reads by name.
_HARMLESS = {
    "cache_position", "cu_seq_lens_k", "cu_seq_lens_q", "deterministic", "dropout",
    "is_causal", "kwargs", "layer_idx", "logits_to_keep", "max_length_k", "max_length_q",
    "max_seqlen_k", "max_seqlen_q", "num_items_in_batch", "output_attentions",
    "output_hidden_states", "output_router_logits", "past_key_values", "position_embeddings",
    "position_ids", "return_dict", "use_cache",
}  # fmt: skip


@dataclass(eq=False)
class _Mask:
    """A mask that the model asked for: what it means, and the tensor by which we know it again."""

    tensor: torch.Tensor
    window: int | None
    attention_chunk: int | None
    causal: bool


@dataclass
class Recording:
    """An attention context that writes down the calls and lets every token see only itself.

    Since attention then mixes no tokens, anything in the output of a token that depends on another
    token comes from elsewhere: a state layer, a convolution, a token shift.

    dtype: of the values that attention is handed, None before it is called. A module whose output
    head was cast to float32 computes its layers in another dtype than its first weight has.
    """

    modules: list[nn.Module] = field(default_factory=list)
    layers: list[LayerSpec] = field(default_factory=list)
    masks: list[_Mask] = field(default_factory=list)
    mixers: list[Mixer] = field(default_factory=list)
    spreads: Spreads = field(default_factory=Spreads)
    dtype: torch.dtype | None = None
    problem: str | None = None

    def note_mask(self, mask_function: Callable[..., Any], **kwargs: Any) -> torch.Tensor:
        """Stand in for transformers' mask functions: [1, 1, q, kv] of zeros."""
        size = kwargs.get("local_size")
        device = torch.device(kwargs["device"])
        window, chunk, causal = _mask_kind(mask_function, size, kwargs.get("config"), device)
        shape = (kwargs["batch_size"], 1, kwargs["q_length"], kwargs["kv_length"])
        tensor = torch.zeros(shape, dtype=kwargs.get("dtype"), device=device)
        self.masks.append(_Mask(tensor, window, chunk, causal))
        return tensor

    def note_call(
        self,
        module: nn.Module,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Note a call of attention, and compute it.

        Args:
            q: [1, Hq, T, Dk].
            k, v: [1, Hkv, T, *].

        Returns:
            [1, T, Hq, Dv].
        """
        q, k, v = own_heads(module, q, k, v)
        scaling = kwargs.pop("scaling", None)
        window = kwargs.pop("sliding_window", None)
        softcap = kwargs.pop("softcap", None)
        sinks = kwargs.pop("s_aux", None)
        layer = LayerSpec(
            num_heads=q.shape[1],
            num_kv_heads=k.shape[1],
            key_size=k.shape[3],
            value_size=v.shape[3],
            scaling=float(q.shape[3] ** -0.5 if scaling is None else scaling),
            window=int(window) if window is not None else None,
            softcap=float(softcap) if softcap else None,
            has_sinks=sinks is not None,
            latent=self.spreads.of(module, q, k, v),
        )
        self.layers.append(self._with_mask(layer, attention_mask))
        self.modules.append(module)
        self.dtype = v.dtype
        unknown = [
            name
            for name, value in kwargs.items()
            if value is not None and value is not False and name not in _HARMLESS
        ]
        if unknown:
            self.problem = f"passes {', '.join(sorted(unknown))} to its attention"
        if q.shape[1] % k.shape[1] or q.shape[2] != k.shape[2]:
            self.problem = "attends to other tokens than its own"
        return v.repeat_interleave(q.shape[1] // k.shape[1], dim=1).transpose(1, 2).contiguous()

    def _with_mask(self, layer: LayerSpec, attention_mask: torch.Tensor | None) -> LayerSpec:
        if attention_mask is None:
            return layer
        for mask in self.masks:
            if attention_mask is mask.tensor or attention_mask._base is mask.tensor:
                if not mask.causal:
                    self.problem = "uses a mask that is neither causal, a window nor chunks"
                # The mask is what eager attention heeds: olmoe names a window that it lacks.
                return replace(layer, window=mask.window, attention_chunk=mask.attention_chunk)
        self.problem = "builds its own attention mask"
        return layer


def _mask_kind(
    visible: Callable[..., Any],
    size: int | None,
    config: Any,
    device: torch.device,
) -> tuple[int | None, int | None, bool]:
    """Return (window, chunk, whether it is one of the kinds known) of a transformers mask function.

    device: the model's, of whose tensors the function may make use.
    """
    span = size or 8
    on_meta = device.type == "meta"  # where tensors hold no numbers
    device = torch.device("cpu") if on_meta else device
    zero = torch.zeros((), dtype=torch.long, device=device)
    starts = []
    for query in (0, 1, span - 1, span, span + 1, 2 * span, 2 * span + 1):
        keys = torch.arange(query + 3, device=device)
        try:
            seen = visible(zero, zero, zero + query, keys)
        except RuntimeError:
            if not on_meta:
                raise
            # It closes over tensors that hold no numbers, as chunks do (over the padding).
            chunked = size is not None and size == getattr(config, "attention_chunk_size", None)
            return (None, size, True) if chunked else (size, None, True)
        start = int(seen.long().argmax())
        if not torch.equal(seen.expand(query + 3), (keys >= start) & (keys <= query)):
            return None, None, False
        starts.append((query, start))
    if all(start == 0 for _, start in starts):
        return None, None, True
    if all(start == max(0, query - span + 1) for query, start in starts):
        return span, None, True
    if all(start == query // span * span for query, start in starts):
        return None, span, True
    return None, None, False


_recording: Recording | None = None


def _probe_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    assert _recording is not None
    return _recording.note_call(module, query, key, value, attention_mask, **kwargs), None


def _probe_mask(*, mask_function: Callable[..., Any], **kwargs: Any) -> torch.Tensor:
    assert _recording is not None
    return _recording.note_mask(mask_function, **kwargs)


AttentionInterface.register(IMPLEMENTATION, _probe_attention)
AttentionMaskInterface.register(IMPLEMENTATION, _probe_mask)


def probe(model: PreTrainedModel, name: str) -> tuple[Recording, int]:
    """Watch a model whose attention is set to IMPLEMENTATION: (the recording, the vocab size).

    Works on the meta device too, where only what depends on numbers goes unchecked.
    Raises ModelError, naming the reason, for a model that the engine could not run exactly.
    """
    text_config = model.config.get_text_config()
    kinds = getattr(text_config, "layer_types", None) or getattr(
        text_config, "layers_block_type", None
    )
    others = sorted(set(kinds or ()) - _ATTENTION_KINDS)
    if _CHOOSING in others:
        raise refusal(name, f"it has {_CHOOSING} layers, in which every query chooses its keys")
    size = embedding_weight(model).shape[0]
    mixers = _mixers(model, name, others, [size // 3, size // 2]) if others else []
    with ExitStack() as undo:
        install(mixers, undo)
        recording, logits = _record(model, name, [size // 3, size // 2], mixers)
        _, changed = _record(model, name, [size // 4, size // 2], mixers)
    recording.mixers = mixers
    if not recording.layers and not mixers:
        raise refusal(name, "it never calls transformers' attention interface")
    if recording.layers and "position_ids" not in inspect.signature(model.forward).parameters:
        raise refusal(name, "its forward takes no position_ids")
    if recording.problem is not None:
        raise refusal(name, f"it {recording.problem}")
    depth = getattr(text_config, "num_hidden_layers", 0)
    distinct = len({id(module) for module in recording.modules})
    if distinct < len(recording.modules) and (not mixers or len(recording.modules) > depth):
        raise refusal(name, "it calls the attention of a layer more than once")
    if len(recording.layers) < depth and not mixers:
        raise refusal(name, f"only {len(recording.layers)} of its {depth} layers call attention")
    if logits.device.type != "meta":
        check_numbers(torch.stack([logits[1], changed[1]]), name)
        if not torch.allclose(logits[1].float(), changed[1].float(), rtol=1e-2, atol=1e-3):
            raise refusal(name, "it mixes tokens outside attention (a state or convolution)")
    return recording, logits.shape[-1]


def _mixers(model: PreTrainedModel, name: str, others: list[str], tokens: list[int]) -> list[Mixer]:
    """What keeps states in a model with such layers; seen in a forward over transformers' cache."""
    layers = f"it has {', '.join(others)} layers"
    if not HANDS_STATES_OVER:
        raise refusal(
            name,
            f"{layers}, whose states transformers {transformers.__version__} does not hand over: "
            "5.23 or later does",
        )
    choose_by_device(model)
    watching = Watching(model)
    known = inspect.signature(model.forward).parameters
    argument = next((name for name in CACHE_ARGUMENTS if name in known), None)
    failed: BaseException | None = None
    if argument is not None:
        cache = {argument: watching, "use_cache": True}
        try:
            with watching.over(model):
                _record(model, name, tokens, cache=cache)
        except ModelError as error:
            failed = error.__cause__
            if not isinstance(failed, ValueError):  # with which a model says which cache
                raise
    if not watching.layer_of:
        if failed is not None and set(model.config.get_text_config().layer_types) <= set(others):
            said = " ".join(str(failed).split())
            raise refusal(name, f"{layers} alone, over which its own cache fails: {said:.200}")
        raise refusal(name, f"{layers}, whose states do not go through transformers' cache")
    if watching.others & watching.layer_of.keys():
        raise refusal(
            name, f"{layers}, whose states are kept by modules that return no plain tensors"
        )
    mixers = watching.mixers()
    # Only projections have a bias that may stand for what is before the first token.
    if not all(_begins_with_zeros(mixer, model) for mixer in mixers if mixer.results):
        raise refusal(name, f"{layers}, whose states do not begin with zeros")
    return mixers


def _begins_with_zeros(mixer: Mixer, model: PreTrainedModel) -> bool:
    """Whether a mixer's states begin with zeros; taken as true for a model on the meta device."""
    device = next(mixer.module.parameters()).device
    if device.type == "meta":
        return True
    weight = embedding_weight(model)
    with torch.no_grad():
        return mixer.begins_with_zeros(weight.new_zeros(1, 1, weight.shape[1], device=device))


def check_numbers(logits: torch.Tensor, name: str) -> None:
    """Raise ModelError where some row of logits [n, vocabulary] is no distribution."""
    if not logits.float().amax(-1).isfinite().all():  # single ones may be -inf
        raise ModelError(
            f"model {name}: its logits are NaN or infinite: {remedy(str(logits.dtype))}"
        )


def remedy(dtype: str) -> str:
    """What to do about logits in a dtype of this name that are no numbers."""
    if dtype.removeprefix("torch.") == "float16":
        return "float16 holds no number above 65,504: use --dtype bfloat16"
    return "the checkpoint seems to be broken"


def _record(
    model: PreTrainedModel,
    name: str,
    tokens: list[int],
    mixers: Sequence[Mixer] = (),
    cache: dict[str, Any] | None = None,
) -> tuple[Recording, torch.Tensor]:
    """Run a trial that records its attention. mixers: which hand their tokens over, each a sequence
    of its own; cache: to run with.
    """
    global _recording
    device = embedding_weight(model).device
    inputs = {"input_ids": torch.tensor([tokens], device=device)}
    if "position_ids" in inspect.signature(model.forward).parameters:
        inputs["position_ids"] = torch.tensor([[0, 1]], device=device)
        if device.type == "meta":  # keeps transformers from looking into the positions
            inputs["attention_mask"] = torch.ones((1, 2), dtype=torch.long)  # it looks into this
    _recording = recording = Recording()
    try:
        once = each_layer_once(0, len(mixers))  # attention does not come through the interface here
        watched = recording.spreads.watch(model)
        with torch.no_grad(), active(ValuesOnly(), FreshStates(mixers, 1)), once, watched:
            logits = model(**inputs, **(cache or {"use_cache": False})).logits[0]
    except (RuntimeError, ValueError, TypeError, KeyError, AttributeError, IndexError,
            NotImplementedError) as error:  # fmt: skip
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        if device.type == "meta":
            raise ModelError(
                f"model {name} cannot be planned from its config alone: its forward needs numbers"
            ) from error
        raise refusal(name, f"its forward fails on two tokens: {reason}") from error
    finally:
        _recording = None
    return recording, logits


def embedding_weight(model: PreTrainedModel) -> torch.Tensor:
    """The input embedding: [vocabulary, hidden]; it says where the model's inputs go."""
    weight = model.get_input_embeddings().weight
    assert isinstance(weight, torch.Tensor)
    return weight


def refusal(name: str, reason: str) -> ModelError:
    """The one line with which a model that loads but would not be exact is turned away."""
    return ModelError(f"model {name} is not supported: {reason}")
