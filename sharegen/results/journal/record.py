"""One line of a journal, and the one way to read a file of them.

A journal may be read while it grows and after a crash, so a last line that was cut short is
ordinary: it is left out. So is any other line that is no record, which is logged by its number;
a file without a single record is no journal, and that is an error.

An editor, a disk or a crash may leave around a line what is no part of it: a byte order mark, a
carriage return, a block of zeros, half a line without its end. The record itself is whole then, and
is read.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from os import PathLike
from typing import Any, TypeAlias

from sharegen.common import json_values
from sharegen.common.json_values import JsonError, JsonLimitError
from sharegen.common.log import log
from sharegen.errors import JournalError
from sharegen.results.journal.keys import Key, Keys

StrPath: TypeAlias = "str | PathLike[str]"


@dataclass(frozen=True)
class Record:
    """One finished sample, or one row of the dataset that could not be asked.

    sample: the sample's index, from 0; None marks a bad row.
    error: in a line, why a row could not be asked, or why a sample failed: it is finished, and has
        no completion and no answer.
    prompt_hash: of the whole prompt, so that a key never outlives the prompt it answers.
    completion: what the model wrote, cut at the stop string, without the prompt.
    num_tokens: tokens drawn, the ones cut from the text included.
    cumulative_logprob: natural log under the model's raw distribution, or the one that the job's
        logprobs_mode says; None if not finite.
    score: of a text that a beam search found, what a problem's texts are ranked by.
    answer: as extracted from the completion, not normalised; gold: as the dataset has it.
    token_ids: only where they were asked for; logprobs, likewise: of each token its id, the
        log-probability, and those of the likeliest tokens by their ids. Null is not finite.
    prompt_logprobs: the same of the prompt's tokens, null for the first, with its first sample.
    row_hash: of all that a row brings to its samples: prompt, tests.
    text_hash: of a chat, of the text that the chat template made of it.
    prompt: the text, the turns or the token ids that were asked; tools: what a chat was given with
        them; fields: of the row, by name. Where they were asked for (`--keep-prompt`, `--keep`).
    """

    problem_id: str
    sample: int | None
    prompt_hash: str | None
    completion: str = ""
    num_tokens: int = 0
    finish_reason: str | None = None
    cumulative_logprob: float | None = None
    answer: str | None = None
    gold: str | None = None
    token_ids: list[int] | None = None
    logprobs: list[list[Any]] | None = None
    prompt_logprobs: list[list[Any] | None] | None = None
    error: str | None = None
    row_hash: str | None = None
    prompt: str | list[Any] | None = None
    tools: list[dict[str, Any]] | None = None
    fields: dict[str, Any] | None = None
    score: float | None = None
    text_hash: str | None = None

    @property
    def row(self) -> str | None:
        """What the row is known by: its prompt alone where a line says no more."""
        return self.row_hash or self.prompt_hash

    @property
    def key(self) -> Key:
        return Key(self.problem_id, self.prompt_hash, self.sample)

    @property
    def is_sample(self) -> bool:
        """Whether it is a sample; a bad row is none."""
        return self.sample is not None

    @property
    def is_drawn(self) -> bool:
        """False for a bad row and for a sample that failed: for what has nothing to lose."""
        return self.is_sample and self.error is None

    def to_line(self) -> bytes:
        """The record as one line of UTF-8 JSON, its newline included.

        A bad row keeps the four fields that it has, a failed sample has an `error` instead of a
        `completion`. `answer` and `gold` are left out where the job knows neither.
        """
        fields: dict[str, Any] = {
            "problem_id": self.problem_id,
            "sample": self.sample,
            "prompt_hash": self.prompt_hash,
        }
        if self.row_hash is not None:
            fields["row_hash"] = self.row_hash
        if self.text_hash is not None:
            fields["text_hash"] = self.text_hash
        if self.is_sample:
            logprob = self.cumulative_logprob
            finite = logprob is not None and math.isfinite(logprob)
            fields |= {"completion": self.completion} if self.is_drawn else {"error": self.error}
            fields |= {
                "num_tokens": self.num_tokens,
                "finish_reason": self.finish_reason,
                "cumulative_logprob": logprob if finite else None,  # JSON has no infinity
            }
            if self.score is not None:
                fields["score"] = self.score
            if self.answer is not None or self.gold is not None:
                fields |= {"answer": self.answer, "gold": self.gold}
            if self.token_ids is not None:
                fields["token_ids"] = self.token_ids
            for name in ("logprobs", "prompt_logprobs", "prompt", "tools", "fields"):
                if getattr(self, name) is not None:
                    fields[name] = getattr(self, name)
        else:
            fields["error"] = self.error
        try:
            return (_one_line(_ENCODER.encode(fields)) + "\n").encode()
        except UnicodeEncodeError:  # half of a surrogate pair, as "\ud800" in a dataset gives
            return (json.dumps(fields) + "\n").encode()

    @classmethod
    def from_line(cls, line: bytes) -> Record:
        """Read what `to_line` wrote; fields that a later version adds are ignored.

        Raises ValueError that says what is wrong with the line.
        """
        try:
            fields = json_values.parse(line)
        except JsonError as error:
            raise ValueError(f"is not JSON: {error}") from error
        if not isinstance(fields, dict):
            raise ValueError("is not a JSON object")
        failed = fields.get("sample", 0) is None or fields.get("error") is not None
        text = "error" if failed else "completion"
        if {"custom_id", "response"} <= fields.keys():
            raise ValueError(
                "is an answer of a batch, whose samples are in NAME.journal.jsonl beside it"
            )
        for name in ("problem_id", "sample", text):
            if name not in fields:
                raise ValueError(f"has no field `{name}`")
        known: dict[str, Any] = {}
        for name, value in fields.items():
            types = _TYPES.get(name)
            if types is None:
                continue
            if type(value) not in types:  # which a bool is not, as it would be an int
                raise ValueError(f"has `{name}` {json.dumps(value)[:40]}")
            known[name] = value
        for name, is_entry in _ENTRIES.items():
            if isinstance(known.get(name), list) and not all(map(is_entry, known[name])):
                raise ValueError(f"has `{name}` {json.dumps(known[name])[:40]}")
        for name in ("sample", "num_tokens"):
            if not 0 <= (known.get(name) or 0) <= _MOST:
                raise ValueError(f"has `{name}` {json.dumps(known[name])[:40]}")
        for name in ("cumulative_logprob", "score"):
            number = known.get(name)
            if number is not None and not abs(number) <= _LARGEST:  # NaN is not either
                raise ValueError(f"has `{name}` {json.dumps(number)[:40]}")
        known.setdefault("prompt_hash", None)
        return cls(**known)


_MOST = 2**31 - 1  # samples of a problem, tokens of a sample
_LARGEST = sys.float_info.max

_ENCODER = json.JSONEncoder(ensure_ascii=False)

_TYPES: dict[str, tuple[type, ...]] = {
    "problem_id": (str,),
    "sample": (int, type(None)),
    "prompt_hash": (str, type(None)),
    "completion": (str,),
    "num_tokens": (int,),
    "finish_reason": (str, type(None)),
    "cumulative_logprob": (float, int, type(None)),
    "score": (float, int, type(None)),
    "answer": (str, type(None)),
    "gold": (str, type(None)),
    "token_ids": (list, type(None)),
    "logprobs": (list, type(None)),
    "prompt_logprobs": (list, type(None)),
    "error": (str, type(None)),
    "row_hash": (str, type(None)),
    "text_hash": (str, type(None)),
    "prompt": (str, list, type(None)),
    "tools": (list, type(None)),
    "fields": (dict, type(None)),
}


def _is_token(value: Any) -> bool:
    return type(value) is int


def _is_logprob(value: Any) -> bool:
    """Whether it is a token's entry: its id, its log-probability, and the likeliest ones by id."""
    if not isinstance(value, list) or not value:
        return value is None
    return _is_token(value[0])


