"""The default journal is found again by what it holds, not by where its model and rows lie."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sharegen.common.shard import Shard
from sharegen.errors import JournalError
from sharegen.job.default_journal import default_output, find_journal
from sharegen.job.job_content import JobContent
from sharegen.results.journal.family import journal_path
from sharegen.results.journal.journal import Journal, refuse_other_job
from sharegen.results.journal.record import Record
from sharegen.results.journal.run_file import RunFile, run_file_path
from sharegen.workload.configuration import resolve
from sharegen.workload.problem import load_workload

Job = Callable[..., JobContent]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job on files beside each other; no model is loaded here."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "model" / "model.safetensors").write_text("weights")
    (tmp_path / "rows.jsonl").write_text('{"prompt": "One"}\n{"prompt": "Two"}\n')

    def job(rows: str = "rows.jsonl", model: str = "model", **flags: Any) -> JobContent:
        configuration = resolve("prompts", rows, {"model": model} | flags)
        return JobContent.of(configuration, load_workload(configuration))

    return job


def begin(content: JobContent, path: Path) -> None:
    """A journal with one sample of the job's first row."""
    configuration, problem = content.configuration, content.workload.problems[0]
    prints = {
        "model": content.weights or "commit",
        "tokenizer": "t",
    } | content.workload.fingerprints
    identity = configuration.identity | {"dtype": "float32"}
    with Journal.open(path, identity, fingerprints=prints, extent=configuration.extent) as journal:
        journal.append(Record(problem.id, 0, problem.prompt_hash, row_hash=problem.row_hash))


def test_its_name_follows_content(job: Job, tmp_path: Path) -> None:
    name = default_output(job())
    assert name.parent == Path("runs") and name.name.startswith("prompts-")
    (tmp_path / "deep").mkdir()
    shutil.copytree("model", "deep/copy")
    shutil.copy("rows.jsonl", "deep/rows.jsonl")
    assert default_output(job("deep/rows.jsonl", "deep/copy")) == name
    more: dict[str, Any] = {"dataset": {"limit": 1}, "sampling": {"samples": 9}}
    assert default_output(job(**more, machine={"max_sequences": 4})) == name
    Path("rows.jsonl").write_text('{"prompt": "One"}\n{"prompt": "Two"}\n{"prompt": "Three"}\n')
    assert default_output(job()) == name


@pytest.mark.parametrize(
    "changed",
    [
        {"sampling": {"temperature": 0.1}},
        {"sampling": {"seed": 1}},
        {"sampling": {"stop": ["x"]}},
        {"sampling": {"max_tokens": 9}},
        {"machine": {"dtype": "bfloat16"}},
        {"prompt": "{{ prompt }}!"},
        {"model": "other"},
        {"rows": "others.jsonl"},
        {"model": "owner/name", "revision": "v2"},
    ],
)
def test_another_job_has_another_name(job: Job, changed: dict[str, Any]) -> None:
    shutil.copytree("model", "other")
    Path("other/model.safetensors").write_text("others")
    shutil.copy("rows.jsonl", "others.jsonl")
    before = {"model": "owner/name"} if "revision" in changed else {}
    assert default_output(job(**changed)) != default_output(job(**before))


def test_the_bundled_job_has_one_name_wherever_the_package_is(tmp_path: Path) -> None:
    here = resolve("self-consistency")
    workload = load_workload(here)
    assert here.model is not None and here.dataset.source is not None
    shutil.copytree(here.dataset.source, tmp_path / "recipes" / "tinymath")
    source = tmp_path / "recipes" / "tinymath"
    dataset = here.dataset.model_copy(update={"source": str(source)})
    there = here.model_copy(update={"model": str(source / "model"), "dataset": dataset})
    names = {default_output(JobContent.of(job, workload)) for job in (here, there)}
    assert len(names) == 1


