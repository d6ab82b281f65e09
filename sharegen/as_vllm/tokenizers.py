"""vLLM's functions around tokenizers that clients call."""

from __future__ import annotations

from typing import Any


def get_tokenizer(name: Any, *, tokenizer_mode: str = "auto", **named: Any) -> Any:
    """The tokenizer of a folder or a hub id, as transformers loads it.

    Args:
        name: the folder or the id.
        tokenizer_mode: "auto", or "slow" for the one in Python.
        named: options of transformers' `from_pretrained`.

    Raises:
        ValueError: for another mode of vLLM's.
    """
    from transformers import AutoTokenizer

    if tokenizer_mode not in ("auto", "slow"):
        raise ValueError(f"tokenizer_mode is {tokenizer_mode!r}: it must be 'auto' or 'slow'")
    if tokenizer_mode == "slow":
        named["use_fast"] = False
    return AutoTokenizer.from_pretrained(name, **named)


def resolve_hf_chat_template(
    tokenizer: Any, chat_template: str | None, tools: list[Any] | None, **_: Any
) -> str | None:
    """The chat template that applies: the one that is given, or the tokenizer's own.

    Args:
        tokenizer: whose template it is.
        chat_template: a template, or the name of one of the tokenizer's, or None.
        tools: for which some tokenizers have another template.
    """
    if chat_template is None and not tokenizer.chat_template:
        return None
    found: str = tokenizer.get_chat_template(chat_template, tools)
    return found
