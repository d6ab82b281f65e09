"""What the Python API is given: prompts in every form that vLLM takes, and parameters for each."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sized
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from hashlib import blake2b
from itertools import repeat, zip_longest
from numbers import Integral
from operator import index as whole
from typing import Any

from sharegen.engine.core.random_key import row_key
from sharegen.engine.core.request import BeamSearchParams, Params, Request, SamplingParams
from sharegen.errors import CapacityError, ModelError, RequestError
from sharegen.workload.conversation import ChatOptions, conversation
from sharegen.workload.prompt import token_ids
from sharegen.workload.template import RenderError

Prompt = str | Seq[int] | Mapping[str, Any]
"""A text, token ids, {"prompt": a text} or {"prompt_token_ids": token ids}."""

_KEYS = ("prompt", "prompt_token_ids")
_FORMS = (
    'a prompt is a text or a list of token ids, or {"prompt": ...} or {"prompt_token_ids": [...]} '
    "with one of them"
)


def as_list(prompts: Prompt | Seq[Prompt]) -> list[Prompt]:
    """One prompt or several, as a list of them. Raises RequestError for what is neither."""
    if not isinstance(prompts, Sized):
        raise RequestError(f"{_FORMS}, not {prompts!r:.80}")
    if isinstance(prompts, (str, Mapping)):
        return [prompts]  # type: ignore[list-item]
    each: list[Any] = list(prompts)  # a column of a table is no sequence: its places have names
    return [prompts] if each and isinstance(each[0], Integral) else each  # type: ignore[list-item]


def tokenised(prompt: Prompt, tokenizer: Any) -> tuple[str | None, list[int]]:
    """A prompt's text, if it has one, and its token ids, which count where it has both.

    Raises RequestError for what is no prompt, and for a text without a tokenizer.
    """
    text, ids = _text_and_ids(prompt)
    if ids is None:
        assert text is not None
        [found] = token_ids([text], needed(tokenizer, "a text prompt"))
        ids = list(found)
    return text, ids


def conversations(
    messages: Seq[Mapping[str, Any]] | Seq[Seq[Mapping[str, Any]]],
    tokenizer: Any,
    options: ChatOptions,
) -> list[Prompt]:
    """What the tokenizer's chat template makes of one conversation, or of each of several.

    Raises RequestError for what is none or without a template, ModelError where that refuses it.
    """
    tokenizer = needed(tokenizer, "a conversation")
    if not getattr(tokenizer, "chat_template", None):
        raise RequestError("the tokenizer has no chat template: use generate() with plain text")
    if isinstance(messages, Mapping) or not isinstance(messages, Sized):
        raise RequestError(
            'messages is a list of {"role": ..., "content": ...}, or a list of such lists, '
            f"not {messages!r:.80}"
        )
    several: list[Any] = list(messages)
    if several and isinstance(several[0], Mapping):
        several = [several]
    found: list[Prompt] = []
    for index, turns in enumerate(several):
        with named(index, len(several) > 1):
            found.append(_chat_prompt(turns, tokenizer, options))
    return found


def _chat_prompt(turns: Any, tokenizer: Any, options: ChatOptions) -> Prompt:
    try:
        turns_read = conversation("messages", list(turns))
        options.check(turns_read)
    except (RenderError, TypeError) as error:
        raise RequestError(str(error)) from None
    from sharegen.workload.chat import chat_text  # which needs transformers

    text = chat_text(tokenizer, turns_read, options)
    # The template writes its own special tokens, the first one included.
    [ids] = token_ids([text], tokenizer, begin=False)
    return {"prompt": text, "prompt_token_ids": ids}


class Requests:
    """Makes the requests of one call, in the order of its prompts.

    A request whose parameters bring a seed draws by its prompt, wherever that stands in the call;
    of equal prompts each draws otherwise, by their count.
    """

    def __init__(self) -> None:
        self._seen: Counter[int] = Counter()

    def make(
        self, index: int, prompt_token_ids: list[int], params: Params, keep: bool = False
    ) -> Request:
        """What the engine is asked. index: the prompt's place, by which results are known."""
        if isinstance(params, BeamSearchParams):
            ranks = range(params.beam_width)
            return Request(index, prompt_token_ids, params.of_rows, ranks, keep, beam=params)
        stream = None if params.seed is None else self._stream(int(params.seed), prompt_token_ids)
        return Request(index, prompt_token_ids, params, range(params.n), keep, stream=stream)

    def _stream(self, seed: int, prompt: list[int]) -> int:
        text = json.dumps([seed, prompt]).encode()
        key = int.from_bytes(blake2b(text, digest_size=8).digest(), "little")
        count = self._seen[key]
        self._seen[key] += 1
        return row_key(count, key, 0)