def test_a_journal_under_another_name_is_found(job: Job) -> None:
    begin(job(), Path("runs/prompts-0123abcd.jsonl"))
    assert find_journal(job()).path == Path("runs/prompts-0123abcd.jsonl")
    shutil.move("rows.jsonl", "renamed.jsonl")
    shutil.move("model", "moved")
    renamed = job("renamed.jsonl", "moved")
    assert find_journal(renamed).path == Path("runs/prompts-0123abcd.jsonl")
    begin(renamed, default_output(renamed))
    assert find_journal(renamed).path == default_output(renamed)


def test_a_model_of_the_hub_is_known_by_its_name(job: Job) -> None:
    begin(job(model="owner/name"), Path("runs/prompts-0123abcd.jsonl"))
    assert find_journal(job(model="owner/name")).path == Path("runs/prompts-0123abcd.jsonl")
    other = job(model="owner/other")
    assert find_journal(other).path == default_output(other)
    recorded = RunFile.read(run_file_path(Path("runs/prompts-0123abcd.jsonl")))
    assert recorded is not None
    with pytest.raises(JournalError, match=r'another checkpoint .*owner/other.*"owner/name"'):
        refuse_other_job(Path("a.jsonl"), recorded, other.before_loading(recorded))


def test_a_journal_of_another_job_is_not_taken(job: Job) -> None:
    path = Path("runs/prompts-0123abcd.jsonl")
    begin(job(), path)
    cooler = job(sampling={"temperature": 0.5})
    assert find_journal(cooler).path == default_output(cooler)
    Path("others.jsonl").write_text('{"prompt": "Three"}\n')  # under the same ids
    others = job("others.jsonl")
    assert find_journal(others).path == default_output(others)
    run = run_file_path(path)
    for text in ("{", json.dumps(json.loads(run.read_text()) | {"conversion": {"journal": "x"}})):
        run.write_text(text)
        assert find_journal(job()).path == default_output(job())
    run.unlink()
    assert find_journal(job()).path == default_output(job())


def test_a_loop_over_documents_has_a_journal_for_each(job: Job, tmp_path: Path) -> None:
    names = set()
    Path("rows.jsonl").write_text('{"question": "How long?"}\n')
    for number, text in enumerate(["One day. " * 20, "Two nights. " * 20]):
        document = tmp_path / f"{number}.txt"
        document.write_text(text)
        flags: dict[str, Any] = {"model": "model", "few_shot": {"k": 0}}
        flags["dataset"] = {"document": str(document)}
        configuration = resolve("long-document", "rows.jsonl", flags)
        content = JobContent.of(configuration, load_workload(configuration))
        assert find_journal(content).path == default_output(content)
        names.add(default_output(content))
        moved = str(shutil.copy(document, tmp_path / f"moved {number}.txt"))
        flags["dataset"] = {"document": moved}
        again = resolve("long-document", "rows.jsonl", flags)
        assert default_output(JobContent.of(again, load_workload(again))) in names
    assert len(names) == 2


def test_a_loop_over_folders_has_a_journal_for_each(job: Job) -> None:
    found = []
    for name in ("a", "b", "c"):
        Path(name).mkdir()
        Path(name, "test.jsonl").write_text(f'{{"prompt": "Of {name}"}}\n')
        content = job(f"{name}/test.jsonl")
        found.append(find_journal(content).path)
        begin(content, found[-1])
        assert find_journal(content).path == found[-1]
    assert len(set(found)) == 3
    shutil.move("b", "moved")
    assert find_journal(job("moved/test.jsonl")).path == found[1]
    Path("c", "test.jsonl").write_text('{"prompt": "Edited"}\n')  # to be refused by name
    assert find_journal(job("c/test.jsonl")).path == found[2]
    shard = journal_path(found[0], Shard(1, 2))
    shutil.move(found[0], shard)
    shutil.move(run_file_path(found[0]), run_file_path(shard))
    assert find_journal(job("a/test.jsonl")).path == found[0]
