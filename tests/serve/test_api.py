"""The endpoint as clients see it: unmodified ones, wrong ones, and those that leave."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sharegen import LLM, SamplingParams
from sharegen.serve import api
from sharegen.serve.limits import Limits
from tests.engine.parallel.forked import Forked, Starved
from tests.serve.serving import KV, NAME, Served, serving
from tests.tiny import save_tiny_model

PROMPT = "Question: Tom has 3 apples and buys 4 more. How many apples does he have?\nAnswer:"
CHAT = [{"role": "user", "content": "How many eggs are in 5 boxes?"}]
LIMITS = Limits(body=100_000, choices=32, grace=5.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    with serving(folder, LIMITS) as found:
        yield found


@pytest.fixture(scope="module")
def impatient(folder: Path) -> Iterator[Served]:
    """One that waits for no client longer than a second."""
    with serving(folder, Limits(client_seconds=1.0, grace=5.0)) as found:
        yield found


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(folder, kv_cache_memory=KV) as found:
        yield found


def wait_until_idle(served: Served) -> None:
    """Until nothing runs and no client is waited for."""
    until = time.monotonic() + 60
    while served.engines.has_work or served.server.api.counts.total("open"):
        assert time.monotonic() < until
        time.sleep(0.01)


# -- what clients get ---------------------------------------------------------------------------


def test_greedy_texts_and_seeded_samples_are_those_of_llm(served: Served, llm: LLM) -> None:
    client = served.client()
    for asked in ({"temperature": 0.0}, {"temperature": 1.0, "seed": 7, "n": 3, "top_p": 0.9}):
        got = client.completions.create(model=NAME, prompt=PROMPT, max_tokens=20, **asked)
        [want] = llm.generate([PROMPT], SamplingParams(max_tokens=20, **asked))
        assert [choice.text for choice in got.choices] == [each.text for each in want.outputs]
        assert got.usage.prompt_tokens == len(want.prompt_token_ids)
        assert got.usage.completion_tokens == sum(len(o.token_ids) for o in want.outputs)
    chat = client.chat.completions.create(
        model=NAME, messages=CHAT, max_tokens=12, temperature=0, logprobs=True, top_logprobs=2
    )
    [want] = llm.chat(CHAT, SamplingParams(max_tokens=12, temperature=0, logprobs=2))
    assert chat.choices[0].message.content == want.outputs[0].text
    told = [each.logprob for each in chat.choices[0].logprobs.content]
    known = [next(iter(each.values())).logprob for each in want.outputs[0].logprobs]
    assert told == pytest.approx(known, abs=1e-5)


def test_without_a_seed_each_request_draws_anew(served: Served) -> None:
    texts = [
        served.client().completions.create(model=NAME, prompt=PROMPT, max_tokens=16).choices[0].text
        for _ in range(3)
    ]
    assert len(set(texts)) == 3


@pytest.mark.parametrize("stop", [None, "2", ["ap", "\n"]])
def test_a_stream_says_what_the_whole_answer_says(served: Served, stop: Any) -> None:
    asked: dict[str, Any] = {
        "model": NAME, "prompt": [PROMPT, PROMPT[:30]], "max_tokens": 24, "seed": 3, "n": 2,
        "logprobs": 1, "stop": stop, "extra_body": {"return_token_ids": True},
    }  # fmt: skip
    client = served.client()
    whole = client.completions.create(**asked)
    texts, tokens, ids, ends = [""] * 4, [[] for _ in range(4)], [[] for _ in range(4)], {}
    usage = None
    for chunk in client.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            ids[choice.index] += choice.token_ids
            tokens[choice.index] += choice.logprobs.tokens if choice.logprobs else []
            if choice.finish_reason:
                ends[choice.index] = choice.finish_reason
    assert texts == [choice.text for choice in whole.choices]
    assert ids == [choice.token_ids for choice in whole.choices]
    assert tokens == [choice.logprobs.tokens for choice in whole.choices]
    assert ends == {c.index: c.finish_reason for c in whole.choices}
    assert usage.completion_tokens == whole.usage.completion_tokens


def test_a_streamed_chat_begins_with_its_role(served: Served) -> None:
    client = served.client()
    asked: dict[str, Any] = {"model": NAME, "messages": CHAT, "max_tokens": 10, "temperature": 0}
    whole = client.chat.completions.create(**asked).choices[0].message.content
    chunks = list(client.chat.completions.create(**asked, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole
    assert chunks[-1].choices[0].finish_reason == "length"


def test_echo_tells_the_prompt_and_what_the_model_says_of_it(served: Served, llm: LLM) -> None:
    [want] = llm.generate([PROMPT], SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=1))
    ids = want.prompt_token_ids
    pairs = list(zip(ids, want.prompt_logprobs, strict=True))[1:]
    known = [entry[token].logprob for token, entry in pairs]
    for max_tokens in (0, 1):
        status, body = served.ask(
            "/v1/completions",
            {"prompt": ids, "max_tokens": max_tokens, "temperature": 0, "logprobs": 1,
             "echo": True, "return_token_ids": True},
        )  # fmt: skip
        assert status == 200, body
        choice = body["choices"][0]
        logprobs = choice["logprobs"]
        assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
        assert logprobs["token_logprobs"][1 : len(ids)] == pytest.approx(known, abs=1e-5)
        assert len(logprobs["tokens"]) == len(ids) + max_tokens
        assert choice["text"] == PROMPT + (want.outputs[0].text if max_tokens else "")
        assert choice["prompt_token_ids"] == ids and len(choice["token_ids"]) == max_tokens
        assert body["usage"]["completion_tokens"] == max_tokens


def test_structured_outputs_and_stop_token_ids(served: Served) -> None:
    pytest.importorskip("llguidance")
    chat = served.client().chat.completions.create(
        model=NAME,
        messages=CHAT,
        max_tokens=40,
        extra_body={"structured_outputs": {"choice": ["yes", "no"]}},
    )
    assert chat.choices[0].message.content in ("yes", "no")


TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer", "maximum": 9, "minimum": 0}},
            "required": ["a"],
            "additionalProperties": False,
        },
    },
}
WRITTEN = 'I add. <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


@pytest.mark.parametrize(
    ("choice", "ends"),
    [
        ("auto", "tool_calls"),
        ("required", "tool_calls"),
        ({"type": "function", "function": {"name": "add"}}, "stop"),
    ],
    ids=["auto", "required", "named"],
)
def test_calls_of_tools_are_parsed(served: Served, choice: Any, ends: str) -> None:
    pytest.importorskip("llguidance")
    client = served.client()
    asked: dict[str, Any] = {
        "model": NAME, "messages": CHAT, "tools": [TOOL], "tool_choice": choice,
        "parallel_tool_calls": False, "max_tokens": 200, "seed": 1,
    }  # fmt: skip
    if choice == "auto":  # a model that was not trained to call writes so where it has to
        asked["extra_body"] = {"structured_outputs": {"choice": [WRITTEN]}}
    whole = client.chat.completions.create(**asked).choices[0]
    [call] = whole.message.tool_calls
    assert (whole.finish_reason, call.function.name) == (ends, "add")
    arguments = json.loads(call.function.arguments)
    assert list(arguments) == ["a"] and 0 <= arguments["a"] <= 9
    assert whole.message.content == ("I add." if choice == "auto" else None)
    text, calls, reasons = "", [], []
    for chunk in client.chat.completions.create(**asked, stream=True):
        [part] = chunk.choices
        text += part.delta.content or ""
        calls += part.delta.tool_calls or []
        reasons += [part.finish_reason] if part.finish_reason else []
    assert text.strip() == (whole.message.content or "") and reasons == [ends]
    assert [each.function.arguments for each in calls] == [call.function.arguments]
    assert calls[0].id != call.id and calls[0].index == 0


def test_tools_that_need_not_be_called(served: Served) -> None:
    body = {"messages": CHAT, "tools": [TOOL], "max_tokens": 8}
    for choice in ("auto", "none"):
        status, answer = served.ask("/v1/chat/completions", {**body, "tool_choice": choice})
        assert status == 200 and "tool_calls" not in answer["choices"][0]["message"]
    status, answer = served.ask(
        "/v1/chat/completions",
        {**body, "tool_choice": "required", "response_format": {"type": "json_object"}},
    )
    assert status == 400 and answer["error"]["param"] == "tool_choice"


def test_n_requests_of_one_prompt_cost_what_one_of_n_samples_costs(served: Served) -> None:
    import openai

    client = openai.AsyncOpenAI(base_url=served.url, api_key="none", max_retries=0)
    prompt = "0 1 2 3 4 5 6 7 8 9 . , ? ! $ " * 12

    async def ask_all() -> list[str]:
        asked = (
            client.completions.create(model=NAME, prompt=prompt, max_tokens=8) for _ in range(40)
        )
        found = [answer.choices[0].text for answer in await asyncio.gather(*asked)]
        await client.close()
        return found

    before = served.engines.stats.prompt_tokens_computed
    texts = asyncio.run(ask_all())
    length = served.client().completions.create(model=NAME, prompt=prompt).usage.prompt_tokens
    assert len(set(texts)) > 30
    computed = served.engines.stats.prompt_tokens_computed - before
    assert length <= computed < length + 41 * 16  # less than a block each, beside the prompt


def test_models_health_and_metrics(served: Served) -> None:
    client = served.client()
    [model] = client.models.list().data
    assert model.id == NAME and client.models.retrieve(NAME).id == NAME
    assert served.ask("/health", method="GET") == (200, {"status": "ok"})
    status, text = served.ask("/metrics", method="GET")
    assert status == 200 and 'sharegen_http_requests_total{status="200"}' in text
    assert "sharegen_prefix_tokens_saved_total" in text


# -- what is wrong ------------------------------------------------------------------------------

BAD: dict[str, tuple[Any, int, str]] = {
    "unknown model": ({"model": "gpt-9", "prompt": "a"}, 404, "'gpt-9' is not served"),
    "no body": (b"", 400, "no body"),
    "not JSON": (b"{", 400, "not JSON"),
    "not UTF-8": (b'{"prompt": "\xff"}', 400, "not UTF-8"),
    "half a character": (b'{"prompt": "\\ud800"}', 400, "half of a character"),
    "a list": ([1], 400, "object is expected"),
    "deep": (b'{"prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}", 400, "not JSON"),
    "no prompt": ({}, 400, "'prompt' is missing"),
    "an empty prompt": ({"prompt": ""}, 400, "empty"),
    "n of 0": ({"prompt": "a", "n": 0}, 400, "n is 0"),
    "n of 10,000": ({"prompt": "a", "n": 10_000}, 400, "--max-choices"),
    "n of 10**9": ({"prompt": "a", "n": 10**9}, 400, "n is"),
    "a beam search": ({"prompt": "a", "stream": True, "use_beam_search": True}, 400, "a recipe"),
    "1,000 stops": ({"prompt": "a", "stop": ["x"] * 1000}, 400, "stop has 1,000 texts"),
    "an unknown field": ({"prompt": "a", "temprature": 1}, 400, "did you mean 'temperature'?"),
    "a long answer": ({"prompt": "a", "max_tokens": 5000}, 400, "context holds 2,048"),
    "a long prompt": ({"prompt": [5] * 3000}, 400, "context holds 2,048"),
    "no such token": ({"prompt": [5, 100_000]}, 400, "outside the model's vocabulary"),
    "a wrong type": ({"prompt": "a", "stream": "yes"}, 400, "stream is 'yes'"),
    "options of no stream": ({"prompt": "a", "stream_options": {}}, 400, "needs stream"),
    "a stream of what is said of a prompt": (
        {"prompt": "a", "stream": True, "echo": True, "logprobs": 1}, 400, "is not streamed"),
    "an option of no stream of OpenAI's": (
        {"prompt": "a", "stream": True, "stream_options": {"continuous_usage_stats": True}},
        400, "unknown field 'stream_options.continuous_usage_stats'"),
    "a wrong grammar": (
        {"prompt": "a", "structured_outputs": {"regex": "("}}, 400, "structured_outputs"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_bad_requests_are_named_in_the_shape_of_openai(served: Served, what: str) -> None:
    body, status, said = BAD[what]
    got, answer = served.ask("/v1/completions", body)
    error = answer["error"]
    assert (got, said in error["message"]) == (status, True), answer
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"


def test_openais_client_raises_its_own_errors(served: Served) -> None:
    import openai

    client = served.client()
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="other", prompt="a")
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=NAME, prompt="a", max_tokens=4000)
    assert caught.value.code == "context_length_exceeded"


def test_other_paths_methods_types_and_hosts(served: Served) -> None:
    assert served.ask("/v1/embeddings", {})[0] == 404
    status, answer = served.ask("/v1/completions", method="GET")
    assert status == 405 and answer["error"]["message"].endswith("does not take GET: use POST")
    body = {"prompt": "a", "max_tokens": 1}
    assert served.ask("/v1/completions", body, Content_Type="text/plain")[0] == 415
    assert served.ask("/v1/completions", body, Host="evil.example:80")[0] == 403
    assert served.ask("/v1/completions", body, Host="localhost:80")[0] == 200


def test_a_large_body_is_refused(served: Served) -> None:
    for size in (150_000, 1_500_000, 30_000_000):  # the last is not read to its end
        try:
            status, answer = served.ask("/v1/completions", b"x" * size)
        except ConnectionError:
            assert size > 16 * LIMITS.body
            continue
        assert status == 413 and "--max-body" in answer["error"]["message"]
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as client:
        client.sendall(HEAD + b"Expect: 100-continue\r\nContent-Length: 150000\r\n\r\n")
        assert read_all(client).startswith(b"HTTP/1.1 413")  # with nothing sent


def read_all(client: socket.socket) -> bytes:
    found = b""
    while data := client.recv(4096):
        found += data
    return found


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (HEAD[:30], b""),  # a head that does not end
        (HEAD + b"Content-Length: 50\r\n\r\n{", b"HTTP/1.1 408"),
        (b"nonsense\r\n\r\n", b"HTTP/1.1 400"),
        (HEAD + b"X: " + b"x" * 100_000 + b"\r\n\r\n", b"HTTP/1.1 4"),
    ],
    ids=["slow head", "slow body", "nonsense", "large head"],
)
def test_slow_and_malformed_clients_cost_nobody_else(
    impatient: Served, sent: bytes, said: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", impatient.port), timeout=60) as client:
        client.sendall(sent)
        other = impatient.client().with_options(max_retries=9)  # where this machine is slow itself
        assert other.completions.create(model=NAME, prompt="a", max_tokens=2).choices
        try:
            assert read_all(client).startswith(said)
        except ConnectionResetError:  # closed with bytes that nobody has read
            assert said != b"HTTP/1.1 408"
    wait_until_idle(impatient)


@pytest.mark.parametrize(
    ("begun", "said"),
    [(b"", b""), (HEAD + b"Content-Length: 500\r\n\r\n", b"HTTP/1.1 408")],
    ids=["head", "body"],
)
def test_a_byte_now_and_then_is_not_listened_to_for_long(
    impatient: Served, begun: bytes, said: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", impatient.port), timeout=60) as client:
        client.sendall(begun)
        until, got = time.monotonic() + 60, b""
        client.settimeout(0.1)
        while time.monotonic() < until:
            try:
                client.sendall(b"{" if begun else HEAD[:1])
                got += client.recv(4096)
                break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        assert time.monotonic() < until and got.startswith(said)
    wait_until_idle(impatient)


def test_the_rest_of_a_body_that_was_answered_is_not_waited_for(impatient: Served) -> None:
    head = HEAD.replace(b"application/json", b"text/plain") + b"Content-Length: 5000000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", impatient.port), timeout=60) as client:
        client.sendall(head)
        assert client.recv(4096).startswith(b"HTTP/1.1 415")
        until = time.monotonic() + 60
        with pytest.raises(ConnectionError):
            while time.monotonic() < until:
                client.sendall(b"x")
                time.sleep(0.05)


def test_a_large_body_is_read_beside_the_others(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, begun, may_end = served.server.api._reader, threading.Event(), threading.Event()
    read = reader.read

    def slow(endpoint: Any, body: bytes) -> Any:
        if len(body) > 20_000:
            begun.set()
            assert may_end.wait(60)
        return read(endpoint, body)

    monkeypatch.setattr(reader, "read", slow)
    monkeypatch.setattr(api, "_LARGE", 20_000)
    with ThreadPoolExecutor(1) as beside:
        large = beside.submit(served.ask, "/v1/completions", {"prompt": "a " * 20_000})
        assert begun.wait(60)
        assert served.ask("/v1/completions", {"prompt": "a", "max_tokens": 1})[0] == 200
        assert served.server.api.counts.total("held") > 40_000  # bodies that wait are bounded too
        may_end.set()
        assert large.result()[1]["error"]["code"] == "context_length_exceeded"
    assert served.server.api.counts.total("held") == 0


def test_a_defect_is_told_without_words_of_a_prompt(
    served: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def defect(endpoint: Any, body: bytes) -> Any:
        raise ValueError(body)

    monkeypatch.setattr(served.server.api._reader, "read", defect)
    status, answer = served.ask("/v1/completions", {"prompt": "a secret"})
    assert status == 500 and answer["error"]["type"] == "server_error"
    told = capsys.readouterr().err
    assert "ValueError" in told and "test_api.py" in told and "secret" not in told
    wait_until_idle(served)


@pytest.mark.parametrize("stream", [False, True])
def test_who_leaves_is_let_go_of(served: Served, stream: bool) -> None:
    wait_until_idle(served)
    before = served.server.api.counts.total("left")
    body = {"prompt": PROMPT, "max_tokens": 1900, "ignore_eos": True, "n": 8, "stream": stream}
    data = json.dumps(body).encode()
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as client:
        client.sendall(HEAD + f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
        until = time.monotonic() + 60
        while served.engines.stats.running < 8:
            assert time.monotonic() < until
            time.sleep(0.005)
    wait_until_idle(served)
    assert served.server.api.counts.total("left") == before + 1
    while served.engines.stats.blocks_used:  # which the engine tells when it has let go of them
        assert time.monotonic() < until
        time.sleep(0.005)


def test_keys_are_asked_for_and_requests_bounded(folder: Path) -> None:
    with serving(folder, Limits(requests=1, grace=5), key="s3cret") as served:
        body = {"prompt": "a", "max_tokens": 1}
        for brought in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "s3cret"}):
            status, answer = served.ask("/v1/completions", body, **brought)
            assert status == 401 and answer["error"]["code"] == "invalid_api_key"
        assert served.ask("/v1/completions", b"x" * 8_000_000)[0] == 401
        assert served.ask("/metrics", method="GET")[0] == 401
        assert served.ask("/health", method="GET")[0] == 200
        right = {"Authorization": "Bearer s3cret"}
        assert served.ask("/v1/completions", body, **right)[0] == 200
        long = served.client().completions.create(
            model=NAME, prompt="a", max_tokens=1900, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(long))
        status, answer = served.ask("/v1/completions", body, **right)
        assert status == 429 and "--max-requests" in answer["error"]["message"]
        long.close()


def test_the_end_of_the_last_engine_is_told_to_all(folder: Path) -> None:
    with serving(folder, kinds=[Starved]) as served:
        status, answer = served.ask("/v1/completions", {"prompt": "a", "ignore_eos": True})
        assert status == 500 and answer["error"]["type"] == "server_error"
        assert "engine has ended" in answer["error"]["message"]
    assert "allocate" in str(*served.died)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:worker . is gone")
def test_with_two_engines_the_death_of_one_is_not_seen(folder: Path) -> None:
    with serving(folder, kinds=[Forked, Forked]) as served, ThreadPoolExecutor(16) as clients:
        body = {"prompt": PROMPT, "max_tokens": 400, "ignore_eos": True, "seed": 1}
        asked = [clients.submit(served.ask, "/v1/completions", body) for _ in range(16)]
        until = time.monotonic() + 60
        while served.engines.stats.running < 10:
            assert time.monotonic() < until
            time.sleep(0.005)
        served.kill(0)
        answers = [each.result() for each in asked]
        assert [status for status, _ in answers] == [200] * 16
        # Where sums are split depends on what stood, so that late tokens may differ some day.
        assert len({answer["choices"][0]["text"][:20] for _, answer in answers}) == 1
        assert "sharegen_engines 1\n" in served.ask("/metrics", method="GET")[1]
        assert served.ask("/health", method="GET")[0] == 200
