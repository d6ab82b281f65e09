"""Samples as training tools read them: what was asked with what a model wrote, one sample a row.

- sft: `prompt` and `completion`, TRL's prompt-completion type: texts, or lists of turns where a
  chat was asked. huggingface/trl, `docs/source/dataset_formats.md`.
- messages: `messages`, TRL's conversational language modelling (the same page).
- openai: the same, as OpenAI's fine-tuning of chat models takes it: roles that it knows, and no
  turn without text. What its batch API reads and writes is another format.
- parquet: a table with a column for each field of the journal's lines.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeGuard, get_args

from sharegen.common.files import make_folders, replace_file
from sharegen.common.log import log
from sharegen.errors import DataError
from sharegen.results.journal.record import Record

TrainingFormat = Literal["sft", "messages", "openai", "parquet"]

_ROLES = ("system", "developer", "user", "assistant", "tool")  # that OpenAI knows


def is_for_training(kind: str) -> TypeGuard[TrainingFormat]:
    return kind in get_args(TrainingFormat)


@dataclass(frozen=True)
class TrainingPrompt:
    """A prompt: a text, or the turns of a chat with the tools that it was given.

    goes_on: whether the answer goes on within the last turn.
    """

    content: str | list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    goes_on: bool = False

    @property
    def turns(self) -> list[dict[str, Any]]:
        """A text is the user's turn."""
        if isinstance(self.content, str):
            return [{"role": "user", "content": self.content}]
        return self.content


@dataclass(frozen=True)
class Example:
    """One sample: its record, what it answers, and whether it is right (None: nothing says so).

    asked: None where that is not known, which only a table may have.
    """

    record: Record
    asked: TrainingPrompt | None
    right: bool | None = None

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The whole conversation."""
        prompt, answer = self.parted
        return [*prompt, *answer]

    @property
    def parted(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The conversation before the turn that the model wrote, or went on with, and this turn."""
        assert self.asked is not None
        turns, written = self.asked.turns, self.record.completion
        if self.asked.goes_on:
            *turns, last = turns
            return turns, [{**last, "content": last.get("content", "") + written}]
        return turns, [{"role": "assistant", "content": written}]


def write_examples(
    path: Path, kind: TrainingFormat, examples: Sequence[Example]
) -> Sequence[Example]:
    """Write samples for training, replacing what was there; returns those that were written.

    Raises DataError where the file cannot be written, or no sample can be in it.
    """
    if kind == "openai":
        examples = _fit_for_openai(examples)
    try:
        make_folders(path.parent)
        if kind == "parquet":
            replace_file(path, _table(examples))
        else:
            replace_file(path, b"".join(map(_line, _rows(kind, examples))))
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror}") from None
    return examples


def _rows(kind: TrainingFormat, examples: Sequence[Example]) -> Iterator[dict[str, Any]]:
    is_text = kind == "sft" and all(e.asked and isinstance(e.asked.content, str) for e in examples)
    for example in examples:
        assert example.asked is not None
        row: dict[str, Any] = {}
        if is_text:
            row = {"prompt": example.asked.content, "completion": example.record.completion}
        elif kind == "sft":
            row["prompt"], row["completion"] = example.parted
        else:
            turns = example.messages
            row["messages"] = [*map(_calling, turns)] if kind == "openai" else turns
        yield row | ({"tools": example.asked.tools} if example.asked.tools else {})


def _calling(turn: dict[str, Any]) -> dict[str, Any]:
    """A turn with the arguments of the functions that it calls as the JSON text that OpenAI has."""
    if not turn.get("tool_calls"):
        return turn
    calls = [
        {**call, "function": {**call["function"], "arguments": _as_text(call["function"])}}
        for call in turn["tool_calls"]
    ]
    return {**turn, "tool_calls": calls}


