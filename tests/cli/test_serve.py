"""`sharegen serve`: what it refuses before a model is loaded, and how it begins and ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from sharegen.serve.file_store import FileStore
from sharegen.serve.limits import Limits
from tests.cli.conftest import Command

MODEL = ["--model", "tinymath", "--device", "cpu", "--kv-cache-memory", "64MiB"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--host", "0.0.0.0"], "other machines could ask this server: give it an --api-key"),
        (["--api-key", ""], "--api-key is empty"),
        (["--set", "machine.ray=auto"], "--ray: a server's engines are on its own machine"),
        (["--set", "machine.deterministic=true"], "--deterministic: what a server's prompts"),
        (["--any-tree"], "No such option: --any-tree"),
        (["--workers", "0"], "workers"),
        (["--workers", "many"], "--workers many: it must be a number of workers or auto"),
        (
            ["--set", "sampling.decoding=beam", "--set", "sampling.temperature=0"],
            "a beam search takes a job",
        ),
        (["--max-requests", "0"], "--max-requests"),
        (["--port", "70000"], "--port"),
        (["--http-processes", "65"], "--http-processes"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(
    sharegen: Command, flags: list[str], said: str
) -> None:
    done = sharegen("serve", *MODEL, *flags)
    assert done.code == 2 and said in done.err and done.err.count("\n") == 1


def test_a_port_in_use_is_said_before_the_model_is_loaded(sharegen: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = sharegen("serve", "--model", "/no/such/model", "--port", port)
    assert done.code == 2 and f"--port {port}: cannot listen there" in done.err


def test_a_folder_of_batches_is_one_servers(sharegen: Command, tmp_path: Path) -> None:
    asked = ["serve", "--model", "/no/such/model", "--port", "0", "--batch-folder"]
    with closing(FileStore(tmp_path / "kept", Limits())):
        done = sharegen(*asked, str(tmp_path / "kept"))
    assert done.code == 2 and "another process is writing it" in done.err
    (tmp_path / "file").touch()
    done = sharegen(*asked, str(tmp_path / "file"))
    assert done.code == 2 and "--batch-folder" in done.err and done.err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (["--workers", "4000"], 2, "4000 workers are too many"),
        (["--kv-cache-memory", "900TiB"], 1, "does not fit"),  # as for the second server on a GPU
        (["--kv-cache-memory", "900TiB", "--http-processes", "1"], 1, "does not fit"),
        (["--model", "/no/such/model", "--http-processes", "1"], 1, "/no/such/model"),
    ],
)
def test_engines_that_there_is_no_room_for(
    sharegen: Command, flags: list[str], code: int, said: str
) -> None:
    done = sharegen("serve", *MODEL[:4], *flags, "--port", "0")
    assert (done.code, done.out) == (code, "") and said in done.err, done.err
    assert done.err.count("\n") == 1 and "Traceback" not in done.err


@pytest.fixture(params=["0", "2"])
def process(
    uncovered: None, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[subprocess.Popen[str]]:
    """A server without HTTP processes beside it, and one with two."""
    flags = [*MODEL, "--port", "0", "--grace", "20", "--http-processes", request.param]
    command = [sys.executable, "-m", "sharegen", "serve", *flags]
    with (tmp_path / "stderr").open("w") as errors:
        found = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            yield found
        finally:
            found.kill()
            found.wait()


@pytest.mark.slow
def test_a_signal_lets_what_runs_finish_and_a_second_one_ends_it(
    process: subprocess.Popen[str], tmp_path: Path
) -> None:
    from openai import OpenAI

    assert process.stdout is not None
    url = process.stdout.readline().strip()
    client = OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60)
    secret = "Tom has 3 apples"
    asked = {"model": "tinymath", "prompt": secret, "max_tokens": 60}
    stream = client.completions.create(**asked, stream=True, extra_body={"ignore_eos": True})
    first = next(iter(stream))
    process.send_signal(signal.SIGTERM)
    rest = list(stream)
    assert first.choices and rest[-1].choices[0].finish_reason == "length"
    assert process.wait(60) == 0
    assert secret not in (tmp_path / "stderr").read_text()


@pytest.mark.slow
def test_the_second_signal_ends_it_at_once(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    body = {"model": "tinymath", "prompt": "Tom", "max_tokens": 2000, "ignore_eos": True, "n": 200}
    curl = subprocess.Popen(
        ["curl", "-sN", f"{url}/completions", "-H", "Content-Type: application/json",
         "-d", json.dumps(body | {"stream": True})],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert curl.stdout is not None and curl.stdout.readline().startswith("data: {")
    for wait in (0.5, 0.0):
        os.kill(process.pid, signal.SIGTERM)
        threading.Event().wait(wait)
    assert process.wait(60) == 1
    curl.kill()
    curl.wait()
