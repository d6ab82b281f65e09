"""Jobs of several engines: the journal of one, whoever dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from sharegen.errors import UsageError
from sharegen.job.run_job import run_job
from sharegen.results.journal.run_file import RunFile, run_file_path
from sharegen.workload.configuration import Configuration, resolve
from tests.engine.parallel.forked import forked
from tests.tiny import save_tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"), context=512)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "prompts.jsonl"
    rows = [
        {"prompt": f"Question: Tom has {n % 4} apples and buys {n} more.\nAnswer:"}
        for n in range(24)
    ]
    rows.append({"prompt": ""})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def configuration(folder: Path, dataset: Path, **machine: Any) -> Configuration:
    machine = {"device": "cpu", "max_sequences": 16, "block_size": 8} | machine
    sampling = {"samples": 6, "max_tokens": 16}
    flags = {"model": str(folder), "machine": machine, "sampling": sampling}
    return resolve("prompts", str(dataset), flags)


def lines(path: Path) -> dict[tuple[str, int | None], Any]:
    """The samples of a journal by key, with the bits of their log-probabilities."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    found = {(r["problem_id"], r.get("sample")): r for r in records}
    assert len(found) == len(records), "a key stands in the journal twice"
    return found


@pytest.fixture(scope="module")
def one(folder: Path, dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The journal of one engine in this process."""
    path = tmp_path_factory.mktemp("one") / "one.jsonl"
    run_job(configuration(folder, dataset, workers=1), path)
    return path


@pytest.mark.slow
@pytest.mark.turn(1)  # what they cover, nothing else does
def test_the_journal_of_one_engine(folder: Path, dataset: Path, one: Path, tmp_path: Path) -> None:
    two = tmp_path / "two.jsonl"
    outcome = run_job(configuration(folder, dataset, workers=2), two)
    assert lines(two) == lines(one)
    assert outcome.drawn == 25 * 6
    assert outcome.run.stats["completions"] == 25 * 6
    left = [" ".join(child.cmdline()) for child in psutil.Process().children()]
    assert not [line for line in left if "sharegen.engine.parallel" in line]


_WITHOUT_TORCH = """
import sys
from pathlib import Path
from sharegen.engine.model.starting.stand_ins import StandIn
from sharegen.job.run_job import run_job
from sharegen.workload.configuration import Configuration

run_job(Configuration.model_validate_json(sys.argv[1]), Path(sys.argv[2]))
assert isinstance(sys.modules["torch"], StandIn)
assert "transformers.modeling_utils" not in sys.modules
"""


@pytest.mark.slow
@pytest.mark.turn(1)  # what they cover, nothing else does
def test_a_command_of_copies_does_without_torch(
    folder: Path, dataset: Path, one: Path, tmp_path: Path
) -> None:
    """Its journal and its plan are those of an engine in this process."""
    asked, path = configuration(folder, dataset, workers=2), tmp_path / "two.jsonl"
    command = [sys.executable, "-c", _WITHOUT_TORCH, asked.model_dump_json(), str(path)]
    subprocess.run(command, check=True)
    assert lines(path) == lines(one)
    runs = [RunFile.read(run_file_path(each)) for each in (path, one)]
    assert runs[0] is not None and runs[1] is not None
    assert runs[0].configuration == runs[1].configuration
    assert runs[0].fingerprints == runs[1].fingerprints
    assert runs[0].versions == runs[1].versions


@pytest.mark.slow
@pytest.mark.turn(1)  # what they cover, nothing else does
def test_another_number_continues(
    folder: Path, dataset: Path, one: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharegen.engine.parallel.opening.Processes", forked)
    monkeypatch.setattr("sharegen.engine.parallel.copies.ForkServer.begin", lambda server: None)
    path = tmp_path / "job.jsonl"
    some = one.read_text().splitlines(keepends=True)[:50]
    path.write_text("".join(some))
    begun = RunFile.read(run_file_path(one))
    assert begun is not None
    begun.write(run_file_path(path))
    run_job(configuration(folder, dataset, workers="auto"), path)
    assert lines(path) == lines(one)


@pytest.mark.slow
def test_a_killed_driver_takes_its_workers_along(
    folder: Path, dataset: Path, one: Path, tmp_path: Path
) -> None:
    path = tmp_path / "job.jsonl"
    command = [
        sys.executable, "-c", "from sharegen.cli import main; main()",
        "run", "prompts", "--dataset", str(dataset), "--model", str(folder), "--device", "cpu",
        "--max-sequences", "4", "--block-size", "8", "-n", "6", "--max-tokens", "16",
        "--workers", "2", "-o", str(path),
    ]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while not path.exists() or path.stat().st_size == 0:
        assert process.poll() is None
        time.sleep(0.02)
    workers = psutil.Process(process.pid).children(recursive=True)
    assert workers
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert not alive
    run_job(configuration(folder, dataset, workers=1, max_sequences=4), path)
    assert lines(path) == lines(one)


@pytest.mark.parametrize("workers", [10_000])
def test_more_workers_than_cores(folder: Path, dataset: Path, tmp_path: Path, workers: int) -> None:
    with pytest.raises(UsageError, match="workers are too many"):
        run_job(configuration(folder, dataset, workers=workers), tmp_path / "job.jsonl")


@pytest.mark.parametrize("workers", [0, -2, "many", 1.5])
def test_what_is_no_number(folder: Path, dataset: Path, workers: Any) -> None:
    with pytest.raises(UsageError, match="--workers"):
        configuration(folder, dataset, workers=workers)
