"""How the harness's `hf` model draws: what `generate()` takes from the model's generation_config.

The harness hands a task's arguments to transformers' `generate()`, which fills in what they leave
open from generation_config.json, and then from its own defaults. What of that changes a text is
done here, too, or refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sharegen.common.parameters.sampling import FILTERS, PENALTIES
from sharegen.errors import UsageError

_OURS = {*FILTERS, *PENALTIES, "seed", "min_tokens", "stop_token_ids", "ignore_eos"}
_ALIKE = {"suppress_tokens", "bad_words_ids", "min_new_tokens", "min_length",
          "begin_suppress_tokens"}  # fmt: skip

# What changes no text, whatever it is: how it is computed, and what comes out beside it.
_IDLE = {"use_cache", "cache_implementation", "return_dict_in_generate", "output_scores",
         "output_logits", "output_attentions", "output_hidden_states", "pad_token_id",
         "length_penalty", "early_stopping", "renormalize_logits", "remove_invalid_values",
         "disable_compile", "compile_config"}  # fmt: skip

# What is not done here -> the values with which it changes nothing, beside None.
_NOT_HERE: dict[str, tuple[Any, ...]] = {
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1.0,),
    "num_beams": (1,),
    "num_beam_groups": (1,),
    "num_return_sequences": (1,),
    "penalty_alpha": (0,),
    "guidance_scale": (1.0,),
    "sequence_bias": (),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "exponential_decay_length_penalty": (),
    "watermarking_config": (),
    "token_healing": (False,),
    "stop_strings": (),
    "max_time": (),
    "dola_layers": (),
    "constraints": (),
    "force_words_ids": (),
}
_NOT_HERE_IN_DRAWS: dict[str, tuple[Any, ...]] = {
    "typical_p": (1.0,),
    "top_h": (),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
}
_TOP_K = 50
"""transformers' own where nobody says anything."""


def sampling_values(
    task: Mapping[str, Any],
    model: Mapping[str, Any],
    prompt_tokens: int,
    max_tokens: int,
    ends: Sequence[int],
    vocab_size: int,
) -> dict[str, Any]:
    """Arguments of SamplingParams for what the harness's `hf` model would draw.

    task: what the harness gives for `generate()`, do_sample among it. model: its
    generation_config.json. prompt_tokens, max_tokens: of this request. ends: the model's EOS
    tokens.

    Raises UsageError for what is not done here, with where it stands.
    """
    asked = dict(task)
    draws = bool(asked.pop("do_sample", False))
    _refuse(asked, model, draws)

    def value(name: str) -> Any:
        return asked[name] if name in asked else model.get(name)

    found = {name: asked[name] for name in _OURS & asked.keys() if asked[name] is not None}
    for name in FILTERS:
        found.pop(name, None)
        if draws and value(name) is not None:
            found[name] = value(name)
    if draws and "top_k" not in asked:
        found.setdefault("top_k", _TOP_K)
    if not draws:
        found["temperature"] = 0.0
    if value("repetition_penalty") is not None:
        found["repetition_penalty"] = value("repetition_penalty")
    words = value("bad_words_ids") or ()
    if any(len(word) > 1 for word in words):
        raise _refusal("bad_words_ids", words, "bad_words_ids" in asked)
    suppressed = [*(value("suppress_tokens") or ()), *_bad_tokens(words, ends)]
    barred = sorted({token for token in suppressed if 0 <= token < vocab_size})
    if barred:
        found["logit_bias"] = dict.fromkeys(barred, -math.inf)
    least = max(value("min_new_tokens") or 0, (value("min_length") or 0) - prompt_tokens)
    first = value("begin_suppress_tokens") or ()
    if first and set(first) != set(ends):
        raise _refusal("begin_suppress_tokens", first, "begin_suppress_tokens" in asked)
    least = max(least, bool(first))
    if least > 0:
        found.setdefault("min_tokens", min(least, max_tokens))
    return found


def _bad_tokens(words: Sequence[Sequence[int]], ends: Sequence[int]) -> list[int]:
    """Words of one token; transformers never bars an end as such."""
    return [token for word in words for token in word if token not in ends]


def _refuse(task: Mapping[str, Any], model: Mapping[str, Any], draws: bool) -> None:
    """Raise UsageError for what is not done here and changes a text."""
    others = _NOT_HERE | (_NOT_HERE_IN_DRAWS if draws else {})
    taken = _OURS | _ALIKE | _IDLE | (set() if draws else _NOT_HERE_IN_DRAWS.keys())
    unknown = [
        name
        for name, value in task.items()
        if name not in taken and not _changes_nothing(value, others.get(name))
    ]
    if unknown:
        raise UsageError(
            f"generation_kwargs: {', '.join(sorted(unknown))}: not known here: use "
            f"{', '.join(sorted(_OURS | _ALIKE))}"
        )
    for name, idle in others.items():
        if name not in task and not _changes_nothing(model.get(name), idle):
            raise _refusal(name, model[name])


def _refusal(name: str, value: Any, in_task: bool = False) -> UsageError:
    if in_task:
        return UsageError(f"generation_kwargs: {name} is {value!r:.40}: not done here")
    return UsageError(
        f"generation_config.json: {name} is {value!r:.40}, with which the harness's `hf` model "
        "would draw, and it is not known here: give ignore_generation_config=True in model_args "
        "to draw without what the file says"
    )


def _changes_nothing(value: Any, idle: tuple[Any, ...] | None) -> bool:
    return idle is not None and (value is None or value in idle)
