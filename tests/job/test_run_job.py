"""Whole jobs: resume, extension, interruption, and journals that come out the same each time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sharegen.common import ragged
from sharegen.errors import JournalError, SharegenError, UsageError
from sharegen.job.dry_run import plan_job
from sharegen.job.interrupt import Interrupted
from sharegen.job.job_content import JobContent
from sharegen.job.loaded import LoadedJob
from sharegen.job.run_job import Watcher, run_job
from sharegen.results.journal.found_journal import FoundJournal
from sharegen.results.journal.journal import Journal
from sharegen.results.journal.record import read
from sharegen.results.journal.run_file import run_file_path
from sharegen.workload.configuration import Configuration, resolve
from sharegen.workload.problem import load_workload
from tests.engine.parallel.forked import CONTEXT as in_fork
from tests.tiny import save_tiny_model

ROWS = [
    {
        "question": f"Tom has {n} apples and buys {n + 1} more. How many?",
        "answer": f"#### {2 * n + 1}",
    }
    for n in range(3, 15)
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def configure(tmp_path: Path, model: Path) -> Any:
    for name, rows in (("rows", ROWS[3:]), ("examples", ROWS[:3])):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"{name}.jsonl").write_text(text)

    def configure(**flags: Any) -> Configuration:
        given = {
            "model": str(model),
            "few_shot": {"k": 2, "file": str(tmp_path / "examples.jsonl")},
            "dataset": {"limit": flags.pop("limit", 5)},
            "sampling": {"samples": 4, "max_tokens": 12, "temperature": 1.0} | flags,
            "machine": {"device": "cpu", "kv_cache_memory": 1 << 22},
        }
        return resolve("self-consistency", str(tmp_path / "rows.jsonl"), given)

    return configure


def lines(path: Path) -> list[str]:
    """A journal's lines in an order that does not depend on which sample finished first."""
    return sorted(path.read_text().splitlines())


def test_a_job_writes_every_sample(configure: Any, tmp_path: Path) -> None:
    outcome = run_job(configure(), tmp_path / "a.jsonl")
    records = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert outcome.drawn == len(records) == 20
    assert {(r["problem_id"], r["sample"]) for r in records} == {
        (str(p), s) for p in range(5) for s in range(4)
    }
    first = next(record for record in records if record["problem_id"] == "0")
    assert first["gold"] == "13" and first["num_tokens"] <= 12
    run = json.loads((tmp_path / ".sharegen" / "a.run.json").read_text())
    assert run["stats"]["prompt_tokens_computed"] == run["stats"]["plan"]["computed"]
    assert run["stats"]["prompt_tokens_asked"] == run["stats"]["plan"]["asked"]
    assert run["counts"] == {"problems": 5, "samples_asked": 20, "samples": 20, "bad_rows": 0}
    assert_progress(run)


def assert_progress(run: dict[str, Any]) -> None:
    """The recorded points rise to what the run.json says of the whole."""
    points = run["timings"]["progress"]
    assert points == sorted(points) and 1 <= len(points) <= 100
    assert points[-1] == [run["timings"]["sampling_seconds"], run["stats"]["generated_tokens"]]
    assert run["timings"]["cpu_seconds"] > 0