def needed(tokenizer: Any, what: str) -> Any:
    """The tokenizer. Raises RequestError where there is none."""
    if tokenizer is None:
        raise RequestError(
            f'{what} needs a tokenizer, and the model has none: pass {{"prompt_token_ids": '
            "[...]} or give LLM(tokenizer=...)"
        )
    return tokenizer


def _text_and_ids(prompt: Prompt) -> tuple[str | None, list[int] | None]:
    """The text and token ids of a prompt; None for the one that it lacks."""
    text: Any = None
    ids: Any = prompt
    if isinstance(prompt, str):
        return prompt, None
    if isinstance(prompt, Mapping):
        other = [name for name, value in prompt.items() if name not in _KEYS and value is not None]
        if other:
            raise RequestError(f"{_FORMS}, and has no {other[0]!r:.80}")
        text, ids = (prompt.get(name) for name in _KEYS)
    if (text is None or isinstance(text, str)) and (text is None) <= (ids is not None):
        try:
            return text, None if ids is None else [whole(token) for token in ids]
        except TypeError:
            pass
    raise RequestError(f"{_FORMS}, not {prompt!r:.80}")


@contextmanager
def named(index: int, is_one_of_many: bool = True) -> Iterator[None]:
    """What goes wrong inside says which prompt it is about."""
    try:
        yield
    except (RequestError, CapacityError, ModelError) as error:
        if not is_one_of_many:
            raise
        raise type(error)(f"prompt {index}: {error}") from None


def one_each(params: Params | Seq[Params] | None, count: int) -> list[Params]:
    """The parameters of each of `count` prompts.

    Raises RequestError where they are not as many, or are none.
    """
    if params is None or isinstance(params, Params):
        return [params or SamplingParams()] * count
    if isinstance(params, Mapping) or not isinstance(params, Seq):
        raise _no_params(params)
    if len(params) != count:
        raise RequestError(f"{count} prompts need {count} SamplingParams or one, not {len(params)}")
    return [checked(param) for param in params]


def checked(params: Any) -> Params:
    """Check the parameters of one prompt. Raises RequestError for other objects."""
    if not isinstance(params, Params):
        raise _no_params(params)
    return params


def _no_params(given: Any) -> RequestError:
    """What to write instead of what was given."""
    write = "SamplingParams(...) for all prompts, or a list with one for each"
    if isinstance(given, Mapping) and all(str(name).isidentifier() for name in given):
        kind = "BeamSearchParams" if "beam_width" in given else "SamplingParams"
        write = f"{kind}({', '.join(f'{name}={value!r}' for name, value in given.items())})"
    return RequestError(f"sampling_params is {given!r:.80}: write {write:.200}")


def pairs(
    prompts: Iterable[Prompt], params: Params | Iterable[Params] | None
) -> Iterator[tuple[Prompt, Params]]:
    """Prompts with their parameters, as they are read. Raises RequestError where one ends first."""
    if params is None or isinstance(params, Params):
        yield from zip(prompts, repeat(params or SamplingParams()), strict=False)
        return
    if isinstance(params, Mapping) or not isinstance(params, Iterable):
        raise _no_params(params)
    missing = object()
    for index, (prompt, param) in enumerate(zip_longest(prompts, params, fillvalue=missing)):
        if prompt is missing or param is missing:
            short = "prompts" if prompt is missing else "SamplingParams"
            raise RequestError(
                f"the {short} end after {index}: give one SamplingParams a prompt, or one for all"
            )
        yield prompt, checked(param)  # type: ignore[misc]
