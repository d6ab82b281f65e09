"""Structured outputs of a job: in its journal, on resume, with workers, and of batch requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from sharegen.errors import JournalError
from sharegen.job.batch_file import run_batch
from sharegen.job.run_job import run_job
from sharegen.workload.configuration import Configuration, resolve
from tests.job.parts import records

pytestmark = pytest.mark.slow

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}, "ok": {"enum": ["yes"]}},
    "required": ["n", "ok"],
    "additionalProperties": False,
}
BARE = {"json": SCHEMA, "disable_any_whitespace": True}
MACHINE = {"device": "cpu", "kv_cache_memory": 1 << 22}


def configure(
    folder: Path, source: Path, structured: Any = BARE, samples: int = 3, **machine: Any
) -> Configuration:
    flags = {
        "model": str(folder / "model"),
        "sampling": {
            "samples": samples,
            "max_tokens": 40,
            "temperature": 1.0,
            "stop": [],
            "structured_outputs": structured,
        },
        "machine": MACHINE | machine,
    }
    return resolve("prompts", str(source), flags)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    rows = [{"prompt": f"Question: Tom has {n} apples. How many?\n"} for n in range(6)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def texts(path: Path) -> dict[tuple[str, int | None], str]:
    found = {key: record["completion"] for key, record in records(path).items()}
    for text in found.values():
        jsonschema.validate(json.loads(text), SCHEMA)
    return found


def test_every_line_of_the_journal_parses_and_it_goes_on(
    folder: Path, source: Path, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    assert run_job(configure(folder, source), path).drawn == 18
    before = texts(path)
    assert run_job(configure(folder, source, samples=5), path).drawn == 12
    assert before.items() <= texts(path).items()
    with pytest.raises(JournalError, match="structured_outputs"):
        run_job(configure(folder, source, {"regex": "[0-9]"}), path)


def test_workers_draw_what_one_engine_draws(folder: Path, source: Path, tmp_path: Path) -> None:
    run_job(configure(folder, source), tmp_path / "one.jsonl")
    run_job(configure(folder, source, workers=2), tmp_path / "two.jsonl")
    assert texts(tmp_path / "one.jsonl") == texts(tmp_path / "two.jsonl")


def test_each_request_of_a_batch_has_its_own(folder: Path, tmp_path: Path) -> None:
    def line(custom_id: str, **body: Any) -> dict[str, Any]:
        body = {"prompt": "How many?", "max_tokens": 40, **body}
        url = "/v1/completions"
        return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}

    schema = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
    never = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"enum": []}}}
    lines = [
        line("schema", response_format=schema, n=3),
        line("choice", structured_outputs={"choice": ["yes", "no"]}),
        line("never", response_format=never),
        line("text", response_format={"type": "text"}, max_tokens=4),
    ]
    source = tmp_path / "requests.jsonl"
    source.write_text("".join(json.dumps(each) + "\n" for each in lines))
    flags = {"model": str(folder / "model"), "machine": MACHINE}
    run_batch(resolve("batch", str(source), flags), tmp_path / "out.jsonl")
    answers = [json.loads(each) for each in (tmp_path / "out.jsonl").read_text().splitlines()]
    bodies = {answer["custom_id"]: answer["response"] for answer in answers}
    for choice in bodies["schema"]["body"]["choices"]:
        if choice["finish_reason"] == "stop":
            jsonschema.validate(json.loads(choice["text"]), SCHEMA)
    assert bodies["choice"]["body"]["choices"][0]["text"] in ("yes", "no")
    assert bodies["never"]["status_code"] == 400
    error = bodies["never"]["body"]["error"]
    assert "Unsatisfiable schema" in error["message"] and error["param"] == "response_format"
    assert bodies["text"]["status_code"] == 200