def test_the_same_job_gives_the_same_lines(
    configure: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its prompts lie in a file."""
    run_job(configure(), tmp_path / "a.jsonl")
    with monkeypatch.context() as patched:
        patched.setattr(ragged, "IN_MEMORY", 0)
        run_job(configure(), tmp_path / "b.jsonl")
    assert lines(tmp_path / "a.jsonl") == lines(tmp_path / "b.jsonl")
    run_job(configure(seed=1), tmp_path / "c.jsonl")
    assert lines(tmp_path / "a.jsonl") != lines(tmp_path / "c.jsonl")


def test_samples_and_limit_extend_a_journal(configure: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    assert run_job(configure(samples=2, limit=3), path).drawn == 6
    before = lines(path)
    assert run_job(configure(samples=4, limit=5), path).drawn == 14
    assert set(before) < set(lines(path))
    assert_progress(json.loads((tmp_path / ".sharegen" / "a.run.json").read_text()))
    run_job(configure(samples=4, limit=5), tmp_path / "b.jsonl")
    assert lines(path) == lines(tmp_path / "b.jsonl")


def test_greedy_samples_are_computed_once_and_written_each(configure: Any, tmp_path: Path) -> None:
    """Also those that an earlier run left over, and in counts that are those of the work."""
    path, greedy = tmp_path / "a.jsonl", {"temperature": 0.0, "limit": 2}
    assert run_job(configure(samples=3, **greedy), path).drawn == 6
    assert run_job(configure(samples=8, **greedy), path).drawn == 10
    records = [json.loads(line) for line in lines(path)]
    assert sorted((r["problem_id"], r.pop("sample")) for r in records) == [
        (problem, sample) for problem in "01" for sample in range(8)
    ]
    assert all(same in (records[0], records[8]) for same in records)
    once = sum(records[i]["num_tokens"] for i in (0, 8))
    assert stats(path)["generated_tokens"] == 2 * once  # in each of two runs
    assert (stats(path)["completions"], stats(path)["copies"]) == (16, 12)


def test_a_complete_journal_needs_no_model(
    configure: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    ran = run_job(configure(), path)
    before = path.read_bytes()
    monkeypatch.setattr("sharegen.job.loaded.load", lambda *_: pytest.fail("a model was loaded"))
    for fewer in (4, 3):
        again = run_job(configure(samples=fewer), path)
        assert again.drawn == 0 and again.plan == ran.plan
    assert path.read_bytes() == before


def test_a_resumed_job_counts_what_its_prompts_share_once(configure: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    run_job(configure(samples=2, limit=3), path)
    run_job(configure(samples=4, limit=5), path)
    run_job(configure(samples=4, limit=5), tmp_path / "b.jsonl")
    resumed, whole = stats(path), stats(tmp_path / "b.jsonl")
    for name in ("prompt_tokens_asked", "prompt_tokens_computed"):
        assert resumed[name] == whole[name] == whole["plan"][name.rpartition("_")[2]]
    first = plan_job(configure(samples=2, limit=3)).computed
    assert (resumed["prompt_tokens_resumed"], whole["prompt_tokens_resumed"]) == (first, 0)


def test_what_another_program_cut_out_of_a_line_is_drawn_again(
    configure: Any, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    run_job(configure(), path)
    whole, text = lines(path), path.read_text().splitlines(keepends=True)
    text[6] = text[6][:40] + text[7][90:]
    path.write_text("".join([*text[:7], *text[8:]]))
    assert run_job(configure(), path).drawn == 2
    assert set(whole) < set(lines(path)) and len(lines(path)) == len(whole) + 1


def test_a_job_without_a_row_that_fits_says_so_again(configure: Any, tmp_path: Path) -> None:
    path, job = tmp_path / "a.jsonl", configure()
    (tmp_path / "rows.jsonl").write_text(json.dumps({"question": "long " * 4000}) + "\n")
    for _ in range(2):
        with pytest.raises(SharegenError, match="no row can be asked: "):
            run_job(job, path)
    assert len(lines(path)) == 1


@pytest.mark.parametrize("compile", [True, False])
def test_compile_reaches_the_engine(configure: Any, tmp_path: Path, compile: bool) -> None:
    job = configure()
    machine = job.machine.model_copy(update={"compile": compile})
    job = job.model_copy(update={"machine": machine})
    sampler = LoadedJob(
        JobContent.of(job, load_workload(job)), FoundJournal(tmp_path / "a.jsonl"), Watcher()
    )
    assert sampler.engine.config.compile == compile


def test_the_kv_cache_is_no_larger_than_the_job_can_use(configure: Any, tmp_path: Path) -> None:
    job = configure()
    machine = job.machine.model_copy(update={"kv_cache_memory": None})
    run_job(job.model_copy(update={"machine": machine}), tmp_path / "a.jsonl")
    stats = json.loads((tmp_path / ".sharegen" / "a.run.json").read_text())["stats"]
    plan = plan_job(job.model_copy(update={"machine": machine}))
    assert stats["plan"] == plan.to_json()
    assert 0 < stats["peak_blocks"] <= stats["blocks_total"] < 200


def stats(path: Path) -> dict[str, Any]:
    return json.loads(run_file_path(path).read_text())["stats"]


def test_a_verified_job_draws_the_same_and_says_how_near_it_was(
    configure: Any, tmp_path: Path
) -> None:
    run_job(configure(), tmp_path / "a.jsonl")
    run_job(configure(), tmp_path / "b.jsonl", verify=30)
    assert lines(tmp_path / "a.jsonl") == lines(tmp_path / "b.jsonl")
    assert "verified" not in stats(tmp_path / "a.jsonl")
    verified = stats(tmp_path / "b.jsonl")["verified"]
    assert (verified["steps"], verified["skipped"], verified["reference"]) == (30, 0, "sdpa")
    assert 0 < verified["mean"] <= verified["largest"] < 1e-4
    assert 0 < verified["among_back_ends"] < 1e-4


def test_a_resumed_job_verifies_what_it_draws(configure: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    run_job(configure(samples=1, limit=2), path, verify=10_000)
    first = stats(path)["verified"]
    drawn = sum(json.loads(line)["num_tokens"] for line in lines(path))
    assert first["steps"] == drawn
    run_job(configure(samples=2, limit=2), path)  # unverified: what was found before stays
    assert stats(path)["verified"] == first
    run_job(configure(samples=4, limit=2), path, verify=10_000)
    total = sum(json.loads(line)["num_tokens"] for line in lines(path))
    assert drawn < stats(path)["verified"]["steps"] < total - drawn
    before = stats(path)
    assert run_job(configure(samples=4, limit=2), path, verify=9).drawn == 0
    assert stats(path) == before


def test_stopped_while_it_verifies(
    configure: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that was drawn is in the journal, and the journal is whole."""

    class Impatient(Watcher):
        def verifying(self, steps: int) -> None:
            raise KeyboardInterrupt

    path = tmp_path / "a.jsonl"
    with pytest.raises(Interrupted):
        run_job(configure(), path, verify=5, watcher=Impatient())
    assert len(lines(path)) == 20 and "verified" not in stats(path)
    assert stats(path)["completions"] == 20
    assert run_job(configure(), path).drawn == 0


def test_verifying_no_step_is_refused(configure: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="verify is 0"):
        run_job(configure(), tmp_path / "a.jsonl", verify=0)
    assert not (tmp_path / "a.jsonl").exists()


def test_overwrite_starts_anew(configure: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    run_job(configure(), path)
    with pytest.raises(JournalError, match=r"sampling\.seed was 0 and is now 2"):
        run_job(configure(seed=2), path)
    assert run_job(configure(seed=2), path, overwrite=True).drawn == 20


def test_few_shot_rows_are_part_of_the_identity(configure: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    run_job(configure(), path)
    examples = tmp_path / "examples.jsonl"
    examples.write_text("".join(reversed(examples.read_text().splitlines(keepends=True))))
    with pytest.raises(JournalError, match="few_shot"):
        run_job(configure(), path)


def test_token_ids_on_request(configure: Any, tmp_path: Path) -> None:
    job = configure().model_copy(update={"token_ids": True})
    run_job(job, tmp_path / "a.jsonl")
    for line in (tmp_path / "a.jsonl").read_text().splitlines():
        record = json.loads(line)
        assert len(record["token_ids"]) == record["num_tokens"]


class _StopAfter(Watcher):
    """Sends this process a signal when so many samples are drawn."""

    def __init__(self, samples: int, number: int) -> None:
        self.left, self.number = samples, number

    def sampling(self, stats: Any, *counts: Any) -> Any:
        return self

    def __enter__(self) -> _StopAfter:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def advance(self, tokens: int, problem_done: bool) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_and_continued(configure: Any, tmp_path: Path, number: int) -> None:
    path, handlers = tmp_path / "a.jsonl", signal.getsignal(number)
    with pytest.raises(Interrupted, match="again to continue") as stopped:
        run_job(configure(), path, watcher=_StopAfter(7, number))  # type: ignore[arg-type]
    assert stopped.value.exit_code == 130
    assert signal.getsignal(number) is handlers
    assert len(lines(path)) >= 7
    run_job(configure(), path)
    assert_progress(json.loads((tmp_path / ".sharegen" / "a.run.json").read_text()))
    run_job(configure(), tmp_path / "b.jsonl")
    assert lines(path) == lines(tmp_path / "b.jsonl")


def test_an_interrupt_while_the_journal_closes_waits_until_it_is_on_record(
    configure: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, close = tmp_path / "a.jsonl", Journal.close

    def interrupted(*arguments: Any, **options: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        close(*arguments, **options)

    monkeypatch.setattr(Journal, "close", interrupted)
    with pytest.raises(Interrupted, match="again to continue"):
        run_job(configure(), path)
    run = json.loads((tmp_path / ".sharegen" / "a.run.json").read_text())
    assert run["counts"]["samples"] == len(lines(path)) == run["counts"]["samples_asked"]


def _long_job(configure: Any) -> Configuration:
    """Slow enough to be stopped."""
    return configure(samples=24, limit=9, max_tokens=64)


def _start(configure: Any, path: Path) -> subprocess.Popen[str]:
    """The same job in a process of its own."""
    settings = _long_job(configure).model_dump_json()
    program = (
        "import faulthandler, signal, sys\nfaulthandler.register(signal.SIGUSR1)\n"
        "from pathlib import Path\nfrom sharegen.job.run_job import run_job\n"
        "from sharegen.errors import SharegenError\n"
        "from sharegen.workload.configuration import Configuration\n"
        "job = Configuration.model_validate_json(sys.argv[1])\n"
        "try: run_job(job, Path(sys.argv[2]))\n"
        "except SharegenError as error: print(error, file=sys.stderr); sys.exit(error.exit_code)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, settings, str(path)], stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 120
    while not (path.exists() and path.stat().st_size > 2000):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, _stacks(process)
        time.sleep(0.01)
    return process


def _stacks(process: subprocess.Popen[str]) -> str:
    """Where all threads of a process are that does not end; it is ended now."""
    process.send_signal(signal.SIGUSR1)
    time.sleep(1)
    process.kill()
    return process.communicate()[1]


@pytest.mark.slow
def test_killed_and_continued(configure: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    process = in_fork.Process(target=run_job, args=[_long_job(configure), path], daemon=True)
    process.start()
    deadline = time.monotonic() + 120
    while not (path.exists() and path.stat().st_size > 2000):
        assert process.is_alive() and time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.join()
    kept = path.read_text().splitlines()[:-1]
    assert kept and len(kept) < 216
    settings = _long_job(configure)
    run_job(settings, path)
    run_job(settings, tmp_path / "b.jsonl")
    assert set(kept) <= set(lines(path))
    assert lines(path) == lines(tmp_path / "b.jsonl")


@pytest.mark.slow
@pytest.mark.usefixtures("uncovered")
def test_sigterm_ends_a_process_with_130(configure: Any, tmp_path: Path) -> None:
    process = _start(configure, tmp_path / "a.jsonl")
    process.terminate()
    try:
        _, errors = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        pytest.fail(f"two minutes after SIGTERM it was here:\n{_stacks(process)}")
    assert process.returncode == 130
    assert "run the same command again to continue" in errors
    for line in (tmp_path / "a.jsonl").read_text().splitlines():
        json.loads(line)


def test_a_row_that_outgrows_its_rope_frequencies_is_a_bad_row(
    configure: Any, tmp_path: Path
) -> None:
    """And no reason not to sample the others."""
    folder = save_tiny_model(tmp_path / "longrope")
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0, 1.1, 1.2, 1.3],
        "long_factor": [2.0, 3.0, 4.0, 5.0],
        "original_max_position_embeddings": 120,
    }
    (folder / "config.json").write_text(json.dumps(config))
    rows = [{"question": "How many?", "answer": "#### 1"}] * 2
    rows.insert(1, {"question": "How many? " * 40, "answer": "#### 1"})
    configuration = configure(limit=3)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    configuration = configuration.model_copy(update={"model": str(folder)})
    outcome = run_job(configuration, tmp_path / "a.jsonl")
    assert outcome.drawn == 8 and outcome.run.counts["bad_rows"] == 1
    [bad] = [r for r in read(tmp_path / "a.jsonl") if r.sample is None]
    assert bad.problem_id == "1" and "its longrope RoPE frequencies change beyond" in str(bad.error)