_ENTRIES: dict[str, Callable[[Any], bool]] = {
    "token_ids": _is_token,
    "logprobs": _is_logprob,
    "prompt_logprobs": _is_logprob,
    "prompt": lambda value: isinstance(value, dict) or _is_token(value),
    "tools": lambda value: isinstance(value, dict),
}


def _one_line(text: str) -> str:
    """Escape what JSON leaves raw but `str.splitlines` takes for the end of a line."""
    for mark, escaped in (("\x85", "\\u0085"), ("\u2028", "\\u2028"), ("\u2029", "\\u2029")):
        text = text.replace(mark, escaped)
    return text


class RecordReader(Iterator[Record]):
    """Iterates over the records of a journal; a key's first record wins over later ones.

    For a sample that failed, the first record that was drawn wins; a failed one is returned, at
    the end, only where none was drawn.

    duplicates: numbers of the lines that were left out because their key came before.
    end: the length in bytes of the whole lines read so far; what follows was cut short.
    odd: numbers of the lines that were left out because they are no records.
    unterminated: the last line is whole but its newline is missing.

    Raises JournalError for a file that cannot be read or holds lines and no record.
    """

    def __init__(self, path: StrPath):
        self.path = path
        self.duplicates: list[int] = []
        self.odd: list[int] = []
        self.end = 0
        self.unterminated = False
        self._seen = Keys()
        self._failed: dict[Key, Record] = {}  # until one of the key is drawn
        self._records = self._read()

    def __next__(self) -> Record:
        return next(self._records)

    def _read(self) -> Iterator[Record]:
        try:
            file = open(self.path, "rb")  # noqa: SIM115 - closed by the `with` below
        except OSError as error:
            raise JournalError(f"{self.path}: cannot be read: {error.strerror}") from error
        odd: list[str] = []
        with file:
            for number, line in enumerate(file, start=1):
                whole = line.endswith(b"\n")
                if whole and not line.strip(_AROUND):
                    self.end += len(line)
                    continue
                try:
                    records = [Record.from_line(line.strip(_AROUND))]
                except ValueError as error:
                    records = list(_records_within(line))
                    if not (whole or records) and _is_cut_short(error):
                        break
                    self.odd.append(number)
                    odd.append(f"{self.path}, line {number}: the line {error}")
                self.end += len(line)
                self.unterminated = not whole
                for record in records:
                    key = record.key
                    if key in self._seen:
                        self.duplicates.append(number)
                    elif record.is_sample and not record.is_drawn:
                        self._failed.setdefault(key, record)
                    else:
                        self._seen.add(key)
                        self._failed.pop(key, None)
                        yield record
        if odd and not self._seen and not self._failed:
            raise JournalError(
                f"{odd[0]}, so this is not a journal or it was edited: repair or remove the line"
            )
        for fault in odd:
            log(f"{fault}: it is left out")
        yield from self._failed.values()


