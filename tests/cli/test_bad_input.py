"""Whatever a user gets wrong ends in one line that says what, where and what to do."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from sharegen.results.journal.record import read
from tests.cli.conftest import ROWS, Command, write_jsonl
from tests.tiny import save_tiny_model

RECIPE = """\
dataset: {fields: {question: question}}
prompt: "{{ question }}"
"""


def check(ran, code: int, *words: str) -> None:  # type: ignore[no-untyped-def]
    """One line on stderr, after what was said before it failed, naming all of `words`."""
    assert ran.code == code, ran.err
    assert "Traceback" not in ran.err
    last = ran.err.strip().splitlines()[-1]
    assert last.startswith("sharegen: error: "), ran.err
    for word in words:
        assert word in last, (word, last)


def recipe(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text)
    return path


def test_unknown_recipe_names_the_nearest(sharegen: Command) -> None:
    check(sharegen("run", "self-consistancy"), 2, "self-consistancy", "'self-consistency'")


def test_ray_that_is_not_installed(sharegen: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "sharegen.engine.parallel.cluster", raising=False)
    ran = sharegen("run", "self-consistency", "--ray", "auto", "-q")
    check(ran, 2, "Ray is not installed: ", "pip install 'ray[client]>=")


def test_a_journal_is_a_file(sharegen: Command) -> None:
    check(sharegen("run", "self-consistency", "-o", "-"), 2, "a journal is a file")
    assert not Path("-").exists()


@pytest.mark.parametrize("files", [7, 8])
def test_too_few_open_files(files: int) -> None:
    """Even where the process that workers are copied from finds none left."""
    run = f"ulimit -n {files}; exec {sys.executable} -m sharegen run self-consistency -q"
    ended = subprocess.run(["sh", "-c", run], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.splitlines() == [
        "sharegen: error: too many files are open at once: allow more of them, as by ulimit -n 4096"
    ]


def test_recipe_file_that_is_not_there(sharegen: Command) -> None:
    check(sharegen("run", "./none.yaml"), 2, "none.yaml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (RECIPE + "sampling: {temprature: 1}", ["sampling.temprature", "'temperature'"]),
        (RECIPE + "smapling: {}", ["'smapling'", "'sampling'"]),
        (RECIPE + "presets: {a: {dataset: {sorce: x}}}", ["presets.a.dataset.sorce", "'source'"]),
        (RECIPE + "sampling: {temperature: -1}", ["sampling.temperature is -1", "at least 0"]),
        (RECIPE + "sampling: {stop: [3]}", ["sampling.stop", "3"]),
        (RECIPE + "answer: {patterns: ['(']}", ["answer.patterns", "not a regular expression"]),
        ("dataset: {}", ["'prompt' is missing"]),
        ("prompt: '{{ question'", ["prompt", "not a template"]),
        ("prompt: [", ["mine.yaml:", "not YAML"]),
        ("just text", ["mine.yaml", "mapping"]),
        (RECIPE + "default: x", ["'default' names 'x'"]),
    ],
)
def test_bad_recipe_names_file_and_key(
    sharegen: Command, tmp_path: Path, text: str, words: list[str]
) -> None:
    check(sharegen("run", recipe(tmp_path, text)), 2, "mine.yaml", *words)


@pytest.mark.parametrize("steps", ["0", "-1", "many"])
@pytest.mark.parametrize("command", [["run", "self-consistency"], ["code-sample", "humaneval"]])
def test_verify_takes_a_step_or_more(sharegen: Command, command: list[str], steps: str) -> None:
    check(sharegen(*command, "--verify", steps), 2, "--verify")


@pytest.mark.parametrize("samples", ["0", "many"])
def test_check_determinism_takes_a_sample_or_more(sharegen: Command, samples: str) -> None:
    ran = sharegen("run", "self-consistency", "--check-determinism", samples)
    check(ran, 2, "--check-determinism")


def test_template_that_names_a_missing_field(
    sharegen: Command, tmp_path: Path, rows: Path, model: Path
) -> None:
    mine = recipe(tmp_path, 'prompt: "{{ qestion }}"')
    ran = sharegen("run", mine, "--dataset", rows, "--model", model)
    check(ran, 1, "rows.jsonl, line 1", "'prompt'", "'qestion'", "question, answer", "5 more rows")


def test_sandboxed_template(sharegen: Command, tmp_path: Path, rows: Path, model: Path) -> None:
    mine = recipe(tmp_path, 'prompt: "{{ question.__class__.__mro__ }}"')
    check(sharegen("run", mine, "--dataset", rows, "--model", model), 1, "unsafe")


def test_missing_dataset_file(sharegen: Command, model: Path) -> None:
    ran = sharegen("run", "self-consistency", "--dataset", "no/such.jsonl", "--model", model)
    check(ran, 2, "no/such.jsonl")


def test_misspelt_preset(sharegen: Command) -> None:
    check(sharegen("run", "self-consistency", "--dataset", "gsm8"), 2, "gsm8", "'gsm8k'")


def test_empty_dataset_file(sharegen: Command, job: list[object], tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("\n")
    check(sharegen(*job), 1, "rows.jsonl", "no rows")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"question": "a"', "malformed JSON"),
        ("[1]", "not a JSON object"),
        ('{"question": nope}', "malformed JSON"),
    ],
)
def test_a_line_that_is_no_row_is_named_and_costs_no_other(
    sharegen: Command, job: list[object], rows: Path, line: str, words: str
) -> None:
    lines = rows.read_text().splitlines()
    rows.write_text("\n".join([*lines[:2], "", line, *lines[2:]]))
    check(sharegen(*job, "--strict"), 1, "rows.jsonl, line 4", words)
    ran = sharegen(*job)
    assert ran.code == 0 and "1 bad row" in ran.out
    bad = [record for record in read("out.jsonl") if not record.is_sample]
    assert [(record.problem_id, words in str(record.error)) for record in bad] == [("2", True)]
    assert {record.problem_id for record in read("out.jsonl")} == set(map(str, range(7)))
    rows.write_text(line + "\n")
    check(sharegen(*job, "-o", "b.jsonl"), 1, "rows.jsonl, line 1", words)


def test_file_of_an_unknown_kind(sharegen: Command, job: list[object], tmp_path: Path) -> None:
    (tmp_path / "rows.xlsx").write_text("x")
    check(sharegen(*job, "--dataset", "rows.xlsx"), 1, "rows.xlsx", ".jsonl")


def test_broken_csv_and_parquet(sharegen: Command, job: list[object], tmp_path: Path) -> None:
    (tmp_path / "rows.parquet").write_bytes(b"not parquet")
    check(sharegen(*job, "--dataset", "rows.parquet"), 1, "rows.parquet")
    (tmp_path / "rows.csv").write_bytes(b"")
    check(sharegen(*job, "--dataset", "rows.csv"), 1, "rows.csv", "no rows")


def test_text_that_is_not_utf8(sharegen: Command, job: list[object], rows: Path) -> None:
    rows.write_bytes(b'{"question": "\xff"}\n')
    check(sharegen(*job), 1, "rows.jsonl", "UTF-8")


def test_no_row_with_the_needed_field(sharegen: Command, job: list[object], rows: Path) -> None:
    write_jsonl(rows, [{"text": "a"}, {"text": "b"}])
    check(sharegen(*job), 1, "rows.jsonl, line 1", "'question'", "it has text")


def test_equal_ids(sharegen: Command, job: list[object], rows: Path) -> None:
    write_jsonl(rows, [{**row, "id": 7} for row in ROWS[:2]])
    check(sharegen(*job), 1, "rows.jsonl", "id '7'")


def test_few_shot_of_a_lone_file(sharegen: Command, rows: Path, model: Path) -> None:
    ran = sharegen("run", "self-consistency", "--dataset", rows, "--model", model)
    check(ran, 1, "--few-shot-file", "--few-shot 0")


def test_more_examples_than_there_are(sharegen: Command, job: list[object]) -> None:
    check(sharegen(*job, "--few-shot", 9), 1, "9 examples", "3 are there")


def test_few_shot_file_that_is_not_there(sharegen: Command, job: list[object]) -> None:
    check(sharegen(*job, "--few-shot-file", "none.jsonl"), 2, "--few-shot-file none.jsonl")


def test_no_model_named(sharegen: Command, rows: Path) -> None:
    ran = sharegen("run", "self-consistency", "--dataset", rows, "--few-shot", 0)
    check(ran, 2, "--model", "tinymath")


def test_unknown_model_folder(sharegen: Command, job: list[object]) -> None:
    check(sharegen(*job, "--model", "./nowhere"), 1, "./nowhere")


@pytest.fixture(params=["refuses", "is silent"])
def no_hub(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A hub that refuses to be connected, or takes the connection and never answers."""
    from huggingface_hub import constants

    from sharegen.common import hub

    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if request.param == "is silent":
            server.listen()
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 1)
        hub.hub_is_reachable.cache_clear()
        yield
        hub.hub_is_reachable.cache_clear()


