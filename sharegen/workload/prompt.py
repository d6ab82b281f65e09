"""Few-shot template -> prompt text -> token ids.

The examples are rendered once and stand in front of every problem, or where the prompt's template
says `{{ examples }}`. Whole prompts are tokenised, or parts only where they surely give the same
tokens (shared_text.py): others would not be those that the model was trained on. What prompts share
is found later, on the token ids.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from sharegen.common.names import listed
from sharegen.common.panics import panics_as_errors
from sharegen.errors import DataError, ModelError, RequestError, UsageError
from sharegen.workload import template
from sharegen.workload.clock import Clock
from sharegen.workload.conversation import (
    COLUMN,
    KWARGS,
    PLAIN,
    TOOLS,
    ChatOptions,
    Turn,
    conversation,
    kwargs_of,
    tools_of,
)
from sharegen.workload.shared_text import Share, encoded
from sharegen.workload.template import Overrun, RenderError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from sharegen.workload.configuration import Configuration

_BATCH = 4_000_000  # characters that are tokenised at once
_QUESTION, _ANSWER = "question", "answer"  # what recipes call them
_NOT_ITS_OWN = {"document", "examples", template.FIELDS}  # which a row has in common with others


@dataclass(frozen=True)
class Prompt:
    """A prompt before its tokens: plain text, the turns of a chat, or token ids as they are.

    own: the part that is this problem's alone, without the examples. options: of a chat.
    """

    content: str | list[Turn] | tuple[int, ...]
    own: str
    options: ChatOptions = PLAIN

    @property
    def is_chat(self) -> bool:
        return isinstance(self.content, list)

    @property
    def identity(self) -> Any:
        """What it is known by: its content, and how a chat is rendered where that is said."""
        if self.options == PLAIN:
            return self.content
        return [self.content, asdict(self.options)]

    @property
    def length(self) -> int:
        """The length in characters, roughly."""
        if isinstance(self.content, list):
            return sum(len(turn.get("content", "")) for turn in self.content)
        return len(self.content)

    def __str__(self) -> str:
        if isinstance(self.content, str):
            return self.content
        if isinstance(self.content, tuple):
            return f"{len(self.content):,} token ids"
        return "\n\n".join(map(_shown, self.content))


def _shown(turn: Turn) -> str:
    """A turn for people, with the functions that it calls as they stand there."""
    said = [turn[name] for name in ("content",) if turn.get(name)]
    said += [json.dumps(call, ensure_ascii=False) for call in turn.get("tool_calls", ())]
    return "\n".join([f"[{turn['role']}]", *said])


def kept_prompt(content: str | list[Any]) -> Prompt:
    """A prompt as a journal's line holds it: a text, turns, or token ids."""
    if isinstance(content, list) and not all(isinstance(turn, dict) for turn in content):
        return Prompt(tuple(content), "")
    return Prompt(content, "")


