"""Samples for training, read back by `datasets.load_dataset`, as training tools do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sharegen.errors import DataError
from sharegen.results.export.training import Example, TrainingFormat, TrainingPrompt, write_examples
from sharegen.results.journal.record import Record

CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "How many?"},
]


def example(
    number: int, asked: Any, completion: str = " 18\u2028.", how: Any = None, **more: Any
) -> Example:
    record = Record(f"p/{number}", 0, "h", completion, 3, "eos", -1.5, "18", "18", **more)
    return Example(record, None if asked is None else TrainingPrompt(asked, **(how or {})), True)


QUESTION = "Question: 2\nAnswer:"
TEXTS = [example(0, "Question: é\nAnswer:"), example(1, QUESTION)]
CHATS = [example(0, CHAT), example(1, CHAT[1:])]


def load(path: Path) -> Any:
    datasets = pytest.importorskip("datasets")
    builder = "parquet" if path.suffix == ".parquet" else "json"
    cache = str(path.parent / "cache")
    return datasets.load_dataset(builder, data_files=str(path), split="train", cache_dir=cache)


def written(path: Path, kind: TrainingFormat, examples: list[Example]) -> list[dict[str, Any]]:
    write_examples(path, kind, examples)
    return [json.loads(line) for line in path.read_text().split("\n") if line]


def test_sft_is_trl_s_prompt_completion(tmp_path: Path) -> None:
    """docs/source/dataset_formats.md: texts, or the turns of prompt and completion."""
    texts = written(tmp_path / "a.jsonl", "sft", TEXTS)
    assert texts[0] == {"prompt": "Question: é\nAnswer:", "completion": " 18\u2028."}
    answer = [{"role": "assistant", "content": " 18\u2028."}]
    chats = written(tmp_path / "a.jsonl", "sft", CHATS)
    assert chats[0] == {"prompt": CHAT, "completion": answer}
    (text, chat) = written(tmp_path / "a.jsonl", "sft", [TEXTS[0], CHATS[0]])
    assert text["prompt"] == [{"role": "user", "content": "Question: é\nAnswer:"}]
    assert chat == chats[0]


@pytest.mark.parametrize("kind", ["messages", "openai"])
def test_messages_end_with_what_the_model_wrote(tmp_path: Path, kind: TrainingFormat) -> None:
    answer = {"role": "assistant", "content": " 18\u2028."}
    rows = written(tmp_path / "a.jsonl", kind, [*CHATS, TEXTS[1]])
    assert [row.keys() for row in rows] == [{"messages"}] * 3
    assert rows[0]["messages"] == [*CHAT, answer]
    assert rows[2]["messages"] == [{"role": "user", "content": QUESTION}, answer]


def test_tools_and_turns_that_go_on_are_as_they_were_asked(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "add"}}]
    call = {"type": "function", "id": "1", "function": {"name": "add", "arguments": {"x": 1}}}
    begun = [*CHAT, {"role": "assistant", "tool_calls": [call]}]
    one = example(0, [*begun, {"role": "assistant", "content": "It is"}],
                  how={"tools": tools, "goes_on": True})  # fmt: skip
    (row,) = written(tmp_path / "a.jsonl", "openai", [one])
    answer = {"role": "assistant", "content": "It is 18\u2028."}
    assert row["tools"] == tools and row["messages"][-1] == answer
    assert row["messages"][2]["tool_calls"][0]["function"]["arguments"] == '{"x": 1}'
    (row,) = written(tmp_path / "a.jsonl", "sft", [one])
    assert row == {"prompt": begun, "completion": [answer], "tools": tools}


def test_what_fine_tuning_refuses_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    odd = example(3, [{"role": "judge", "content": "?"}])
    empty = example(4, "Question", " \n")
    assert write_examples(tmp_path / "a.jsonl", "openai", [odd, empty, TEXTS[0]]) == [TEXTS[0]]
    assert "problem p/3, sample 0: its prompt has a turn of 'judge'" in caplog.text
    assert "and 1 more like it" in caplog.text
    with pytest.raises(DataError, match=r"fit for fine-tuning: problem p/4, .* is empty"):
        write_examples(tmp_path / "a.jsonl", "openai", [empty])
    assert len(written(tmp_path / "a.jsonl", "messages", [empty])) == 1


def test_half_a_character_reaches_no_other_reader(tmp_path: Path) -> None:
    odd = example(0, "Q", "a\ud800b", fields={"x": "\ud800", "y": [1, "\ud800"]})
    assert written(tmp_path / "a.jsonl", "sft", [odd])[0]["completion"] == "a?b"
    write_examples(tmp_path / "a.parquet", "parquet", [odd])


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot be written"):
        write_examples(tmp_path / "file" / "a.jsonl", "sft", TEXTS)


@pytest.mark.parametrize("examples", [TEXTS, CHATS])
def test_datasets_load_each(tmp_path: Path, examples: list[Example]) -> None:
    for kind, columns in (
        ("sft", ["prompt", "completion"]),
        ("messages", ["messages"]),
        ("openai", ["messages"]),
    ):
        path = tmp_path / f"{kind}.jsonl"
        rows = written(path, kind, examples)  # type: ignore[arg-type]
        table = load(path)
        assert table.column_names == columns
        assert [dict(row) for row in table] == rows


def test_a_table_holds_what_the_lines_hold(tmp_path: Path) -> None:
    fields = [{"level": 1, "odd": "x"}, {"level": 2, "odd": 3}]
    examples = [
        example(number, asked, fields=fields[number], token_ids=[1, 2])
        for number, asked in enumerate([CHAT, None])
    ]
    path = tmp_path / "a.parquet"
    write_examples(path, "parquet", examples)
    first, second = load(path)
    assert first["problem_id"] == "p/0" and first["sample"] == 0 and first["right"] is True
    assert first["completion"] == " 18\u2028." and first["cumulative_logprob"] == -1.5
    assert first["prompt"] == CHAT and second["prompt"] is None
    assert first["fields"] == {"level": 1, "odd": '"x"'}  # of two types: as JSON
    assert first["token_ids"] == [1, 2] and first["gold"] == "18"
    call = {"type": "function", "function": {"name": "now", "arguments": {}}}
    turns = [*CHAT, {"role": "assistant", "tool_calls": [call]}]
    write_examples(path, "parquet", [example(0, turns, fields={"meta": {}, "level": 1})])
    (row,) = load(path)  # what Parquet has no type for: as JSON
    assert json.loads(row["prompt"]) == turns and row["fields"] == {"meta": "{}", "level": 1}
    write_examples(path, "parquet", TEXTS)
    table = load(path)
    assert table["prompt"][1] == QUESTION and "fields" not in table.column_names
