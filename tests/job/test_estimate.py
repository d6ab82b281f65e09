"""How long a job takes is told by a former run that was like it, and by nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sharegen.job.environment import device_name
from sharegen.job.estimate import estimate
from sharegen.job.sharing_plan import SharingPlan
from sharegen.results.journal.run_file import RunFile
from sharegen.workload.configuration import Configuration, resolve

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def job() -> Configuration:
    return resolve("self-consistency", flags={"machine": {"device": "cpu"}})


@pytest.fixture
def plan() -> SharingPlan:
    from sharegen.engine.cache.prefix_tree import PrefixTree
    from sharegen.job.sharing_plan import make_plan

    prompts = [[1, 2, 3, number] for number in range(10)]
    tree = PrefixTree.build(prompts, 16)
    ids = [str(number) for number in range(10)]
    return make_plan(tree, prompts, ids, 20, 256, num_blocks=99, kv_bytes_per_token=1,
                     max_sequences=8)  # fmt: skip


def record(folder: Path, name: str, job: Configuration, **changes: Any) -> Path:
    """A run of 100 samples of 70 tokens at 1,400 tokens a second."""
    run = RunFile(
        job.identity,
        extent=job.extent | changes.pop("extent", {}),
        stats={"generated_tokens": 7_000, "completions": 100},
        timings={"sampling_seconds": 5.0},
        environment={"device": device_name(CPU), "date": "2026-01-02T03:04:05+00:00"},
    )
    run = replace(run, **changes)
    path = folder / ".sharegen" / f"{name}.run.json"
    run.write(path)
    return path


def test_by_a_run_of_the_same_recipe(tmp_path: Path, job: Configuration, plan: SharingPlan) -> None:
    path = record(tmp_path, "a", job)
    found = estimate(job, plan, tmp_path)
    assert found is not None and found.run_file == path
    assert found.seconds == pytest.approx(200 * 70 / 1400) and found.tokens == 70


def test_not_of_a_gpu_that_is_not_here(
    tmp_path: Path, job: Configuration, plan: SharingPlan
) -> None:
    record(tmp_path, "a", job)
    assert estimate(job, replace(plan, gpu_bytes=80 << 30), tmp_path) is None


def test_by_a_run_of_another_recipe(tmp_path: Path, job: Configuration, plan: SharingPlan) -> None:
    """How long its samples were says nothing of these: they count at their full length."""
    record(tmp_path, "a", job, extent={"recipe": "prompts"})
    found = estimate(job, plan, tmp_path)
    assert found is not None and found.tokens is None
    assert found.seconds == pytest.approx(200 * 256 / 1400)


def test_the_latest_of_the_same_recipe(
    tmp_path: Path, job: Configuration, plan: SharingPlan
) -> None:
    later = {"device": device_name(CPU), "date": "2026-02-02T03:04:05+00:00"}
    record(tmp_path, "a", job)
    path = record(tmp_path, "b", job, environment=later, timings={"sampling_seconds": 10.0})
    latest = {**later, "date": "2026-03-02T03:04:05+00:00"}
    record(tmp_path, "c", job, environment=latest, extent={"recipe": "prompts"})
    found = estimate(job, plan, tmp_path)
    assert found is not None and found.run_file == path and found.pace == 700


@pytest.mark.parametrize(
    "changes",
    [
        {"extent": {"model": "another/model"}},
        {"environment": {"device": "NVIDIA H100"}},
        {"extent": {"machine": {"device": "cpu", "workers": 7}}},
        {"stats": {}},
        {"timings": {"sampling_seconds": 0.01}},
    ],
    ids=str,
)
def test_a_run_that_is_not_like_it(
    tmp_path: Path, job: Configuration, plan: SharingPlan, changes: dict[str, Any]
) -> None:
    record(tmp_path, "a", job, **changes)
    assert estimate(job, plan, tmp_path) is None


def test_without_a_run(tmp_path: Path, job: Configuration, plan: SharingPlan) -> None:
    assert estimate(job, plan, tmp_path / "runs") is None
    (tmp_path / ".sharegen").mkdir()
    (tmp_path / ".sharegen" / "torn.run.json").write_text('{"configu')
    assert estimate(job, plan, tmp_path) is None