def test_unreachable_hub_fails_at_once(sharegen: Command, job: list[object], no_hub: None) -> None:
    import datasets  # noqa: F401 - its import is not what is timed

    started = time.monotonic()
    check(sharegen(*job, "--model", "someone/nothing"), 1, "someone/nothing", "not reachable")
    ran = sharegen(*job, "--dataset", "someone/nothing")
    check(ran, 1, "--dataset someone/nothing", "not reachable", "local file")
    assert time.monotonic() - started < 30


def test_model_that_the_engine_refuses(
    sharegen: Command, job: list[object], model: Path, tmp_path: Path
) -> None:
    from transformers import BloomConfig, BloomForCausalLM

    folder = tmp_path / "bloom"
    config = BloomConfig(vocab_size=64, hidden_size=16, n_layer=2, n_head=2)
    BloomForCausalLM(config).save_pretrained(folder)
    check(sharegen(*job, "--model", folder), 1, "bloom")


def test_model_without_a_tokenizer(sharegen: Command, job: list[object], tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "model")
    for file in folder.glob("*token*"):
        file.unlink()
    check(sharegen(*job, "--model", folder), 1, "no tokenizer")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--samples", 0], ["--samples is 0", "1"]),
        (["--samples", 200_000_000], ["--samples is 200000000", "1000000"]),
        (["--set", "sampling.samples=1000001"], ["samples is 1000001", "1000000"]),
        (["--temperature", -0.5], ["--temperature is -0.5", "0"]),
        (["--temperature", "nan"], ["--temperature", "finite"]),
        (["--top-p", 3], ["--top-p is 3", "1"]),
        (["--top-p", 0], ["--top-p is 0"]),
        (["--top-k", -2], ["--top-k is -2"]),
        (["--max-tokens", 0], ["--max-tokens is 0"]),
        (["--limit", 0], ["--limit is 0"]),
        (["--few-shot", -1], ["--few-shot is -1"]),
        (["--block-size", 0], ["--block-size is 0"]),
        (["--max-sequences", 0], ["--max-sequences is 0"]),
        (["--stop", ""], ["--stop"]),
        (["--dtype", "int4"], ["--dtype is 'int4'", "bfloat16"]),
        (["--quantization", "int4"], ["--quantization is 'int4'", "'fp8'"]),
        (
            ["--quantization", "fp8", "--device", "cpu"],
            ["FP8 weights need a GPU", "the device is cpu"],
        ),
        (["--kv-cache-dtype", "int4"], ["--kv-cache-dtype is 'int4'", "'fp8'"]),
        (["--kv-cache-memory", "lots"], ["--kv-cache-memory", "8GiB"]),
        (["--device", "tpu"], ["tpu"]),
        (["--no-chat", "--system", "Be brief."], ["--system", "--no-chat"]),
        (["--set", "sampling.min_p"], ["--set sampling.min_p"]),
        (["--set", "sampling.min_p=2"], ["error: --set sampling.min_p is 2"]),
        (["--set", "sampling.minp=2"], ["error: --set sampling.minp", "'min_p'"]),
        (["--set", "smapling.min_p=2"], ["error: --set smapling.min_p", "'sampling'"]),
        (["--set", "dataset.needles.wrds=2"], ["error: --set dataset.needles.wrds", "'words'"]),
        (["--set", "answer.gold.pattern=("], ["error: --set answer.gold.pattern is '('"]),
        (["--set", "chat=3", "--chat"], ["--set chat=3", "section"]),
        (["--set", "dataset=x"], ["--set dataset=x", "section"]),
        (["--set", "answer=[1"], ["--set", "YAML"]),
        (["--document", "none.txt"], ["--document", "self-consistency"]),
        (["--samples", "many"], ["--samples"]),
        (["--split", "validation"], ["--split", "one file"]),
        (["--dataset-config", "main"], ["--dataset-config", "hub"]),
        (["--no-such-flag"], ["--no-such-flag", "sharegen run --help"]),
    ],
)
def test_impossible_flags(
    sharegen: Command, job: list[object], arguments: list[object], words: list[str]
) -> None:
    check(sharegen(*job, *arguments), 2, *words)


