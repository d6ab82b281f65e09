"""However a job on two GPUs of one machine ends: its exit code, what it says, and its journal.

What GPUs add to the tests on CPUs is a step that waits in a kernel for a rank that is gone, memory
that somebody else has, and cards that Ray deals out.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from sharegen.engine.parallel.early import RANK, WORKER
from tests.tiny import tiny_tokenizer

DEVICE = "cuda"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
    pytest.mark.usefixtures("uncovered"),
]

PROMPTS, SAMPLES, TOKENS = 64, 16, 250
WORKERS, RANKS = ("--workers", "2"), ("--tensor-parallel-size", "2")
KV_CACHE = 1 << 30
KILLED = "it was killed, perhaps for want of memory"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama with heads that the kernels take, of which a job lasts for seconds."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder, tokenizer = tmp_path_factory.mktemp("model"), tiny_tokenizer()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=256, intermediate_size=512, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=4096,
        initializer_range=0.1, bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "prompts.jsonl"
    prompts = [
        f"Question: Tom has {n} apples. " + f"He buys {n} more. " * 40 + "\nAnswer:"
        for n in range(PROMPTS)
    ]
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    return path


class Job:
    """A job as a user begins it, and its journal."""

    def __init__(self, folder: Path, rows: Path, journal: Path, *more: str) -> None:
        self.journal = journal
        self._begun: subprocess.Popen[str] | None = None
        options = {
            "model": folder, "dataset": rows, "samples": SAMPLES, "max-tokens": TOKENS,
            "output": journal, "max-sequences": 24, "kv-cache-memory": KV_CACHE, "device": DEVICE,
        }  # fmt: skip
        given = [str(word) for key, value in options.items() for word in (f"--{key}", value)]
        own = ["--no-compile", "-q", *more]
        self._words = [sys.executable, "-m", "sharegen", "run", "prompts", *given, *own]

    def begin(self) -> subprocess.Popen[str]:
        """Begin it, and wait until it draws."""
        begun = self._begun = subprocess.Popen(self._words, stdout=-1, stderr=-1, text=True)
        wait_until(lambda: self._lines() >= 20 or begun.poll() is not None)
        assert begun.poll() is None, begun.communicate()
        return begun

    def end(self) -> None:
        """Kill it where it runs; what it began ends with it."""
        if self._begun is not None and self._begun.poll() is None:
            self._begun.kill()

    def _lines(self) -> int:
        return self.journal.read_bytes().count(b"\n") if self.journal.exists() else 0

    def assert_continues(self) -> None:
        """Lines are whole, some are missing, and the same command draws these."""
        kept = self.journal.read_text()
        assert kept.endswith("\n") and self._lines() < PROMPTS * SAMPLES
        subprocess.run(self._words, check=True, stdout=-1, timeout=120)
        assert self.journal.read_text().startswith(kept)
        self.assert_complete()

    def assert_complete(self) -> None:
        """Every sample is there once."""
        records = [json.loads(line) for line in self.journal.read_text().splitlines()]
        keys = {(record["problem_id"], record["sample"]) for record in records}
        assert len(records) == len(keys) == PROMPTS * SAMPLES


@pytest.fixture
def make_job(folder: Path, rows: Path, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Make the job of a test; where the test fails, it is ended."""
    jobs: list[Job] = []

    def make(*more: str) -> Job:
        jobs.append(Job(folder, rows, tmp_path / "job.jsonl", *more))
        return jobs[-1]

    yield make
    for job in jobs:
        job.end()


def wait_until(what: Callable[[], Any], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)


def running(begun: subprocess.Popen[str], module: str) -> list[psutil.Process]:
    """The workers of a job, or its ranks but the first."""
    children = psutil.Process(begun.pid).children(recursive=True)
    return [each for each in children if module in each.cmdline()]


def ended(begun: subprocess.Popen[str], within: float) -> tuple[int, str]:
    """Exit code and what was said; nothing that the job began is left then."""
    processes = psutil.Process(begun.pid).children(recursive=True)
    out, err = begun.communicate(timeout=within)
    assert out == "" or begun.returncode == 0
    assert psutil.wait_procs(processes, timeout=10)[1] == []
    print(err, file=sys.stderr)
    return begun.returncode, err


def test_the_other_worker_finishes(make_job: Callable[..., Job]) -> None:
    job = make_job(*WORKERS)
    begun = job.begin()
    running(begun, WORKER)[0].kill()
    code, said = ended(begun, within=120)
    assert code == 0
    assert re.search(rf"^sharegen: worker \d is gone: {KILLED}; the others go on$", said, re.M)
    job.assert_complete()


def test_a_rank_that_is_killed_ends_the_job(make_job: Callable[..., Job]) -> None:
    job = make_job(*RANKS)
    begun = job.begin()
    [rank] = running(begun, RANK)
    rank.kill()
    code, said = ended(begun, within=10)
    assert code == 1
    assert re.search(rf"^sharegen: .*rank 1 is gone: {KILLED}", said, re.M)
    job.assert_continues()


@pytest.mark.parametrize("kind", [WORKERS, RANKS], ids=["workers", "ranks"])
def test_ctrl_c(make_job: Callable[..., Job], kind: tuple[str, str]) -> None:
    job = make_job(*kind)
    begun = job.begin()
    begun.send_signal(signal.SIGINT)
    code, said = ended(begun, within=10)
    assert code == 130
    assert said.splitlines()[-1].startswith("sharegen: interrupted: what was finished is in ")
    job.assert_continues()


def test_memory_that_somebody_else_takes_on_one_card(make_job: Callable[..., Job]) -> None:
    """The ranks go on with smaller steps, or the job ends with one line; no rank waits for ever."""
    job = make_job(*RANKS)
    begun = job.begin()
    with torch.cuda.device(1):
        taken = []
        for size in (1 << 30, 1 << 26, 1 << 21):  # also the rest that is less than a piece
            while torch.cuda.mem_get_info()[0] > size:
                try:
                    taken.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
                except torch.cuda.OutOfMemoryError:
                    break
        code, said = ended(begun, within=120)
        del taken
        torch.cuda.empty_cache()
    if code == 0:
        job.assert_complete()
    else:
        assert code == 1 and "memory" in said
        job.assert_continues()


# -- Ray, which deals out the cards -------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a cluster of this machine, which has been told of both cards."""
    pytest.importorskip("ray")
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 4, "num_gpus": 2, "object_store_memory": 75 << 20}
    head["include_dashboard"] = False
    started = Cluster(initialize_head=True, head_node_args=head)
    yield started.address
    ray.shutdown()
    started.shutdown()


def actors() -> list[psutil.Process]:
    return [p for p in psutil.process_iter(["name"]) if p.info["name"].startswith("ray::Actor")]


def free() -> list[int]:
    """Bytes of both cards that nobody has."""
    return [torch.cuda.mem_get_info(card)[0] for card in range(2)]


def test_an_actor_on_each_card_and_one_that_is_killed(
    make_job: Callable[..., Job], cluster: str
) -> None:
    job = make_job("--ray", cluster)
    before = free()
    begun = job.begin()  # with the first worker that stands
    wait_until(lambda: len(actors()) == 2)
    wait_until(lambda: all(was - now > KV_CACHE for was, now in zip(before, free(), strict=True)))
    actors()[0].kill()
    code, said = ended(begun, within=120)
    assert code == 0
    lost = rf"^sharegen: worker \d is gone: node [\d.]+: {KILLED}.*; the others go on$"
    assert re.search(lost, said, re.M)
    job.assert_complete()
    wait_until(lambda: not actors(), seconds=30)
