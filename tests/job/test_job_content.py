"""A journal belongs to its job by content: files move, and what really differs is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from sharegen.common.mappings import merge
from sharegen.errors import JournalError, UsageError
from sharegen.job.job_content import of_machine
from sharegen.job.run_job import run_job
from sharegen.results.journal.identity import differences
from sharegen.results.journal.pool import pool
from sharegen.results.journal.record import read
from sharegen.results.journal.run_file import RunFile
from sharegen.workload.configuration import Configuration, resolve
from tests.engine.model.stored.packers import fp8_blocks, rewrite
from tests.tiny import save_tiny_model

ROWS = [{"question": f"Tom has {n} apples. How many?", "answer": f"#### {n}"} for n in range(3, 10)]
EXAMPLES = [{"question": "How many?", "answer": f"#### {n}"} for n in range(2)]


SHORT = {"max_tokens": 4, "temperature": 1.0}


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def place(tmp_path: Path, tiny: Path) -> Path:
    """A folder with a model, rows and examples of its own."""
    shutil.copytree(tiny, tmp_path / "model")
    write(tmp_path / "rows.jsonl", ROWS)
    write(tmp_path / "examples.jsonl", EXAMPLES)
    return tmp_path


def configure(
    place: Path, samples: int = 2, rows: str = "rows.jsonl", model: str = "model", **flags: Any
) -> Configuration:
    given: dict[str, Any] = {
        "model": str(place / model),
        "few_shot": {"k": 2, "file": str(place / "examples.jsonl")},
        "sampling": {"samples": samples, "max_tokens": 4, "temperature": 1.0},
        "machine": {"device": "cpu", "kv_cache_memory": 1 << 22},
    }
    return resolve("self-consistency", str(place / rows), given | flags)


def test_it_goes_on_when_everything_has_moved(place: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    run_job(configure(place), path)
    before = path.read_bytes()
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    shutil.move(place / "model", moved / "other")
    shutil.move(place / "rows.jsonl", moved / "questions.jsonl")
    shutil.move(place / "examples.jsonl", moved / "examples.jsonl")
    job = configure(moved, rows="questions.jsonl", model="other", samples=3)
    assert run_job(job, path).drawn == len(ROWS)
    assert path.read_bytes().startswith(before)
    run = RunFile.read(tmp_path / ".sharegen" / "a.run.json")
    assert run is not None and Configuration.from_settings(run.settings).model == job.model


def test_a_finished_job_that_moved_is_told_without_its_model(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    run_job(configure(place), path)
    shutil.copytree(place / "model", place / "copy")
    monkeypatch.setattr("sharegen.job.loaded.load", lambda *_: pytest.fail("a model was loaded"))
    assert run_job(configure(place, model="copy"), path).drawn == 0


@pytest.mark.parametrize("samples", [2, 3])  # finished, and not
def test_another_checkpoint_is_refused_by_name(place: Path, tmp_path: Path, samples: int) -> None:
    path = tmp_path / "a.jsonl"
    run_job(configure(place), path)
    before = path.read_bytes()
    save_tiny_model(place / "model", seed=1)  # in the same folder
    with pytest.raises(JournalError, match=r"another checkpoint \(fingerprints\.model was "):
        run_job(configure(place, samples), path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("samples", [2, 3])
def test_another_chat_template_is_refused_by_name(
    place: Path, tmp_path: Path, samples: int
) -> None:
    path, chat = tmp_path / "a.jsonl", {"chat": {"enabled": True}}
    run_job(configure(place, **chat), path)
    template = place / "model" / "chat_template.jinja"
    template.write_text(template.read_text() + "\n")
    with pytest.raises(JournalError, match="another tokenizer or chat template"):
        run_job(configure(place, samples, **chat), path)


def test_another_template_of_ones_own_is_refused_by_name(place: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %} 1+1=")

    def configured(samples: int, **kwargs: Any) -> Configuration:
        own = {"template": str(tmp_path / "mine.jinja"), "template_kwargs": kwargs}
        flags = {"model": str(place / "model"), "chat": own, "sampling": {"samples": samples}}
        machine = {"device": "cpu", "kv_cache_memory": 1 << 22}
        rows = write(tmp_path / "chats.jsonl", [{"messages": [{"role": "user", "content": "?"}]}])
        return resolve("prompts", str(rows), merge(flags, {"machine": machine, "sampling": SHORT}))

    run_job(configured(1), tmp_path / "a.jsonl")
    assert run_job(configured(2), tmp_path / "a.jsonl").drawn == 1
    with pytest.raises(JournalError, match=r"template_kwargs.enable_thinking was not set and is"):
        run_job(configured(2, enable_thinking=False), tmp_path / "a.jsonl")
    (tmp_path / "mine.jinja").write_text("1")
    with pytest.raises(JournalError, match="another chat template"):
        run_job(configured(2), tmp_path / "a.jsonl")


def test_another_quantisation_is_refused_by_name(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHAREGEN_EMULATE_FP8", "1")
    path = tmp_path / "a.jsonl"
    plain = configure(place)
    run_job(plain, path)
    before = path.read_bytes()
    quantised = configure(place, machine=plain.machine.model_dump() | {"quantization": "fp8"})
    with pytest.raises(JournalError, match='quantization was null and is now "fp8"'):
        run_job(quantised, path)
    assert path.read_bytes() == before
    other = tmp_path / "b.jsonl"
    outcome = run_job(quantised, other, verify=5)
    assert outcome.drawn == 2 * len(ROWS)
    far = outcome.run.stats["verified"]["from_checkpoint"]
    assert far["steps"] == 5 and 0 < far["mean"] <= far["p99"] <= far["largest"]
    assert run_job(quantised, other).drawn == 0
    with pytest.raises(JournalError, match='quantization was "fp8" and is now null'):
        run_job(plain, other)


def test_blocks_that_are_read_otherwise_are_another_job(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU multiplies them as they are stored, and what it has begun a CPU does not go on with."""
    settings = {"quant_method": "fp8", "weight_block_size": [128, 128],
                "activation_scheme": "dynamic", "modules_to_not_convert": ["lm_head"]}  # fmt: skip
    rewrite(place / "model", settings, in_blocks)
    here, path = tmp_path / "here.jsonl", tmp_path / "a.jsonl"
    machine = configure(place).machine.model_dump() | {"dtype": "bfloat16"}

    def job(samples: int = 2, **more: Any) -> Configuration:
        return configure(place, samples, machine=machine | more)

    run_job(job(), here)
    monkeypatch.setenv("SHAREGEN_EMULATE_FP8", "1")
    assert run_job(job(), here).drawn == 0  # finished, whatever would have read it
    with pytest.raises(JournalError, match='quantization was null and is now "fp8-blocks"'):
        run_job(job(3), here)
    assert run_job(job(3, quantization="dequantize"), here).drawn == len(ROWS)
    outcome = run_job(job(), path, verify=5)
    assert outcome.drawn == 2 * len(ROWS)
    assert outcome.run.stats["verified"]["from_checkpoint"]["mean"] > 0
    assert run_job(job(quantization="fp8-blocks"), path).drawn == 0  # the same in another word
    assert run_job(job(3), path).drawn == len(ROWS)
    monkeypatch.delenv("SHAREGEN_EMULATE_FP8")
    assert run_job(job(3), path).drawn == 0
    with pytest.raises(JournalError, match='quantization was "fp8-blocks" and is now null'):
        run_job(job(4), path)
    with pytest.raises(JournalError, match='quantization was "fp8-blocks" and is now null'):
        run_job(job(3, quantization="dequantize"), path)