class PromptTemplate:
    """A configuration's templates with the examples filled in.

    Raises DataError when an example does not have what its template names.
    """

    def __init__(self, configuration: Configuration, examples: Sequence[Mapping[str, Any]]):
        self._prompt = configuration.prompt.text
        self._free, self._line = configuration.prompt.free, configuration.prompt.line
        self._chat = configuration.chat if configuration.chat.enabled else None
        self._examples = ""
        self._turns: list[Turn] = []
        chat = configuration.chat
        self._options = ChatOptions(
            chat.tools or None,
            chat.template_kwargs,
            chat.add_generation_prompt,
            chat.continue_final_message,
        )
        try:
            for fields in examples:
                _refuse_empty_example(fields)
            if self._chat is None:
                text, shown = configuration.example or "", map(self._with_free, examples)
                parts = (template.render("example", text, fields) for fields in shown)
                self._examples = "".join(parts)
            else:
                self._turns = self._example_turns(examples)
        except Overrun as error:
            raise UsageError(f"the recipe {configuration.recipe}: few-shot: {error}") from None
        except RenderError as error:
            raise DataError(f"few-shot: {error}") from None
        self._places_examples = "examples" in template.names(self._prompt)

    @property
    def fingerprint(self) -> str:
        """A hash of what all prompts have in common by construction."""
        text = json.dumps([self._examples, self._turns])
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def render(self, fields: Mapping[str, Any], order: Sequence[str] | None = None) -> Prompt:
        """The prompt of one problem; order: of its free fields, where it is not the declared one.

        Where a template writes one field and nothing else, a list in it is a conversation, and a
        row without the field may bring its `messages`; `tools` and `chat_template_kwargs` of such a
        row are for the chat template.

        Raises RenderError for a field that is missing or no text, and for a conversation that no
        answer follows.
        """
        fields = self._with_free(fields, order)
        turns = self._conversation(fields)
        if turns is not None:
            options = self._options_of(fields)
            options.check(turns)
            own = turns[-1].get("content", "")
            return Prompt(self._after_examples(turns, fields), own, options)
        self._refuse_empty(fields)
        if self._chat is not None:
            own = self._turn("user", fields)
            turns = self._after_examples([{"role": "user", "content": own}], fields)
            return Prompt(turns, own, self._options)
        if self._places_examples:
            whole = template.render("prompt", self._prompt, {**fields, "examples": self._examples})
            return Prompt(whole, whole.rpartition(self._examples)[2] if self._examples else whole)
        own = template.render("prompt", self._prompt, fields)
        return Prompt(self._examples + own, own)

    def _refuse_empty(self, fields: Mapping[str, Any]) -> None:
        """Raise RenderError for a row that asks nothing, as an empty cell of a CSV does.

        A template of one field alone is another matter: whoever samples from nothing but BOS asks
        an empty text.
        """
        text = self._prompt if self._chat is None else self._chat.user or ""
        written = sorted(template.names(text) & fields.keys() - _NOT_ITS_OWN)
        empty = [name for name in written if not str(fields[name]).strip()]
        is_all = empty == written and (self._chat is not None or not template.only_field(text))
        if _QUESTION in empty or (empty and is_all):
            name = _QUESTION if _QUESTION in empty else empty[0]
            raise RenderError(f"the field {name!r} is empty: there is nothing to ask")

    def _with_free(
        self, fields: Mapping[str, Any], order: Sequence[str] | None = None
    ) -> Mapping[str, Any]:
        """The row's fields with the text of those that are free to move."""
        if not self._free:
            return fields
        return {
            **fields,
            template.FIELDS: "".join(self._line_of(name, fields) for name in order or self._free),
        }

    def _line_of(self, name: str, fields: Mapping[str, Any]) -> str:
        if name not in fields:
            raise RenderError(
                f"'prompt.free' names the field {name!r}, which the row does not have (it has "
                f"{listed(fields)}): {template.instead(name, fields)}"
            )
        value = fields[name]
        if not template.is_text(value):
            raise RenderError(
                f"the field {name!r}, which 'prompt.free' names, is of type "
                f"{type(value).__name__}: that is not text"
            )
        return template.render("prompt.line", self._line, {"name": name, "value": value})

    def _options_of(self, fields: Mapping[str, Any]) -> ChatOptions:
        """The job's, with what the row brings on top."""
        options = self._options
        if TOOLS in fields:
            options = replace(options, tools=tools_of(TOOLS, fields[TOOLS]))
        if KWARGS in fields:
            own = kwargs_of(KWARGS, fields[KWARGS])
            options = replace(options, template_kwargs={**options.template_kwargs, **own})
        return options

    def _conversation(self, fields: Mapping[str, Any]) -> list[Turn] | None:
        """The turns that the row brings, where it does."""
        text = self._prompt if self._chat is None else self._chat.user
        field = template.only_field(text or "")
        if field is None:
            return None
        name = field if field in fields else COLUMN
        turns = fields.get(name)
        return conversation(name, turns) if isinstance(turns, list) else None

    def _after_examples(self, turns: list[Turn], fields: Mapping[str, Any]) -> list[Turn]:
        """The turns with the system message and the examples in front."""
        if self._examples:
            raise RenderError("the examples are text, and this row is a conversation: use --chat")
        head = turns[:1] if turns[0]["role"] == "system" else []
        rest = turns[len(head) :]
        if self._chat is not None and self._chat.system is not None:
            if head:
                raise RenderError("the row has a system turn of its own: leave out --system")
            head = [{"role": "system", "content": self._turn("system", fields)}]
        return [*head, *self._turns, *rest]

    def _example_turns(self, examples: Sequence[Mapping[str, Any]]) -> list[Turn]:
        return [
            {"role": role, "content": self._turn(role, fields)}
            for fields in map(self._with_free, examples)
            for role in ("user", "assistant")
        ]

    def _turn(self, role: str, fields: Mapping[str, Any]) -> str:
        text = getattr(self._chat, role)
        if text is None:
            raise RenderError(f"the recipe has no template 'chat.{role}'")
        return template.render(f"chat.{role}", text, fields)


def _refuse_empty_example(fields: Mapping[str, Any]) -> None:
    """Raise RenderError for an example without its question or answer, as of an empty cell."""
    for name in (_QUESTION, _ANSWER):
        if name in fields and not str(fields[name]).strip():
            raise RenderError(
                f"the field {name!r} of an example is empty: choose other rows (few_shot.indices)"
            )


def tokenise(
    prompts: Sequence[Prompt], tokenizer: PreTrainedTokenizerBase, clock: Clock | None = None
) -> list[array[int]]:
    """Token ids of whole prompts; raises the first ModelError of `tokenise_each`."""
    tokens: list[array[int]] = []
    for found in tokenise_each(prompts, tokenizer, clock):
        if isinstance(found, ModelError):
            raise found
        tokens.append(found)
    return tokens


