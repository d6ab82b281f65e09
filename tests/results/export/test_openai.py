"""Log-probabilities in OpenAI's two forms: every token has its text and bytes, and none is lost."""

from __future__ import annotations

from typing import Any

from sharegen.common.tool_choice import ToolChoice
from sharegen.results.export.openai import Answerer, Endpoint, Usage, answered
from sharegen.results.journal.record import Record

ROCKET = "🚀".encode()
BYTES = {
    1: b" true", 2: b"true", 3: ROCKET[:2], 4: ROCKET[2:], 5: b"A", 6: b"A", 7: b" " + ROCKET[:1],
    8: None, 9: b"",
}  # fmt: skip


def logprobs(endpoint: Endpoint, completion: str, *entries: list[Any]) -> Any:
    record = Record(
        "p", 0, "h", completion=completion, num_tokens=len(entries), finish_reason="length",
        cumulative_logprob=-1.0, logprobs=list(entries),
    )  # fmt: skip
    by = Answerer("model", "f" * 16, 0)
    line = answered("a", endpoint, [record], Usage(1, 0), by, BYTES.__getitem__)
    return line["response"]["body"]["choices"][0]["logprobs"]


def test_leading_spaces_stay_and_words_without_them_are_others() -> None:
    top = {"1": -0.1, "2": -0.2}
    [entry] = logprobs("chat", " true", [1, -0.1, top])["content"]
    assert (entry["token"], entry["bytes"]) == (" true", list(b" true"))
    assert [other["token"] for other in entry["top_logprobs"]] == [" true", "true"]
    legacy = logprobs("text", " true", [1, -0.1, top], [2, -0.3, {}])
    assert legacy["tokens"] == [" true", "true"] and legacy["text_offset"] == [0, 5]
    assert legacy["top_logprobs"] == [{" true": -0.1, "true": -0.2}, {"true": -0.3}]


def test_pieces_of_a_character_have_their_bytes() -> None:
    entries = [5, -1.0, {}], [3, -0.1, {"3": -0.1, "7": -0.2}], [4, -0.1, {}], [2, -1.0, {}]
    content = logprobs("chat", "A🚀true", *entries)["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in content).decode() == "A🚀true"
    assert content[1]["token"] == "\\xf0\\x9f"
    assert [other["token"] for other in content[1]["top_logprobs"]] == ["\\xf0\\x9f", " \\xf0"]
    legacy = logprobs("text", "A🚀true", *entries)
    assert legacy["tokens"] == ["A", "bytes:\\xf0\\x9f", "bytes:\\x9a\\x80", "true"]
    assert legacy["text_offset"] == [0, 1, 1, 2]
    assert legacy["top_logprobs"][1] == {"bytes:\\xf0\\x9f": -0.1, "bytes: \\xf0": -0.2}


def test_tokens_that_read_alike_are_all_there() -> None:
    top = {"6": -0.1, "5": -0.2, "1": -0.3}
    [entry] = logprobs("chat", "A", [5, -0.2, top])["content"]
    assert [other["token"] for other in entry["top_logprobs"]] == ["A", "A", " true"]
    legacy = logprobs("text", "A", [5, -0.2, top])
    assert legacy["top_logprobs"] == [{"A": -0.1, "token_id:5": -0.2, " true": -0.3}]


def test_a_text_that_nothing_comes_before_begins_without_the_space() -> None:
    """As SentencePiece's decoders write it."""
    content = logprobs("chat", "true true", [1, -0.1, {}], [1, -0.1, {}])["content"]
    assert [entry["token"] for entry in content] == ["true", " true"]
    legacy = logprobs("text", "true true", [1, -0.1, {}], [1, -0.1, {}])
    assert legacy["tokens"] == ["true", " true"] and legacy["text_offset"] == [0, 4]
    assert legacy["top_logprobs"][0] == {"true": -0.1}
    hidden = logprobs("text", "", [1, -0.1, {}])  # a stop string cut it
    assert hidden["tokens"] == [" true"]


def test_what_has_no_bytes_or_no_token() -> None:
    content = logprobs("chat", "x", [8, None, {}], [9, -0.1, {}])["content"]
    assert [(entry["token"], entry["bytes"]) for entry in content] == [("\ufffd", None), ("", [])]
    assert content[0]["logprob"] == -9999.0
    assert logprobs("text", "x", [8, None, {}], [9, -0.1, {}])["text_offset"] == [0, 1]


def test_calls_of_tools_are_the_messages() -> None:
    text = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    records = [Record("p", index, "h", completion=said, num_tokens=1, finish_reason="eos")
               for index, said in enumerate((text, "4", text))]  # fmt: skip
    by, auto = Answerer("model", "f" * 16, 0), ToolChoice("auto")
    line = answered("a", "chat", records, Usage(1, 0), by, BYTES.__getitem__, None, auto)
    first, second, third = line["response"]["body"]["choices"]
    [call] = first["message"]["tool_calls"]
    assert call["function"] == {"name": "add", "arguments": '{"a": 1}'}
    assert (first["message"]["content"], first["finish_reason"]) == (None, "tool_calls")
    assert "tool_calls" not in second["message"] and second["finish_reason"] == "stop"
    assert third["message"]["tool_calls"][0]["id"] != call["id"]