_AROUND = b" \t\r\n\x00\xef\xbb\xbf"
"""What no record begins or ends with: blanks, zeros, the bytes of a mark that says UTF-8."""
_BEGINS = re.compile(rb'\{\s*"problem_id"\s*:')
"""Where a record begins, as we write it; within a text its quotes would be escaped."""


def _records_within(line: bytes) -> Iterator[Record]:
    """The records in a line that is none as a whole, as where the end of another line is gone."""
    starts = [match.start() for match in _BEGINS.finditer(line)]
    for start, end in itertools.pairwise([*starts, len(line)]):
        text = line[start:end].decode(errors="surrogateescape")
        with contextlib.suppress(ValueError, RecursionError):
            _, length = json.JSONDecoder().raw_decode(text)
            yield Record.from_line(text[:length].encode(errors="surrogateescape"))


def _is_cut_short(error: ValueError) -> bool:
    """Whether a line without its end may have been a record: no beginning of one is JSON."""
    cause = error.__cause__
    return isinstance(cause, JsonError) and not isinstance(cause, JsonLimitError)


def read(path: StrPath) -> RecordReader:
    """The records of the journal at `path`, in the order in which they finished."""
    return RecordReader(path)


def note_row(rows: dict[str, str | None], record: Record) -> None:
    """Keep what identifies the row of a sample; a hash of the whole row says more."""
    if record.row_hash is not None or record.problem_id not in rows:
        rows[record.problem_id] = record.row


def note_text(texts: dict[str, str], record: Record) -> None:
    """Keep what identifies the text of a sample's chat."""
    if record.text_hash is not None:
        texts.setdefault(record.problem_id, record.text_hash)
