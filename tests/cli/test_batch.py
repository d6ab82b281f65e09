"""`sharegen run batch`: killed and continued, in shards, and what others say of its journal."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MEMORY = ["--kv-cache-memory", "4MiB", "--device", "cpu"]


def line(name: str, **body: Any) -> dict[str, Any]:
    url = CHAT if "messages" in body else TEXT
    return {"custom_id": name, "method": "POST", "url": url, "body": {"seed": 1, **body}}


def batch(folder: Path, count: int = 5, **body: Any) -> Path:
    turns = [{"role": "user", "content": "Tom has 3 apples. How many?"}]
    lines = [
        line(
            f"t{i}",
            prompt=f"Tom has 3 apples and {i}",
            n=1 + i % 3,
            **{"max_tokens": 9 + 9 * i, **body},
        )
        for i in range(count)
    ]
    lines += [
        line("chat", messages=turns, **{"max_tokens": 4, **body}),
        line("bad", prompt="?", temprature=1),
    ]
    path = folder / "requests.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    return path


def answers(path: Path) -> dict[str, Any]:
    """The responses, in their order, without the second in which they were made."""
    found = [json.loads(one) for one in path.read_text().splitlines()]
    for one in found:
        one["response"]["body"].pop("created", None)
    assert len({one["custom_id"] for one in found}) == len(found)
    return {one["custom_id"]: one["response"] for one in found}


@pytest.mark.slow
def test_a_batch_from_plan_to_answers(sharegen: Command, model: Path, tmp_path: Path) -> None:
    requests = batch(tmp_path, max_tokens=3)
    job = ["batch", "--dataset", requests, "--model", model, *MEMORY]
    planned = sharegen("plan", *job)
    assert planned.code == 0 and "6 problems, 10 samples" in planned.out
    assert "as many as each asks for" in " ".join(planned.out.split())
    ran = sharegen("run", *job)
    assert ran.code == 0, ran.err
    assert "6 answers and 1 error in requests_output.jsonl" in ran.err
    assert "line 7: unknown field 'temprature'" in ran.err
    assert sharegen("run", *job, "-q").out == "requests_output.jsonl\n"
    journal = "requests_output.journal.jsonl"
    assert "Tom has 3 apples and 0" in sharegen("show", journal, "--problem", "t0").out
    voted = sharegen("vote", journal)
    assert voted.code == 1 and "no sample has an answer" in voted.err
    assert "there are no curves" in sharegen("report", journal).err
    mistaken = sharegen("vote", "requests_output.jsonl")
    assert mistaken.code == 1 and "whose samples are in NAME.journal.jsonl" in mistaken.err
    refused = sharegen("run", *job, "-o", requests)
    assert refused.code == 2 and "is the file of requests" in refused.err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--few-shot", 2], "--few-shot"),
        (["--chat"], "--chat"),
        (["--system", "?"], "--chat"),
        (["--document", "requests.jsonl"], "--document"),
        (["--stop-when", "decided"], "--stop-when"),
        (["--set", "dataset.where={a: 1}"], "dataset.where: the rows are requests"),
        (["--set", "dataset.rows=mbpp"], "dataset.rows: the rows are requests"),
    ],
)
def test_flags_that_no_request_would_heed(
    sharegen: Command, tmp_path: Path, flags: list[object], said: str
) -> None:
    ran = sharegen("run", "batch", "--dataset", batch(tmp_path), "--model", "a/b", *flags)
    assert ran.code == 2 and said in ran.err


@pytest.mark.slow
def test_shards_and_then_the_answers_of_all(sharegen: Command, model: Path, tmp_path: Path) -> None:
    job = ["run", "batch", "--dataset", batch(tmp_path, 9, max_tokens=4), "--model", model, *MEMORY]
    assert sharegen(*job, "-o", "whole.jsonl").code == 0
    for part in (1, 2):
        ran = sharegen(*job, "-o", "parts.jsonl", "--shard", f"{part}/2", "-q")
        assert (ran.code, ran.out) == (0, f"parts.journal.shard-{part}-of-2.jsonl\n"), ran.err
        assert not (tmp_path / "parts.jsonl").exists()
    ran = sharegen(*job, "-o", "parts.jsonl")
    assert ran.code == 0 and not (tmp_path / "parts.journal.jsonl").exists(), ran.err
    assert answers(tmp_path / "parts.jsonl") == answers(tmp_path / "whole.jsonl")


@pytest.mark.slow
def test_killed_and_continued_every_request_is_answered_once(
    sharegen: Command, model: Path, tmp_path: Path
) -> None:
    requests = batch(tmp_path, 30, ignore_eos=True)
    job = ["run", "batch", "--dataset", requests, "--model", model, *MEMORY]
    journal = tmp_path / "out.journal.jsonl"
    program = "from sharegen.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", program, *map(str, job), "-o", "out.jsonl"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while not (journal.exists() and journal.stat().st_size > 1000):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert not (tmp_path / "out.jsonl").exists()
    kept = journal.read_text().splitlines()[:-1]
    assert 0 < len(kept) < 60
    ran = sharegen(*job, "-o", "out.jsonl")
    assert ran.code == 0, ran.err
    assert set(kept) <= set(journal.read_text().splitlines())
    assert sharegen(*job, "-o", "whole.jsonl").code == 0
    assert answers(tmp_path / "out.jsonl") == answers(tmp_path / "whole.jsonl")