def text_of(prompt: Prompt, tokenizer: PreTrainedTokenizerBase, clock: Clock) -> str:
    """A prompt as the text that is asked, token ids decoded; raises ModelError for a bad chat."""
    found = _text(prompt, tokenizer, clock)
    if isinstance(found, ModelError):
        raise found
    return found if isinstance(found, str) else str(tokenizer.decode(list(found)))


def tokenise_each(
    prompts: Sequence[Prompt], tokenizer: PreTrainedTokenizerBase, clock: Clock | None = None
) -> Iterator[array[int] | ModelError]:
    """Token ids of whole prompts, with BOS once where the tokenizer begins a text with it.

    A chat prompt is what the tokenizer's chat template makes of it, which brings its own special
    tokens. Special tokens that a tokenizer appends (EOS) are left out: a prompt goes on. In the
    place of a chat that there is no template for, or that it refuses, comes the error.

    clock: the time that templates see, by default now.
    """
    for asked in asked_each(prompts, tokenizer, clock or Clock.now()):
        yield asked if isinstance(asked, ModelError) else asked.ids


@dataclass(frozen=True)
class Tokenised:
    """The token ids of a prompt, and of a chat the text that its template made."""

    ids: array[int]
    text: str | None


def asked_each(
    prompts: Sequence[Prompt], tokenizer: PreTrainedTokenizerBase, clock: Clock
) -> Iterator[Tokenised | ModelError]:
    """Tokenise as `tokenise_each` does, with the texts of chats."""
    for batch in _batches(prompts):
        texts = [_text(prompt, tokenizer, clock) for prompt in batch]
        is_chat = batch[0].is_chat
        good = [text for text in texts if isinstance(text, str)]
        found = _spelt(good, tokenizer, begin=not is_chat)
        for text in texts:
            if isinstance(text, ModelError):
                yield text
            elif isinstance(text, str):
                ids = next(found)
                if isinstance(ids, ModelError):
                    yield ids
                else:
                    yield Tokenised(array("i", ids), text if is_chat else None)
            else:
                yield Tokenised(array("i", text), None)


def _spelt(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, begin: bool
) -> Iterator[Sequence[int] | ModelError]:
    """Yield `token_ids`, with an error in the place of a text that the tokenizer gives up on."""
    try:
        yield from token_ids(texts, tokenizer, begin) if texts else ()
    except ModelError as error:
        if len(texts) == 1:
            yield error
            return
        for text in texts:
            yield from _spelt([text], tokenizer, begin)


def token_ids(
    texts: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    begin: bool = True,
    share: Share = encoded,
) -> list[Sequence[int]]:
    """Token ids of texts that are to be continued: nothing is appended to them.

    begin: put before them what the tokenizer begins a text with (BOS), where it does not stand
    there already. share: what finds what texts have in common, so that it is tokenised once.

    Raises RequestError for a text with half of a surrogate pair, which no tokenizer takes, and
    ModelError where the tokenizer gives up.
    """
    head = _leading_special_tokens(tokenizer) if begin else []

    def encode(some: list[str]) -> list[list[int]]:
        ids: list[list[int]] = tokenizer(some, add_special_tokens=False, verbose=False)["input_ids"]
        return ids

    try:
        with panics_as_errors("the tokenizer"):
            found = share(texts, tokenizer, encode)
    except (TypeError, UnicodeEncodeError):
        for text in texts:
            place = template.half_character(text)
            if place is not None:
                raise RequestError(
                    f"the prompt is not text: {text[place]!a} at position {place} is half of a "
                    "character"
                ) from None
        raise
    return [ids if list(ids[: len(head)]) == head else [*head, *ids] for ids in found]


def _batches(prompts: Sequence[Prompt]) -> Iterator[list[Prompt]]:
    """Prompts of one kind, few at a time where they are long: tokens take far more than text."""
    batch: list[Prompt] = []
    size = 0
    for prompt in prompts:
        if batch and (size >= _BATCH or type(prompt.content) is not type(batch[0].content)):
            yield batch
            batch, size = [], 0
        batch.append(prompt)
        size += prompt.length
    if batch:
        yield batch


def _text(
    prompt: Prompt, tokenizer: PreTrainedTokenizerBase, clock: Clock
) -> str | tuple[int, ...] | ModelError:
    """The prompt as text; token ids as they are."""
    if not isinstance(prompt.content, list):
        return prompt.content
    if not tokenizer.chat_template:
        return ModelError(
            "a chat (--chat, --system, rows of messages) is not for this model: its tokenizer has "
            "no chat template: give one by --set chat.template=FILE, or ask for texts (--no-chat, "
            "and rows without messages)"
        )
    from sharegen.workload.chat import ChatOverrun, chat_text

    where = "a chat (--chat, --system, rows of messages)"
    try:
        text = chat_text(tokenizer, prompt.content, prompt.options, clock)
    except ChatOverrun:
        raise
    except ModelError as error:
        return ModelError(f"{where}: {error}")
    if template.half_character(text) is not None:  # of its tools, or in a call
        return ModelError(f"{where}: its text holds half of a character")
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
