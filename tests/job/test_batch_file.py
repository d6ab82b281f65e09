"""`run batch`: every answer is read by the types of OpenAI's own package."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from sharegen.errors import DataError, JournalError, UsageError
from sharegen.job import batch_file
from sharegen.job.batch_file import Answers, run_batch
from sharegen.workload.configuration import resolve

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SYSTEM = {"role": "system", "content": "Tom has 3 apples and buys 4 more. " * 3}


def chat(custom_id: str, question: str = "How many?", **body: Any) -> dict[str, Any]:
    messages = [SYSTEM, {"role": "user", "content": question}]
    return asked(custom_id, CHAT, {"messages": messages, "max_tokens": 4, **body})


def text(custom_id: str, prompt: Any = "How many?", **body: Any) -> dict[str, Any]:
    return asked(custom_id, TEXT, {"prompt": prompt, "max_tokens": 4, **body})


def asked(custom_id: str, url: str, body: dict[str, Any]) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"model": "tiny", **body}}


@pytest.fixture
def answer(folder: Path, tmp_path: Path) -> Callable[..., Any]:
    """Answers to requests, by custom_id."""

    def answer(requests: list[dict[str, Any]], name: str = "out.jsonl", **options: Any) -> Any:
        source = tmp_path / "requests.jsonl"
        source.write_text("".join(json.dumps(request) + "\n" for request in requests))
        flags = {
            "model": str(folder / "model"),
            "machine": {"device": "cpu", "kv_cache_memory": 1 << 22},
        }
        found = run_batch(resolve("batch", str(source), flags), tmp_path / name, **options)
        return found, read(tmp_path / name)

    return answer


def read(path: Path) -> dict[str, dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {line["custom_id"]: line["response"] for line in lines}


@pytest.mark.slow
def test_openais_own_types_read_every_answer(answer: Any, tmp_path: Path) -> None:
    from openai.types import Completion
    from openai.types.chat import ChatCompletion

    requests = [
        chat("a", n=2, metadata={"of": "tests"}),
        chat("b", "Why?", temperature=0, max_tokens=2),
        text("c", n=3, stop=["q"], seed=9),
        text("d", [5, 6, 7]),
        text("e", ["Tom", "Ann"], n=2),
        chat("bad", foo=1),
        text("long", [5] * 600),
        chat("likely", "Who?", logprobs=True, top_logprobs=3, logit_bias={"50": 100}),
        text("legacy", logprobs=2, max_tokens=3),
        text("absurd", logit_bias={"99999": 1}),
    ]
    (outcome, answers), found = answer(requests)
    assert answers == Answers(tmp_path / "out.jsonl", 7, 3) and outcome.drawn == 13
    assert list(found) == [request["custom_id"] for request in requests]
    for name, kind in (("a", ChatCompletion), ("b", ChatCompletion), ("c", Completion)):
        kind.model_validate(found[name]["body"], strict=True)
    chats = {
        name: ChatCompletion.model_validate(found[name]["body"]) for name in ("a", "b", "likely")
    }
    texts = {
        name: Completion.model_validate(found[name]["body"]) for name in ("c", "d", "e", "legacy")
    }
    for name, count in (("a", 2), ("b", 1), ("c", 3), ("d", 1), ("e", 4), ("likely", 1)):
        body = (chats | texts)[name]
        assert [choice.index for choice in body.choices] == list(range(count))
        assert {choice.finish_reason for choice in body.choices} <= {"stop", "length"}
        assert body.model == "model" and body.usage is not None
        assert body.usage.total_tokens == body.usage.prompt_tokens + body.usage.completion_tokens
    usage = chats["a"].usage
    assert usage and usage.prompt_tokens_details
    assert 40 < (usage.prompt_tokens_details.cached_tokens or 0) < usage.prompt_tokens
    assert chats["a"].metadata == {"of": "tests"}
    assert texts["d"].usage and texts["d"].usage.prompt_tokens == 3
    assert chats["b"].choices[0].finish_reason == "length"
    likely = chats["likely"].choices[0].logprobs
    assert likely and likely.content and len(likely.content) == 4
    assert len({entry.token for entry in likely.content}) == 1  # the one that is biased
    for entry in likely.content:
        assert [len(entry.top_logprobs), entry.bytes] == [3, list(entry.token.encode())]
        assert entry.top_logprobs[0].logprob >= entry.logprob
    legacy = texts["legacy"].choices[0].logprobs
    assert legacy and legacy.tokens and legacy.text_offset and legacy.top_logprobs
    assert legacy.text_offset == [0, *accumulate(map(len, legacy.tokens))][:3]
    for token, top in zip(legacy.tokens, legacy.top_logprobs, strict=True):
        assert token in top and len(top) in (2, 3)  # what was drawn, beside the two likeliest
    assert "99999" in found["absurd"]["body"]["error"]["message"]
    errors = {name: found[name]["body"]["error"] for name in ("bad", "long")}
    assert [found[name]["status_code"] for name in errors] == [400, 400]
    assert errors["bad"]["param"] == "foo" and "unknown field" in errors["bad"]["message"]
    assert errors["long"]["param"] is None and "context" in errors["long"]["message"]


@pytest.mark.slow
def test_each_request_is_drawn_as_it_says(answer: Any) -> None:
    """As a job of its own would; the seed of a request is its own."""
    requests = [
        text("a", n=2, seed=1, temperature=0.7),
        text("b", n=2, seed=2, top_k=3),
        text("c", n=2, max_tokens=7),
    ]
    _, together = answer(requests)
    for place, request in enumerate(requests):
        _, apart = answer([request], f"{place}.jsonl")
        name = request["custom_id"]
        assert apart[name]["body"]["choices"] == together[name]["body"]["choices"]
    _, other = answer([text("a", n=2, seed=2, temperature=0.7)], "other.jsonl")
    assert other["a"]["body"]["choices"] != together["a"]["body"]["choices"]


@pytest.mark.slow
def test_a_batch_goes_on_and_its_answers_are_written_again(answer: Any, tmp_path: Path) -> None:
    requests = [text("a", n=2), chat("b"), chat("bad", n=0)]
    _, found = answer(requests)
    (tmp_path / "out.jsonl").unlink()
    (outcome, _), again = answer(requests)
    assert outcome.drawn == 0 and again == found
    (outcome, _), more = answer([text("a", n=3), *requests[1:], text("c")])
    assert outcome.drawn == 2 and more["b"] == {**found["b"], "body": more["b"]["body"]}
    assert more["a"]["body"]["choices"][:2] == found["a"]["body"]["choices"]
    (outcome, _), fewer = answer([text("a", n=1), *requests[1:]])
    assert outcome.drawn == 0 and len(fewer["a"]["body"]["choices"]) == 1
    with pytest.raises(JournalError, match=r"problem 'a'.*prompt .*changed since"):
        answer([text("a", n=2, temperature=0.5), *requests[1:]])


def test_where_nothing_can_be_answered_the_file_says_why(answer: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no row can be asked: .*n is 0"):
        answer([chat("a", n=0), chat("b", n=0)])
    assert [found["status_code"] for found in read(tmp_path / "out.jsonl").values()] == [400, 400]
    with pytest.raises(DataError, match="no row can be asked: the prompt has 600 tokens"):
        answer([chat("a", n=0), text("b", [5] * 600)])
    assert "600 tokens" in read(tmp_path / "out.jsonl")["b"]["body"]["error"]["message"]


def test_answers_replace_nothing_but_answers(answer: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is the file of requests"):
        answer([text("a")], "requests.jsonl")
    (tmp_path / "mine.jsonl").write_text("mine\n")
    with pytest.raises(UsageError, match="holds something else"):
        answer([text("a")], "mine.jsonl")
    assert (tmp_path / "mine.jsonl").read_text() == "mine\n"
    answer([text("a")])
    with pytest.raises(UsageError, match="is a journal"):
        answer([text("a")], "out.journal.jsonl")


def test_answers_replace_nothing_that_somebody_wrote_meanwhile(
    answer: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, run = tmp_path / "out.jsonl", batch_file.run_job

    def running(*arguments: Any, **options: Any) -> Any:
        outcome = run(*arguments, **options)
        path.write_text("mine\n")
        return outcome

    monkeypatch.setattr(batch_file, "run_job", running)
    with pytest.raises(DataError, match=r"out\.jsonl: somebody wrote .*out\.journal\.jsonl"):
        answer([chat("a")])
    assert path.read_text() == "mine\n"
    path.unlink()
    monkeypatch.setattr(batch_file, "run_job", run)
    assert answer([chat("a")])[1].keys() == {"a"}
