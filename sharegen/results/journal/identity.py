"""What makes a journal's job the one that is asked: nothing that changes its samples differs.

An identity is one flat mapping of dotted names: the settings that change the samples, and the
fingerprints of model, tokenizer and examples. Where these lie, and which rows were asked, is no
part of it: files move, and rows come and go within one job.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

NEWER: dict[str, Any] = {
    "deterministic": False,
    "any_tree": False,
    "logprobs_mode": "raw_logprobs",
    "block_size": 16,
    "compile": True,
}
"""What a name that an identity lacks stands for: how things were before there was such a name.

A setting that joins after 0.1.0 takes a line here, and every journal from before it goes on.
"""

_INFORMATION = ("fingerprints.dataset", "fingerprints.dataset_commit", "fingerprints.files")

_WORDS = {
    "fingerprints.model": "another checkpoint",
    "fingerprints.tokenizer": "another tokenizer or chat template",
    "fingerprints.few_shot": "other few-shot examples",
    "fingerprints.document": "another document",
    "fingerprints.clock": "another time, which the chat template writes",
    "fingerprints.chat_template": "another chat template",
    "fingerprints.order": "another order of fields, which all rows that are asked decide",
    "prompt": "another template",
    "prompt.text": "another template",
    "prompt.free": "another template",
    "prompt.line": "another template",
    "example": "another template",
    "chat.system": "another template",
    "chat.user": "another template",
    "chat.assistant": "another template",
}

_SOURCES = {
    "fingerprints.model": ("model", "adapter"),
    "fingerprints.few_shot": ("few_shot",),
    "fingerprints.document": ("dataset.document",),
    "fingerprints.chat_template": ("chat.template",),
}
"""The settings that say where the content comes from that a fingerprint is of."""


def identity_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The identity in `settings`, which may be nested or flat."""
    return {
        name: value
        for name, value in flatten(settings)
        if name not in _INFORMATION and not (name in NEWER and NEWER[name] == value)
    }


def differences(recorded: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """One phrase per field that differs, nested fields by their dotted name."""
    before, now = dict(flatten(recorded)), dict(flatten(given))
    names = [*before, *(name for name in now if name not in before)]
    return [
        f"{_WORDS[name]} ({phrase})" if name in _WORDS else phrase
        for name in names
        if (phrase := _difference(name, before, now)) is not None
    ]


def causes(
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    recorded: Mapping[str, Any],
    given: Mapping[str, Any],
) -> list[str]:
    """Where the content of two identities that differ came from, as the settings of each say."""
    sources = [
        source
        for name, sources in _SOURCES.items()
        if before.get(name) != now.get(name)
        for source in sources
    ]

    def of_sources(settings: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: value
            for name, value in flatten(settings)
            if any(f"{name}.".startswith(f"{source}.") for source in sources)
        }

    return differences(of_sources(recorded), of_sources(given))


def _difference(name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    if name not in before:
        return f"{name} was not set and is now {_shorten(now[name])}"
    if name not in now:
        return f"{name} was {_shorten(before[name])} and is no longer set"
    if before[name] == now[name]:
        return None
    old, new = _from_first_difference(_show(before[name]), _show(now[name]))
    return f"{name} was {old} and is now {new}"


def flatten(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value by its dotted name; an empty mapping is a value."""
    for name, value in section.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _show(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


_WIDTH = 60


def _shorten(value: Any) -> str:
    text = _show(value)
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"


def _from_first_difference(old: str, new: str) -> tuple[str, str]:
    """Cut both to one line's width, such that where they differ stays visible."""
    if max(len(old), len(new)) <= _WIDTH:
        return old, new
    pairs = zip(old, new, strict=False)
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(old), len(new)))
    start = max(0, same - 20)

    def cut(text: str) -> str:
        head = "…" if start else ""
        tail = "…" if len(text) > start + _WIDTH else ""
        return head + text[start : start + _WIDTH] + tail

    return cut(old), cut(new)