def in_blocks(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    pack = fp8_blocks()
    stored = {}
    for name, tensor in tensors.items():
        if name.endswith("_proj.weight"):
            prefix = name.removesuffix("weight")
            stored |= {f"{prefix}{key}": part for key, part in pack(name, tensor)[0].items()}
        else:
            stored[name] = tensor
    return stored


def test_another_kv_cache_dtype_is_refused_by_name(place: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    plain = configure(place)
    run_job(plain, path)
    narrow = configure(place, machine=plain.machine.model_dump() | {"kv_cache_dtype": "fp8"})
    with pytest.raises(JournalError, match='kv_cache_dtype was "auto" and is now "fp8"'):
        run_job(narrow, path)
    other = tmp_path / "b.jsonl"
    assert run_job(narrow, other).drawn == 2 * len(ROWS)
    with pytest.raises(JournalError, match='kv_cache_dtype was "fp8" and is now "auto"'):
        run_job(plain, other)


def test_another_logprobs_mode_is_refused_by_name(place: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    sampling = SHORT | {"samples": 2, "temperature": 0.5, "top_k": 1, "logprobs": 1}
    plain = configure(place, sampling=sampling)
    run_job(plain, path)
    machine = plain.machine.model_dump() | {"logprobs_mode": "processed_logprobs"}
    processed = configure(place, machine=machine, sampling=sampling)
    says = 'logprobs_mode was not set and is now "processed_logprobs"'
    with pytest.raises(JournalError, match=says):
        run_job(processed, path)
    other = tmp_path / "b.jsonl"
    run_job(processed, other)
    before, after = (list(read(journal)) for journal in (path, other))
    assert {one.key: one.completion for one in before} == {one.key: one.completion for one in after}
    for one in after:  # top_k leaves one token at each place
        assert one.cumulative_logprob == pytest.approx(0, abs=1e-5)
        assert [logprob for _, logprob, _ in one.logprobs] == pytest.approx(
            [0] * one.num_tokens, abs=1e-5
        )
    assert all(one.cumulative_logprob < -1e-3 for one in before)
    with pytest.raises(UsageError, match="--verify compares log-probabilities of the model's own"):
        run_job(processed, other, verify=2)


def test_another_template_is_refused_by_name(place: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    run_job(configure(place), path)
    changed = {"prompt": "Q: {{ question }}\nA:"}
    with pytest.raises(JournalError, match=r'another template \(prompt was "Question: .* "Q: '):
        run_job(configure(place, **changed), path)


def test_a_longer_dataset_is_the_same_job(place: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write(place / "rows.jsonl", ROWS[:4])
    run_job(configure(place), path)
    write(place / "rows.jsonl", ROWS)
    assert run_job(configure(place), path).drawn == 2 * 3
    assert run_job(configure(place, dataset={"limit": 2}), path).drawn == 0


def test_every_line_has_a_hash_of_its_row(place: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    run_job(configure(place), path)
    hashes: dict[str, set[str]] = {}
    for line in path.read_text().splitlines():
        fields = json.loads(line)
        hashes.setdefault(fields["problem_id"], set()).add(fields["row_hash"])
    assert [len(of_row) for of_row in hashes.values()] == [1] * len(ROWS)
    assert len(set().union(*hashes.values())) == len(ROWS)


def _with_ids(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row | {"id": f"q{index}"} for index, row in enumerate(rows)]


@pytest.mark.parametrize("samples", [2, 3])
def test_an_edited_row_is_refused_by_its_id(place: Path, tmp_path: Path, samples: int) -> None:
    path, rows = tmp_path / "a.jsonl", _with_ids(ROWS)
    write(place / "rows.jsonl", rows)
    run_job(configure(place), path)
    before = path.read_bytes()
    rows[4]["question"] = "Who has 17 pears?"
    write(place / "rows.jsonl", rows)
    with pytest.raises(JournalError, match="problem 'q4': its prompt or tests") as caught:
        run_job(configure(place, samples), path)
    assert "another id" in str(caught.value) and "--overwrite" in str(caught.value)
    assert "\n" not in str(caught.value) and path.read_bytes() == before
    rows[4] = {"id": "q4"}  # which cannot even be asked
    write(place / "rows.jsonl", rows)
    with pytest.raises(JournalError, match="problem 'q4': "):
        run_job(configure(place, samples), path)


@pytest.mark.parametrize("samples", [2, 3])
def test_a_corrected_gold_answer_or_another_answer_pattern_is_not_refused(
    place: Path, tmp_path: Path, samples: int
) -> None:
    path = tmp_path / "a.jsonl"
    write(place / "rows.jsonl", _with_ids(ROWS))
    run_job(configure(place), path)
    write(place / "rows.jsonl", [*_with_ids(ROWS)[:-1], {**_with_ids(ROWS)[-1], "answer": "8"}])
    reading = {"patterns": ["[0-9]"], "match": "first", "gold": {"field": "question"}}
    job = configure(place, samples, answer=reading)
    assert run_job(job, path).drawn == (samples - 2) * len(ROWS)


def test_an_edited_row_that_was_not_sampled_is_asked(place: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    run_job(configure(place, dataset={"limit": 4}), path)
    write(place / "rows.jsonl", [*ROWS[:4], {"question": "Why?", "answer": "#### 9"}])
    assert run_job(configure(place), path).drawn == 2


def test_rows_in_front_are_refused_with_the_advice_to_give_ids(place: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    run_job(configure(place), path)
    new = {"question": "What is new?", "answer": "#### 1"}
    write(place / "rows.jsonl", [new, *ROWS])
    advice = r"problem '0', and 6 more: .* one in front shifts: .* column 'id' \(--set dataset\.id"
    with pytest.raises(JournalError, match=advice):
        run_job(configure(place), path)
    write(place / "rows.jsonl", _with_ids(ROWS))
    run_job(configure(place), tmp_path / "b.jsonl")
    write(place / "rows.jsonl", [new | {"id": "new"}, *_with_ids(ROWS)])
    assert run_job(configure(place), tmp_path / "b.jsonl").drawn == 2


def test_edited_tests_are_refused(place: Path, tmp_path: Path) -> None:
    row = {"task_id": "t", "prompt": "def f():\n", "entry_point": "f", "test": "def check(f): 0"}

    def job() -> Configuration:
        flags = {
            "model": str(place / "model"),
            "sampling": {"samples": 1, "max_tokens": 4},
            "machine": {"device": "cpu"},
        }
        return resolve("code-sample", str(place / "programs.jsonl"), flags)

    write(place / "programs.jsonl", [row])
    run_job(job(), tmp_path / "a.jsonl")
    write(place / "programs.jsonl", [row | {"canonical_solution": "    return 1"}])
    assert run_job(job(), tmp_path / "a.jsonl").drawn == 0  # nothing that the samples depend on
    write(place / "programs.jsonl", [row | {"test": "def check(f): assert f()"}])
    with pytest.raises(JournalError, match=r"problem 't': its prompt or tests"):
        run_job(job(), tmp_path / "a.jsonl")


def test_journals_of_one_job_are_pooled_wherever_they_were_made(
    place: Path, tmp_path: Path
) -> None:
    halves = []
    for name, rows in (("a", _with_ids(ROWS)[:4]), ("b", _with_ids(ROWS)[4:])):
        write(place / f"{name}.jsonl", rows)
        shutil.copytree(place / "model", place / f"model {name}")
        halves.append(tmp_path / f"half {name}.jsonl")
        run_job(configure(place, rows=f"{name}.jsonl", model=f"model {name}"), halves[-1])
    (together,) = pool(halves)
    assert {record.problem_id for record in together.records()} == {f"q{n}" for n in range(7)}


VERSION_0_1 = Path(__file__).parent / "version_0_1"
"""A journal of 0.1, which later versions go on with: what is left by
`sharegen run self-consistency --limit 3 -n 2 --device cpu -o journal.jsonl`."""


@pytest.mark.slow
def test_a_journal_of_0_1_goes_on(tmp_path: Path) -> None:
    """A setting that a later version adds takes a line in `NEWER` of `journal/identity.py`."""
    shutil.copytree(VERSION_0_1, tmp_path / "runs")
    journal = tmp_path / "runs" / "journal.jsonl"
    before = journal.read_bytes()
    flags = {
        "dataset": {"limit": 1},
        "sampling": {"samples": 3},
        "machine": {"device": "cpu"},
    }
    assert run_job(resolve("self-consistency", flags=flags), journal).drawn == 1
    assert journal.read_bytes().startswith(before)
    assert len(journal.read_text().splitlines()) == 7


def test_ranks_are_part_of_it_where_they_change_bits(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU in float32; on a GPU a batch of another size rounds otherwise, too."""
    from sharegen.engine.model.checkpoint import source as checkpoint

    job = configure(place, machine={"device": "auto", "tensor_parallel_size": 2})
    for device, dtype, counts in (
        ("cpu", "float32", True), ("cpu", "bfloat16", False), ("cuda", "float32", False),
    ):  # fmt: skip
        monkeypatch.setattr(checkpoint, "resolve_device", lambda _, d=device: torch.device(d))
        assert bool(of_machine(job, dtype)) == counts
    monkeypatch.undo()
    one = RunFile(job.identity | of_machine(configure(place), "float32")).identity
    two = RunFile(job.identity | of_machine(job, "float32")).identity
    assert differences(one, two) == ["tensor_parallel_size was not set and is now 2"]
    settings = RunFile(job.identity | of_machine(job, "float32"), extent=job.extent).settings
    assert Configuration.from_settings(settings).machine == job.machine


def test_in_the_deterministic_mode_blocks_ranks_and_compiled_layers_are_part_of_it(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sharegen.engine.model.checkpoint import source as checkpoint

    def found(device: str, **machine: Any) -> dict[str, Any]:
        monkeypatch.setattr(checkpoint, "resolve_device", lambda _: torch.device(device))
        job = configure(place, machine={"deterministic": True} | machine)
        run = RunFile(job.identity | of_machine(job, "float32"), extent=job.extent)
        assert Configuration.from_settings(run.settings).machine == job.machine
        return run.identity

    as_begun = found("cuda")
    assert as_begun == found("cpu") == found("cpu", compile=False) == found("cuda", compile=True)
    for machine, said in (
        ({"block_size": 32}, "block_size was not set and is now 32"),
        ({"compile": False}, "compile was not set and is now false"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size was not set and is now 2"),
    ):
        assert differences(as_begun, found("cuda", **machine)) == [said]
    plain = configure(place, machine={"block_size": 32, "compile": False})
    assert of_machine(plain, "float32") == {}
