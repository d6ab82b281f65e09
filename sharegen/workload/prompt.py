"""Few-shot template -> prompt text -> token ids.

The examples are rendered once and stand in front of every problem, or where the prompt's template
says `{{ examples }}`. Whole prompts are tokenised: pieces tokenised apart and joined would not give
the tokens that the model was trained on. What they share is found later, on the token ids.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sharegen.errors import DataError, ModelError
from sharegen.workload import template
from sharegen.workload.template import RenderError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from sharegen.workload.configuration import Configuration

_BATCH = 1024  # prompts that are tokenised at once


@dataclass(frozen=True)
class Prompt:
    """A prompt before its tokens: plain text, or the turns of a chat.

    own: the part that is this problem's alone, without the examples.
    """

    content: str | list[dict[str, str]]
    own: str

    @property
    def is_chat(self) -> bool:
        return isinstance(self.content, list)

    def __str__(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "\n\n".join(f"[{turn['role']}]\n{turn['content']}" for turn in self.content)


class PromptTemplate:
    """A configuration's templates with the examples filled in.

    Raises DataError when an example does not have what its template names.
    """

    def __init__(self, configuration: Configuration, examples: Sequence[Mapping[str, Any]]):
        self._prompt = configuration.prompt
        self._chat = configuration.chat if configuration.chat.enabled else None
        self._examples = ""
        self._turns: list[dict[str, str]] = []
        try:
            if self._chat is None:
                parts = [template.render("example", configuration.example or "", fields)
                         for fields in examples]  # fmt: skip
                self._examples = "".join(parts)
            else:
                self._turns = self._example_turns(examples)
        except RenderError as error:
            raise DataError(f"few-shot: {error}") from None
        self._places_examples = "examples" in template.names(self._prompt)

    @property
    def fingerprint(self) -> str:
        """A hash of what all prompts have in common by construction."""
        text = json.dumps([self._examples, self._turns])
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def render(self, fields: Mapping[str, Any]) -> Prompt:
        """The prompt of one problem. Raises RenderError for a field that is missing."""
        if self._chat is not None:
            own = self._turn("user", fields)
            return Prompt([*self._turns, {"role": "user", "content": own}], own)
        if self._places_examples:
            whole, own = (
                template.render("prompt", self._prompt, {**fields, "examples": examples})
                for examples in (self._examples, "")
            )
            return Prompt(whole, own)
        own = template.render("prompt", self._prompt, fields)
        return Prompt(self._examples + own, own)

    def _example_turns(self, examples: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
        assert self._chat is not None
        turns = []
        if self._chat.system is not None:
            turns.append({"role": "system", "content": self._chat.system})
        for fields in examples:
            for role in ("user", "assistant"):
                turns.append({"role": role, "content": self._turn(role, fields)})
        return turns

    def _turn(self, role: str, fields: Mapping[str, Any]) -> str:
        text = getattr(self._chat, role)
        if text is None:
            raise RenderError(f"the recipe has no template 'chat.{role}'")
        return template.render(f"chat.{role}", text, fields)


def tokenise(prompts: Sequence[Prompt], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """Token ids of whole prompts, with BOS once where the tokenizer begins a text with it.

    A chat prompt is what the tokenizer's chat template makes of it, which brings its own special
    tokens. Special tokens that a tokenizer appends (EOS) are left out: a prompt goes on.

    Raises ModelError when a chat is asked of a tokenizer without a chat template.
    """
    texts = [_text(prompt, tokenizer) for prompt in prompts]
    head = _leading_special_tokens(tokenizer)
    ids: list[list[int]] = []
    for start in range(0, len(texts), _BATCH):
        batch = texts[start : start + _BATCH]
        ids += tokenizer(batch, add_special_tokens=False, verbose=False)["input_ids"]
    return [
        own if prompt.is_chat or own[: len(head)] == head else head + own
        for prompt, own in zip(prompts, ids, strict=True)
    ]


def _text(prompt: Prompt, tokenizer: PreTrainedTokenizerBase) -> str:
    if isinstance(prompt.content, str):
        return prompt.content
    if not tokenizer.chat_template:
        raise ModelError("--chat: the model's tokenizer has no chat template: use --no-chat")
    from jinja2 import TemplateError

    try:
        text = tokenizer.apply_chat_template(
            prompt.content, tokenize=False, add_generation_prompt=True
        )
    except TemplateError as error:
        raise ModelError(f"--chat: the tokenizer's chat template fails: {error}") from None
    assert isinstance(text, str)
    return text


def _leading_special_tokens(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """What the tokenizer puts before a text (BOS, or nothing)."""
    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a")["input_ids"]
    for start in range(len(whole) - len(bare) + 1):
        if whole[start : start + len(bare)] == bare:
            return whole[:start]
    return []


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """A hash of what decides the tokens: vocabulary, rules, special tokens, chat template."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    rules = backend.to_str() if backend is not None else sorted(tokenizer.get_vocab().items())
    special = [_leading_special_tokens(tokenizer), sorted(tokenizer.all_special_ids)]
    text = json.dumps([rules, special, tokenizer.chat_template])
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
