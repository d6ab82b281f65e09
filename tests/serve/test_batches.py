"""Files and batches as the unmodified `openai` client asks for them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from sharegen.job.batch_file import run_batch
from sharegen.serve.limits import Limits
from sharegen.workload.configuration import resolve
from tests.serve.serving import KV, NAME, Served, serving
from tests.tiny import save_tiny_model

TEXT = "/v1/completions"
LIMITS = Limits(grace=5.0, file=100_000, batch_requests=50, batches=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def served(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(folder, LIMITS, batch_folder=tmp_path_factory.mktemp("kept") / "in") as found:
        yield found


def line(custom_id: str, url: str = TEXT, **body: Any) -> dict[str, Any]:
    asked = {"model": NAME, "prompt": "Tom has 3 apples.", "max_tokens": 6, **body}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": asked}


def as_file(lines: list[Any]) -> bytes:
    return "".join(json.dumps(each) + "\n" for each in lines).encode()


def upload(client: openai.OpenAI, lines: list[Any]) -> str:
    return client.files.create(file=("mine.jsonl", as_file(lines)), purpose="batch").id


def begin(client: openai.OpenAI, lines: list[Any], **more: Any) -> Any:
    asked: dict[str, Any] = {"endpoint": TEXT, "completion_window": "24h", **more}
    return client.batches.create(input_file_id=upload(client, lines), **asked)


def over(client: openai.OpenAI, name: str) -> Any:
    """The batch when nothing more becomes of it."""
    until = time.monotonic() + 120
    while True:
        batch = client.batches.retrieve(name)
        if batch.status in ("completed", "failed", "cancelled"):
            return batch
        assert time.monotonic() < until, batch
        time.sleep(0.02)


def content(client: openai.OpenAI, name: str | None) -> dict[str, Any]:
    """The responses of a file of answers, by custom_id."""
    if name is None:
        return {}
    found = [json.loads(each) for each in client.files.content(name).text.splitlines()]
    return {each["custom_id"]: each["response"] for each in found}


@pytest.mark.turn(4)
def test_a_batch_has_the_answers_of_the_command_line(
    served: Served, folder: Path, tmp_path: Path
) -> None:
    client = served.client()
    lines = [
        line("greedy", temperature=0, logprobs=1, metadata={"of": "tests"}),
        line("several", prompt=["Tom", "Ann has"], n=3, seed=5),
        line("long", max_tokens=40, seed=5),
        line("misspelt", temprature=1),
        line("too long", prompt=[5] * 3000),
    ]
    begun = begin(client, lines, metadata={"run": "1"})
    assert begun.status == "validating" and begun.metadata == {"run": "1"}
    batch = over(client, begun.id)
    counts = batch.request_counts
    assert (batch.status, counts.total, counts.completed, counts.failed) == ("completed", 5, 3, 2)
    got = content(client, batch.output_file_id) | content(client, batch.error_file_id)
    (tmp_path / "in.jsonl").write_bytes(as_file(lines))
    machine = {"device": "cpu", "kv_cache_memory": KV}
    flags = {"model": str(folder), "machine": machine}
    run_batch(resolve("batch", str(tmp_path / "in.jsonl"), flags), tmp_path / "out.jsonl")
    for text in (tmp_path / "out.jsonl").read_text().splitlines():
        want = json.loads(text)
        mine, response = got[want["custom_id"]], want["response"]
        assert mine["status_code"] == response["status_code"]
        assert mine["body"].get("error") == response["body"].get("error") or "context" in str(mine)
        for own, theirs in zip(
            mine["body"].get("choices", ()), response["body"].get("choices", ()), strict=True
        ):
            assert own["text"] == theirs["text"]
    assert got["greedy"]["body"]["metadata"] == {"of": "tests"}
    kept = client.files.retrieve(batch.output_file_id)
    assert kept.purpose == "batch_output" and kept.bytes > 0
    assert {each.id for each in client.files.list(purpose="batch_output")} >= {kept.id}
    assert next(iter(client.batches.list(limit=1))).id == batch.id
    assert client.files.delete(batch.input_file_id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(batch.input_file_id)


def test_chats_are_answered(served: Served) -> None:
    client = served.client()
    chat = "/v1/chat/completions"
    body = {"messages": [{"role": "user", "content": "How many?"}], "max_tokens": 5}
    asked = {"custom_id": "a", "method": "POST", "url": chat, "body": body}
    batch = over(client, begin(client, [asked], endpoint=chat).id)
    [answer] = content(client, batch.output_file_id).values()
    assert answer["body"]["choices"][0]["message"]["role"] == "assistant"
    assert batch.error_file_id is None


WRONG: dict[str, tuple[list[Any], str, int | None, str]] = {
    "no JSON": ([line("a"), "x"], "invalid_json_line", 2, "is not a JSON object"),
    "an id twice": ([line("a"), line("a")], "duplicate_custom_id", 2, "is that of"),
    "another endpoint": ([line("a"), line("b", "/v1/chat/completions")], "url_mismatch", 2, TEXT),
    "another model": ([line("a", model="gpt-9")], "model_not_found", 1, "'gpt-9' is not served"),
    "a method": ([{**line("a"), "method": "GET"}], "invalid_method", 1, "method is 'GET'"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_file_that_is_none_of_a_batch_fails_with_its_line(served: Served, what: str) -> None:
    lines, code, number, said = WRONG[what]
    client = served.client()
    batch = over(client, begin(client, lines).id)
    [error] = batch.errors.data
    assert batch.status == "failed" and batch.output_file_id is None
    assert (error.code, error.line) == (code, number) and said in error.message


def test_bad_requests_about_files_and_batches_are_refused_by_name(served: Served) -> None:
    client = served.client()
    good = upload(client, [line("a")])
    for file, said in (
        (b"", "the file is empty"),
        (as_file([line(str(n)) for n in range(51)]), "--max-batch-requests"),
        (b"x" * 500_000, "--max-file"),
    ):
        with pytest.raises(openai.APIStatusError, match=said) as caught:
            client.files.create(file=("f.jsonl", file), purpose="batch")
        assert caught.value.status_code in (400, 413)
    with pytest.raises(openai.BadRequestError, match="files are for batches"):
        client.files.create(file=b"{}\n", purpose="fine-tune")
    with pytest.raises(openai.BadRequestError, match="kept until they are deleted"):
        client.files.create(
            file=b"{}\n", purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
        )
    for body, status, param in (
        ({"input_file_id": good, "endpoint": "/v1/embeddings"}, 400, "endpoint"),
        ({"input_file_id": good, "completion_window": "1h"}, 400, "completion_window"),
        ({"input_file_id": good, "endpont": TEXT}, 400, "endpont"),
        ({"input_file_id": "file-../../etc/passwd"}, 404, "id"),
        ({"input_file_id": good, "output_expires_after": {}}, 400, "output_expires_after"),
        ([], 400, None),
    ):
        whole = body if isinstance(body, list) else {
            "endpoint": TEXT, "completion_window": "24h", **body
        }  # fmt: skip
        got, answer = served.ask("/v1/batches", whole)
        assert (got, answer["error"]["param"]) == (status, param), answer
    for path, method in (
        ("/v1/files/file-1", "GET"),
        ("/v1/files/..%2f..%2fserver.lock/content", "GET"),
        ("/v1/files/file-1", "DELETE"),
        ("/v1/batches/batch_1", "GET"),
        ("/v1/batches/batch_1/cancel", "POST"),
        ("/v1/batches?after=batch_1", "GET"),
    ):
        assert served.ask(path, method=method)[0] == 404, path
    assert served.ask("/v1/files?limit=0", method="GET")[0] == 400
    assert served.ask("/v1/files", b"{}")[0] == 415
    assert served.ask("/v1/files", b"x", Content_Type="multipart/form-data")[0] == 400
    page = "http://evil.example"
    assert served.ask("/v1/files", b"x", Content_Type="multipart/form-data", Origin=page)[0] == 403
    client.files.delete(good)


def test_a_batch_is_cancelled_with_what_it_has(served: Served) -> None:
    client = served.client()
    endless = {"max_tokens": 1900, "ignore_eos": True, "n": 2}
    lines = [line("short", max_tokens=1), *(line(str(n), **endless) for n in range(40))]
    first, second = begin(client, lines), begin(client, lines[1:])
    with pytest.raises(openai.RateLimitError, match="--max-batches"):
        begin(client, lines[:1])
    with pytest.raises(openai.ConflictError, match="cancel it first"):
        client.files.delete(first.input_file_id)
    until = time.monotonic() + 60
    while not client.batches.retrieve(first.id).request_counts.completed:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert client.completions.create(model=NAME, prompt="a", max_tokens=1).choices  # beside it
    for batch in (second, first):
        assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    ended = over(client, first.id)
    assert ended.status == "cancelled" and "short" in content(client, ended.output_file_id)
    assert over(client, second.id).output_file_id is None
    with pytest.raises(openai.ConflictError, match="cannot be cancelled"):
        client.batches.cancel(first.id)
    while served.engines.has_work:
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.turn(4)
def test_the_next_server_goes_on(folder: Path, tmp_path: Path) -> None:
    """Whatever was written stays, a line that was cut off is asked again, and none comes twice."""
    lines = [line(str(n), seed=n, max_tokens=30, ignore_eos=True, n=2) for n in range(6)]
    kept = tmp_path / "kept"
    with serving(folder, Limits(grace=0.1), batch_folder=kept) as served:
        batch = begin(served.client(), lines)  # and the server is told to end
    with serving(folder, Limits(grace=5), batch_folder=kept) as served:
        assert over(served.client(), batch.id).request_counts.completed == 6
    [output] = (kept / "files").glob("*-output.jsonl")
    [description] = (kept / "batches").glob("*.json")
    whole = output.read_bytes().splitlines(keepends=True)
    # As a process leaves it that was killed.
    output.write_bytes(b"".join(whole[:2]) + whole[2][:40])
    output.with_suffix(".json").unlink()
    state = json.loads(description.read_text()) | {"status": "in_progress", "output_file_id": None}
    description.write_text(json.dumps(state))
    with serving(folder, Limits(grace=5), batch_folder=kept) as served:
        client = served.client()
        ended = over(client, batch.id)
        assert (ended.status, ended.request_counts.completed) == ("completed", 6)
        text = client.files.content(ended.output_file_id).text.splitlines(keepends=True)
        assert [each.encode() for each in text[:2]] == whole[:2] and len(text) == 6
        assert choices(text) == choices(whole)


def choices(lines: list[Any]) -> dict[str, list[str]]:
    """The texts of answers, by custom_id."""
    found = map(json.loads, lines)
    return {
        each["custom_id"]: [choice["text"] for choice in each["response"]["body"]["choices"]]
        for each in found
    }


@pytest.mark.slow
def test_another_model_does_not_go_on(folder: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with serving(folder, Limits(grace=0.1), batch_folder=kept) as served:
        batch = begin(served.client(), [line("a", max_tokens=1900, n=32, ignore_eos=True)])
    [path] = (kept / "batches").glob("*.json")
    values = json.loads(path.read_text())
    assert values["id"] == batch.id
    path.write_text(json.dumps(values | {"settings": "other", "status": "in_progress"}))
    with serving(folder, Limits(grace=5), batch_folder=kept) as served:
        ended = over(served.client(), batch.id)
        assert ended.status == "failed" and ended.errors.data[0].code == "model_changed"


def test_without_a_folder_no_file_is_kept(folder: Path) -> None:
    refused = pytest.raises(openai.NotFoundError, match="--batch-folder")
    with serving(folder, Limits(grace=5)) as served, refused:
        upload(served.client(), [line("a")])