def _as_text(function: Mapping[str, Any]) -> str:
    arguments = function.get("arguments", {})
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def _line(row: Mapping[str, Any]) -> bytes:
    """Half of a surrogate pair, which no other reader takes, becomes a question mark."""
    return (json.dumps(row, ensure_ascii=False) + "\n").encode(errors="replace")


def _fit_for_openai(examples: Sequence[Example]) -> list[Example]:
    """The examples that fine-tuning accepts; the first of the others is logged."""
    faults: list[str] = []
    fit = []
    for example in examples:
        fault = _fault_for_openai(example)
        if fault is None:
            fit.append(example)
        else:
            record = example.record
            faults.append(f"problem {record.problem_id}, sample {record.sample}: {fault}")
    if faults and not fit:
        raise DataError(f"no sample is fit for fine-tuning: {faults[0]}")
    if faults:
        more = f", and {len(faults) - 1:,} more like it" if len(faults) > 1 else ""
        log(f"{faults[0]}: it is left out{more}")
    return fit


def _fault_for_openai(example: Example) -> str | None:
    if not example.record.completion.strip():
        return "its completion is empty"
    for turn in example.messages:
        if turn.get("role") not in _ROLES:
            return f"its prompt has a turn of {turn.get('role')!r:.40}"
    return None


def _table(examples: Sequence[Example]) -> bytes:
    """The samples as a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    records = [example.record for example in examples]
    columns = {
        "problem_id": pa.array([_text(r.problem_id) for r in records], pa.string()),
        "sample": pa.array([r.sample for r in records], pa.int32()),
        "prompt_hash": pa.array([r.prompt_hash for r in records], pa.string()),
        "completion": pa.array([_text(r.completion) for r in records], pa.string()),
        "answer": pa.array([_text(r.answer) for r in records], pa.string()),
        "gold": pa.array([_text(r.gold) for r in records], pa.string()),
        "right": pa.array([example.right for example in examples], pa.bool_()),
        "finish_reason": pa.array([r.finish_reason for r in records], pa.string()),
        "num_tokens": pa.array([r.num_tokens for r in records], pa.int32()),
        "cumulative_logprob": pa.array([r.cumulative_logprob for r in records], pa.float64()),
    }
    if any(example.asked is not None for example in examples):
        columns["prompt"] = _prompts([example.asked for example in examples])
    if any(r.token_ids is not None for r in records):
        columns["token_ids"] = pa.array([r.token_ids for r in records], pa.list_(pa.int32()))
    names = dict.fromkeys(name for r in records for name in r.fields or ())
    if names:
        fields = [_inferred([(r.fields or {}).get(name) for r in records]) for name in names]
        columns["fields"] = pa.StructArray.from_arrays(fields, [_text(name) for name in names])
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue().to_pybytes()


def _prompts(asked: Sequence[TrainingPrompt | None]) -> Any:
    """The column of prompts: texts, or turns where any of them is a chat."""
    import pyarrow as pa

    if all(prompt is None or isinstance(prompt.content, str) for prompt in asked):
        return pa.array([prompt and prompt.content for prompt in asked], pa.string())
    return _inferred([None if prompt is None else prompt.turns for prompt in asked])


def _inferred(values: Sequence[Any]) -> Any:
    """A column of whatever the values are; of JSON texts where Parquet has no one type for them."""
    import pyarrow as pa

    try:
        column = pa.array(values)
        if not _has_empty_object(column.type):
            return column
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError):
        pass
    return pa.array([None if value is None else _text(json.dumps(value)) for value in values])


def _has_empty_object(kind: Any) -> bool:
    """Whether an object without fields is in it, which Parquet cannot write."""
    import pyarrow as pa

    if pa.types.is_list(kind):
        return _has_empty_object(kind.value_type)
    is_object = pa.types.is_struct(kind)
    return is_object and (
        not kind.num_fields or any(_has_empty_object(field.type) for field in kind)
    )


def _text(text: str | None) -> str | None:
    """A text without halves of surrogate pairs."""
    return None if text is None else text.encode(errors="replace").decode()
