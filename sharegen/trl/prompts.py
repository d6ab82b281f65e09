"""A trainer's prompts: equal ones are one group, and each is templated and tokenised once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sharegen.errors import RequestError

Prompt = str | list[dict[str, Any]]
"""A text, or the turns of a conversation."""


@dataclass(frozen=True)
class Group:
    """A prompt that a trainer asks for several times.

    token_ids: as the trainer's own generation would feed them. places: where it stands among the
        prompts of the call, one for each sample that is wanted.
    """

    token_ids: list[int]
    places: tuple[int, ...]


def grouped(prompts: Sequence[Prompt], trainer: Any) -> list[Group]:
    """The groups of a call, in the order of their first prompts.

    Raises RequestError for a prompt that is no text.
    """
    places: dict[str, list[int]] = {}
    for place, prompt in enumerate(prompts):
        places.setdefault(_key(prompt, place), []).append(place)
    firsts = [prompts[each[0]] for each in places.values()]
    return [
        Group(list(ids), tuple(each))
        for ids, each in zip(_tokenised(firsts, trainer), places.values(), strict=True)
    ]


def _key(prompt: Prompt, place: int) -> str:
    """What equal prompts have in common."""
    if isinstance(prompt, str):
        return prompt
    for turn in prompt:
        content = turn.get("content")
        parts = content if isinstance(content, list) else []
        kinds = {part.get("type", "text") for part in parts if isinstance(part, dict)}
        if other := kinds - {"text"}:
            raise RequestError(
                f"prompt {place} has a part of type {min(map(str, other))!r}: this rollout takes "
                "texts alone"
            )
    return json.dumps(prompt, sort_keys=True)


def _tokenised(prompts: Sequence[Prompt], trainer: Any) -> list[list[int]]:
    """Token ids of prompts, by the calls with which TRL tokenises them for its own generation."""
    if isinstance(prompts[0], str):
        return trainer.processing_class(text=list(prompts))["input_ids"]
    return trainer.processing_class.apply_chat_template(
        conversation=list(prompts),
        chat_template=trainer.chat_template,
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        **trainer.chat_template_kwargs,
    )["input_ids"]
