"""Rows of JSON, JSONL and text. A line or item that is no row costs no other: it is a fault."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import Any, TypeAlias

from sharegen.common import json_values
from sharegen.common.json_values import JsonError, JsonLimitError
from sharegen.errors import DataError
from sharegen.workload.files.content import NULS, FileContent, not_utf8, text_of

Found: TypeAlias = "dict[str, Any] | str"
"""A row's values, or its fault: why it cannot be read, in words that complete "line 3: ..."."""


def read_jsonl(content: FileContent) -> Iterator[tuple[str, Found]]:
    for number, line in content.lines():
        # Files that were joined have a mark in the middle.
        yield f"line {number}", _row_of(line.removeprefix(codecs.BOM_UTF8))


def read_json(content: FileContent) -> Iterator[tuple[str, Found]]:
    whole = content.whole()
    text = text_of(content.path, whole)
    if not text.strip():
        return
    found: list[Found]
    try:
        values = json_values.parse(text)
    except JsonLimitError:
        is_list = text.lstrip().startswith("[")
        found = [_row_of(part) for part in (json_values.elements(text) if is_list else [text])]
    except JsonError as error:
        if str(error) == "Extra data":  # one object a line, under another name
            for number, line in enumerate(whole.split(b"\n"), start=1):
                if line.strip():
                    yield f"line {number}", _row_of(line)
            return
        raise DataError(f"{content.path}, line {error.line}: malformed JSON: {error}") from None
    else:
        rows = values if isinstance(values, list) else [values]
        found = [row if isinstance(row, dict) else _NO_OBJECT for row in rows]
    for index, row in enumerate(found):
        yield f"item {index}", row


def read_text_lines(content: FileContent) -> Iterator[tuple[str, Found]]:
    """A prompt a line, as the field `text`."""
    for number, line in content.lines():
        yield f"line {number}", _text_of(line)


_NO_OBJECT = "is not a JSON object"


def _row_of(text: str | bytes) -> Found:
    try:
        values = json_values.parse(text)
    except JsonError as error:
        if isinstance(text, bytes) and b"\0" in text:
            return NULS
        return f"malformed JSON: {error}"
    return values if isinstance(values, dict) else _NO_OBJECT


def _text_of(line: bytes) -> Found:
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        return not_utf8(error)
    if "\0" in text:
        return NULS
    return {"text": text}