@pytest.mark.parametrize(
    "arguments",
    [
        ["vote", ""],
        ["vote", "out.jsonl", "--output", ""],
        ["show", "", "--problem", "1"],
        ["score", ""],
        ["score", "out.jsonl", "--dataset", ""],
        ["convert", "", "--format", "bigcode"],
        ["convert", "out.jsonl", "--format", "bigcode", "-o", ""],
        ["report", ""],
        ["report", "out.jsonl", "-o", ""],
        ["report", "out.jsonl", "--html", ""],
        ["run", "self-consistency", "-o", ""],
        ["run", "self-consistency", "--dataset", ""],
        ["code-sample", "", "--model", "m"],
    ],
    ids=" ".join,
)
def test_an_empty_path_is_not_the_current_folder(sharegen: Command, arguments: list[str]) -> None:
    Path("out.jsonl").write_text('{"problem_id": "1", "sample": 0, "completion": "x"}\n')
    ran = sharegen(*arguments)
    check(ran, 2, "empty")
    assert len(ran.err.splitlines()) == 1 and [p.name for p in Path().iterdir()] == ["out.jsonl"]


@pytest.mark.parametrize(
    "command", ["vote", "show -p 1", "score", "convert --format bigcode", "report"]
)
def test_a_folder_is_no_journal(sharegen: Command, command: str) -> None:
    name, *more = command.split()
    check(sharegen(name, ".", *more), 1, ".: ")


