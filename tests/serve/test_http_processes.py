"""Clients that reach other processes than the one with the engines are answered as they were by it.

What is imported from the other tests of the endpoint runs here with two such processes.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sharegen import LLM
from sharegen.serve.limits import Limits
from tests.engine.parallel.forked import Starved
from tests.serve.serving import KV, NAME, Served, serving
from tests.serve.test_api import (
    LIMITS,
    read_all,
    test_a_large_body_is_refused,
    test_a_stream_says_what_the_whole_answer_says,
    test_a_streamed_chat_begins_with_its_role,
    test_echo_tells_the_prompt_and_what_the_model_says_of_it,
    test_greedy_texts_and_seeded_samples_are_those_of_llm,
    test_models_health_and_metrics,
    test_n_requests_of_one_prompt_cost_what_one_of_n_samples_costs,
    test_openais_client_raises_its_own_errors,
    test_other_paths_methods_types_and_hosts,
    test_the_rest_of_a_body_that_was_answered_is_not_waited_for,
    test_who_leaves_is_let_go_of,
    test_without_a_seed_each_request_draws_anew,
    wait_until_idle,
)
from tests.serve.test_batches import as_file, line, over
from tests.tiny import save_tiny_model

__all__ = [
    "test_a_large_body_is_refused",
    "test_a_stream_says_what_the_whole_answer_says",
    "test_a_streamed_chat_begins_with_its_role",
    "test_echo_tells_the_prompt_and_what_the_model_says_of_it",
    "test_greedy_texts_and_seeded_samples_are_those_of_llm",
    "test_models_health_and_metrics",
    "test_n_requests_of_one_prompt_cost_what_one_of_n_samples_costs",
    "test_openais_client_raises_its_own_errors",
    "test_other_paths_methods_types_and_hosts",
    "test_the_rest_of_a_body_that_was_answered_is_not_waited_for",
    "test_who_leaves_is_let_go_of",
    "test_without_a_seed_each_request_draws_anew",
]

pytestmark = pytest.mark.slow
ASKED = {"prompt": "Tom has 3 apples.", "max_tokens": 4}
PATH = "/v1/completions"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    with serving(folder, LIMITS, processes=2) as found:
        yield found


@pytest.fixture(scope="module")
def impatient(folder: Path) -> Iterator[Served]:
    with serving(folder, Limits(client_seconds=1.0, grace=5.0), processes=1) as found:
        yield found


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(folder, kv_cache_memory=KV) as found:
        yield found


def written(path: str, body: Any) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


def test_one_connection_may_ask_for_all_of_it(served: Served) -> None:
    connection = served.connection()
    headers = {"Content-Type": "application/json"}
    for method, path, body in (
        ("POST", PATH, json.dumps(ASKED)), ("GET", "/v1/models", None),
        ("POST", PATH, json.dumps(ASKED)), ("GET", "/health", None),
    ):  # fmt: skip
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())) != (200, {})
        assert answer.status == 200
    connection.close()


def test_who_waits_for_no_answer_has_each(served: Served) -> None:
    """What comes before the answer to a completion is not handed over: it would be answered twice
    or never."""
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as client:
        client.sendall(written(PATH, ASKED) + written(PATH, ASKED))
        client.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
        found = read_all(client)
    assert found.count(b"HTTP/1.1 200") == 2 and b"HTTP/1.1 421" in found, found


def test_half_of_a_first_line_is_no_completion_yet(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as client:
        whole = written(PATH, ASKED).replace(b"Host", b"Connection: close\r\nHost")
        for part in (whole[:9], whole[9:30], whole[30:]):
            client.sendall(part)
            time.sleep(0.05)
        assert read_all(client).startswith(b"HTTP/1.1 200")


def test_bounds_are_those_of_all_together(folder: Path) -> None:
    limits = Limits(requests=1, connections=6, grace=5)
    with serving(folder, limits, processes=2) as served, ExitStack() as open_ones:
        long = served.client().completions.create(
            model=NAME, prompt="a", max_tokens=1900, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(long))
        for _ in range(4):  # whichever process it reaches
            status, answer = served.ask(PATH, ASKED)
            assert status == 429 and "--max-requests" in answer["error"]["message"]
        long.close()
        wait_until_idle(served)
        held = [
            open_ones.enter_context(socket.create_connection(("127.0.0.1", served.port)))
            for _ in range(6)
        ]
        status, answer = served.ask(PATH, ASKED)
        assert status == 503 and "--max-connections" in answer["error"]["message"]
        held[0].close()
        until = time.monotonic() + 60
        while served.ask(PATH, ASKED)[0] != 200:
            assert time.monotonic() < until
            time.sleep(0.05)


def test_the_end_of_the_last_engine_is_told_to_their_clients(folder: Path) -> None:
    with serving(folder, kinds=[Starved], processes=2) as served:
        status, answer = served.ask(PATH, {"prompt": "a", "ignore_eos": True})
        assert status == 500 and "engine has ended" in answer["error"]["message"]
    assert "allocate" in str(*served.died)


@pytest.mark.filterwarnings("ignore:HTTP process . is gone")
def test_who_dies_costs_its_own_clients_their_answers_alone(folder: Path) -> None:
    with serving(folder, processes=2) as served:
        stream = written(PATH, ASKED | {"max_tokens": 1900, "ignore_eos": True, "stream": True})
        for pid in served.processes.pids:
            with socket.create_connection(("127.0.0.1", served.port), timeout=60) as client:
                client.sendall(stream)
                assert client.recv(4096).startswith(b"HTTP/1.1 200")
                os.kill(pid, signal.SIGKILL)
                for _ in range(4):
                    assert served.ask(PATH, ASKED)[0] == 200
        wait_until_idle(served)
        assert served.server.api.counts.total("connections") <= 1
        assert served.ask("/health", method="GET")[0] == 200


def test_files_and_batches_are_the_main_process_own(folder: Path, tmp_path: Path) -> None:
    with serving(folder, batch_folder=tmp_path, processes=2) as served:
        client = served.client()
        lines = [line(str(number), **ASKED, seed=number) for number in range(3)]
        data = as_file(lines) + b"\n" * 400_000  # which comes in many pieces
        file = client.files.create(file=("mine.jsonl", data), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint=PATH, completion_window="24h")
        assert served.ask(PATH, ASKED)[0] == 200
        assert over(client, batch.id).request_counts.completed == 3


def test_another_model_is_named_in_all_answers(folder: Path, tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "next", seed=1)
    with serving(folder, weights_folder=tmp_path, processes=2) as served:
        before = served.ask(PATH, ASKED)[1]["system_fingerprint"]
        assert served.ask("/update_weights_from_disk", {"model_path": "next"})[0] == 200
        named = {served.ask(PATH, ASKED)[1]["system_fingerprint"] for _ in range(8)}
        assert len(named) == 1 and before not in named
        assert served.ask("/pause?mode=keep")[0] == 200
        with socket.create_connection(("127.0.0.1", served.port), timeout=60) as client:
            client.sendall(written(PATH, ASKED).replace(b"Host", b"Connection: close\r\nHost"))
            client.settimeout(0.3)
            with pytest.raises(TimeoutError):
                client.recv(1)
            client.settimeout(60)
            assert served.ask("/resume")[0] == 200
            assert read_all(client).startswith(b"HTTP/1.1 200")


def test_what_runs_may_finish_when_it_is_to_end(folder: Path) -> None:
    with serving(folder, Limits(grace=30), processes=2) as served:
        body = ASKED | {"max_tokens": 300, "ignore_eos": True, "stream": True}
        with socket.create_connection(("127.0.0.1", served.port), timeout=60) as client:
            client.sendall(written(PATH, body))
            found = client.recv(4096)
            served.server.end()
            found += read_all(client)
    assert found.rstrip().endswith(b"data: [DONE]\n\n\r\n0") and not served.server.dropped
