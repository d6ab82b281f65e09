"""Jobs that search instead of drawing: their journal, what they are known by, how they go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sharegen import LLM, BeamSearchParams
from sharegen.errors import JournalError, UsageError
from sharegen.job.run_job import run_job
from sharegen.results.journal.identity import differences, identity_of
from sharegen.workload.configuration import Configuration, resolve
from tests.job.parts import configure, records

BEAMS = {"decoding": "beam", "samples": 2, "beam_width": 3, "temperature": 0, "max_tokens": 8}


def searching(folder: Path, **changed: Any) -> Configuration:
    configuration = configure(folder)
    sampling = configuration.sampling.model_copy(update=BEAMS | changed)
    return configuration.model_copy(update={"sampling": sampling})


def texts(path: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """The lines of a journal, bar those of bad rows."""
    return {(key, sample): line for (key, sample), line in records(path).items()
            if sample is not None}  # fmt: skip


@pytest.mark.slow
def test_the_journal_has_the_best_texts_and_goes_on(folder: Path, tmp_path: Path) -> None:
    path, job = tmp_path / "beams.jsonl", searching(folder)
    run_job(job, path)
    found = texts(path)
    of_each: dict[str, list[float]] = {}
    for (problem, sample), line in sorted(found.items()):
        assert len(of_each.setdefault(problem, [])) == sample
        of_each[problem].append(line["score"])
        scaled = line["cumulative_logprob"] / line["num_tokens"]
        assert line["score"] == pytest.approx(scaled)
    assert all(len(s) == 2 and s[0] >= s[1] for s in of_each.values())

    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: len(lines) // 2]) + lines[-1][:20])
    run_job(job, path)
    assert texts(path) == found  # and a problem's other text is the one that it was

    run_job(searching(folder, samples=3), path)  # one that was followed and not kept
    assert {key: line for key, line in texts(path).items() if key[1] < 2} == found
    with pytest.raises(JournalError, match=r"sampling.beam_width was 3 and is now 4"):
        run_job(searching(folder, beam_width=4), path)


@pytest.mark.slow
def test_they_are_those_of_the_llm(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "beams.jsonl"
    job = searching(folder)
    run_job(job, path)
    stop = job.sampling.stop
    with LLM(folder / "model", device="cpu", kv_cache_memory=1 << 22) as llm:
        for line in list(texts(path).values())[:4]:
            prompt = next(p for p in _prompts(job) if p[0] == line["problem_id"])[1]
            params = BeamSearchParams(3, 8, stop=stop, ignore_eos=job.sampling.ignore_eos)
            [output] = llm.beam_search(prompt, params)
            assert output.sequences[line["sample"]].output.text == line["completion"]


def _prompts(job: Configuration) -> list[tuple[str, str]]:
    from sharegen.workload.problem import load_workload

    return [(problem.id, problem.prompt.content) for problem in load_workload(job).problems]


def test_a_journal_of_draws_is_none_of_a_search() -> None:
    drawn = resolve("self-consistency", None, {}).identity
    sampling = {"decoding": "beam", "temperature": 0}
    searched = resolve("self-consistency", None, {"sampling": sampling | {"samples": 4}}).identity
    assert searched["sampling"]["beam_width"] == 4
    found = " ".join(differences(identity_of(drawn), identity_of(searched)))
    assert "sampling.decoding" in found and "sampling.beam_width" in found


@pytest.mark.parametrize(
    ("sampling", "says"),
    [
        ({"decoding": "beam"}, "--temperature 1.0: a beam search follows the likeliest texts"),
        ({"decoding": "beam", "temperature": 0, "top_p": 0.9}, "--top-p 0.9: .* set it to 1.0"),
        (
            {"decoding": "beam", "temperature": 0, "stop_when": "decided"},
            "--stop-when decided: .* leave it out",
        ),
        (
            {"decoding": "beam", "temperature": 0, "beam_width": 3},
            "beam_width is 3: 20 texts are kept",
        ),
        ({"beam_width": 3}, "sampling.beam_width is for a beam search"),
        ({"length_penalty": 0.5}, "sampling.length_penalty is for a beam search"),
        ({"decoding": "beams"}, "decoding"),
    ],
)
def test_what_has_no_place_beside_beams(sampling: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        resolve("self-consistency", None, {"sampling": sampling})