def test_a_recipe_whose_source_was_taken_away(sharegen: Command) -> None:
    check(sharegen("plan", "self-consistency", "--set", "dataset.source="), 2, "--dataset")


def test_unknown_command(sharegen: Command) -> None:
    check(sharegen("rum"), 2, "rum")


def test_output_folder_that_is_not_writable(
    sharegen: Command, job: list[object], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    check(sharegen(*job, "-o", "file/out.jsonl"), 1, "file/out.jsonl", "--output")


def test_output_of_another_configuration(sharegen: Command, job: list[object]) -> None:
    assert sharegen(*job).code == 0
    before = Path("out.jsonl").read_bytes()
    ran = sharegen(*job, "--temperature", 0.1, "--seed", 5)
    changed = ["sampling.temperature was 0.7 and is now 0.1", "sampling.seed"]
    check(ran, 1, "out.jsonl", *changed, "--overwrite")
    assert Path("out.jsonl").read_bytes() == before


def test_output_of_another_model(sharegen: Command, job: list[object], tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "model")
    job = [*job, "--model", folder]
    assert sharegen(*job).code == 0
    save_tiny_model(folder, seed=1)
    check(sharegen(*job, "-n", 4), 1, "fingerprints.model", "--overwrite")


def test_output_of_a_model_that_is_away(
    sharegen: Command, job: list[object], tmp_path: Path
) -> None:
    """As on a disk that is not mounted: nobody is told to begin anew."""
    job = [*job, "--model", save_tiny_model(tmp_path / "model")]
    assert sharegen(*job).code == 0
    (tmp_path / "model").rename(tmp_path / "elsewhere")
    check(sharegen(*job), 1, f"no folder {tmp_path / 'model'}: give a model folder")


@pytest.mark.parametrize("folder", [".", "runs", "runs/"])
def test_output_that_is_a_folder(sharegen: Command, job: list[object], folder: str) -> None:
    Path("runs").mkdir()
    check(sharegen(*job, "-o", folder), 2, "it is a folder", "--output")


def test_output_that_is_no_file(sharegen: Command, job: list[object]) -> None:
    """Refused by name, and not opened: nobody reads the pipe."""
    os.mkfifo("pipe.jsonl")
    check(sharegen(*job, "-o", "pipe.jsonl"), 2, "--output pipe.jsonl", "it is a named pipe")
    check(sharegen(*job, "-o", "/dev/null"), 2, "--output /dev/null", "it is a device")


@pytest.mark.parametrize("name", ["a" * 246 + "é.jsonl", "a" * 250 + ".jsonl", "abcdef/" * 600])
def test_output_with_a_name_too_long(sharegen: Command, job: list[object], name: str) -> None:
    """Also where only what lies beside the journal would have one."""
    ran = sharegen(*job, "-o", f"{name}/out.jsonl" if "/" in name else name)
    check(ran, 2, f"--output {name[:100]}…: cannot be written: File name too long")


def test_damaged_run_file(sharegen: Command, job: list[object]) -> None:
    assert sharegen(*job).code == 0
    beside = Path(".sharegen/out.run.json")
    beside.write_text(beside.read_text()[:50])
    check(sharegen(*job, "-n", 4), 1, "out.run.json", "--overwrite")
    for command in ("vote", "score", "report"):  # none of which can overwrite a journal
        ran = sharegen(command, "out.jsonl")
        check(ran, 1, "out.run.json", "repair it or move it away")
        assert "--o" not in ran.err
    beside.unlink()
    check(sharegen(*job, "-n", 4), 1, "exists without .sharegen/out.run.json", "--overwrite")
    assert sharegen(*job, "--overwrite").code == 0


def test_output_that_is_no_journal(sharegen: Command, job: list[object], tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").write_text("my notes\n")
    check(sharegen(*job), 1, "out.jsonl")
    assert (tmp_path / "out.jsonl").read_text() == "my notes\n"


def test_memory_for_less_than_one_sequence(sharegen: Command, job: list[object]) -> None:
    check(sharegen(*job, "--kv-cache-memory", "16K"), 1, "blocks", "--kv-cache-memory")
    check(sharegen(*job, "--kv-cache-memory", "1K"), 1, "blocks", "--kv-cache-memory")


def test_a_row_that_does_not_fit_the_memory(
    sharegen: Command, job: list[object], rows: Path
) -> None:
    """Is a bad row like others, and is asked again when there is more memory."""
    write_jsonl(rows, [*ROWS[4:6], {"question": "apples " * 60, "answer": "#### 1"}])
    memory = ["--kv-cache-memory", "28K"]
    check(sharegen(*job, *memory, "--strict"), 1, "problem 2", "blocks", "--strict")
    ran = sharegen(*job, *memory)
    assert ran.code == 0 and "1 bad row" in ran.out and "6, " in ran.out
    assert sharegen(*job, *memory).out == ran.out
    more = sharegen(*job)
    assert more.code == 0 and "bad row" not in more.out and "9, " in more.out
    assert sharegen(*job).out == more.out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_asked_for_and_absent(sharegen: Command, job: list[object]) -> None:
    check(sharegen(*job, "--device", "cuda"), 2, "cuda")


@pytest.mark.slow
def test_benchmarks_on_a_device_that_is_not_there(sharegen: Command) -> None:
    bench = ["bench", "decode", "--shape", "nowhere", "--device"]
    check(sharegen(*bench, "foo"), 2, "unknown device 'foo'")
    check(sharegen(*bench, "meta"), 2, "'meta' is not supported")
    check(sharegen(*bench, "cuda:99"), 2, "cuda:99")
    check(sharegen(*bench, "auto"), 2, "'nowhere'")


def test_benchmark_of_a_workload_without_tokens(sharegen: Command) -> None:
    ran = sharegen("bench", "decode", "--device", "cpu", "--workload", "64,16,4,4,0")
    check(ran, 2, "'64,16,4,4,0'", "OUTPUT is 0")


def test_chat_without_a_template(sharegen: Command, job: list[object], tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "model", chat=False)
    for flags in (["--chat"], ["--system", "Be brief."]):
        ran = sharegen(*job, "--model", folder, *flags)
        check(ran, 1, "no chat template", flags[0], "--no-chat")


def test_bad_rows_are_told_and_counted(sharegen: Command, job: list[object], rows: Path) -> None:
    good = ROWS[4]
    too_long = {"question": "apples " * 2000, "answer": "#### 1"}
    write_jsonl(rows, [{"q": "no question"}, good, too_long])
    ran = sharegen(*job)
    assert ran.code == 0
    assert "2 bad rows" in ran.out
    lines = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    errors = {line["problem_id"]: line["error"] for line in lines if line["sample"] is None}
    assert "'question'" in errors["0"] and "context" in errors["2"]
    assert sum(line["sample"] is not None for line in lines) == 3
    again = sharegen(*job)
    assert again.code == 0 and again.out == ran.out
    assert len(Path("out.jsonl").read_text().splitlines()) == 5


def test_half_a_character_makes_a_bad_row(sharegen: Command, job: list[object], rows: Path) -> None:
    write_jsonl(rows, [ROWS[4], {"id": "x", "question": "How many \ud83d"}])
    assert "1 problem," in sharegen("plan", *job[1:-2]).out
    check(sharegen(*job, "--strict"), 1, "line 2", "'\\ud83d'", "--strict")
    ran = sharegen(*job)
    assert ran.code == 0 and "1 bad row" in ran.out and "3, " in ran.out, ran.err
    lines = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    [bad] = [line for line in lines if line["sample"] is None]
    assert bad["problem_id"] == "x" and "line 2" in bad["error"]


def test_plan_refuses_what_run_refuses(sharegen: Command, job: list[object], rows: Path) -> None:
    """In the same words; what can be asked is planned all the same."""
    too_long = {"question": "apples " * 2000}
    write_jsonl(rows, [{"q": "no question"}, ROWS[4], too_long])
    said = [
        {line for line in sharegen(*command).err.splitlines() if "left out" in line}
        for command in (job, ["plan", *job[1:-2]])
    ]
    assert said[0] == said[1] and len(said[0]) == 2, said
    planned = sharegen("plan", *job[1:-2])
    assert planned.code == 0 and "1 problem, 3 samples" in planned.out
    write_jsonl(rows, [too_long])
    alone = [sharegen(*job, "--overwrite"), sharegen("plan", *job[1:-2])]
    for ran in alone:
        check(ran, 1, "no row can be asked", "the prompt has", "the model's context holds")
    assert len({ran.err.splitlines()[-1] for ran in alone}) == 1


def test_strict_stops_at_a_bad_row(sharegen: Command, job: list[object], rows: Path) -> None:
    write_jsonl(rows, [ROWS[4], {"q": "no question"}])
    check(sharegen(*job, "--strict"), 1, "line 2", "--strict")
    write_jsonl(rows, [ROWS[4], {"question": "apples " * 2000}])
    check(sharegen(*job, "--strict"), 1, "problem 1", "--strict")
    assert sharegen(*job).code == 0
    check(sharegen(*job, "--strict"), 1, "problem 1", "--strict")  # all is on record by now


def test_empty_prompts_are_bad_rows(sharegen: Command, model: Path, tmp_path: Path) -> None:
    """Where the tokenizer puts nothing before a text."""
    folder = save_tiny_model(tmp_path / "model", bos=False)
    write_jsonl(tmp_path / "p.jsonl", [{"prompt": ""}, {"prompt": "Tom has"}, {"prompt": None}])
    job = ["run", "prompts", "--dataset", "p.jsonl", "--max-tokens", 3, "-o", "out.jsonl"]
    assert sharegen(*job, "--model", model).code == 0  # BOS alone is a prompt
    ran = sharegen(*job, "--model", folder, "--overwrite")
    assert ran.code == 0 and "(2 bad rows, the first: problem 2: " in ran.out
    assert "1 problem," in sharegen("plan", *job[1:6], "--model", folder).out
    write_jsonl(tmp_path / "p.jsonl", [{"prompt": ""}])
    check(sharegen(*job, "--model", folder, "--overwrite"), 1, "the prompt is empty")
    check(sharegen("plan", *job[1:6], "--model", folder), 1, "empty")


def test_no_row_that_can_run(sharegen: Command, job: list[object], rows: Path) -> None:
    write_jsonl(rows, [{"question": "apples " * 2000}])
    check(sharegen(*job), 1, "no row", "context")


def test_a_journal_of_bad_rows_alone_is_started_anew(
    sharegen: Command, job: list[object], rows: Path, examples: Path
) -> None:
    write_jsonl(rows, [ROWS[4]])
    write_jsonl(examples, [ROWS[0], {**ROWS[1], "answer": "apples " * 2000}])
    check(sharegen(*job), 1, "no row", "context")
    assert len(Path("out.jsonl").read_text().splitlines()) == 1
    ran = sharegen(*job, "--few-shot", 1)  # as the error advises
    assert ran.code == 0 and "bad row" not in ran.out, ran.err
    lines = Path("out.jsonl").read_bytes()
    assert len(lines.splitlines()) == 3 and b"error" not in lines
    check(sharegen(*job), 1, "few_shot.k was 1 and is now 2")
    assert Path("out.jsonl").read_bytes() == lines


def test_debug_gives_the_traceback(
    sharegen: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from sharegen.cli import main
    from sharegen.errors import UsageError

    with pytest.raises(UsageError):
        main(["run", "no-such-recipe", "--debug"])
