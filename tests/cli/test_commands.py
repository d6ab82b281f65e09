"""`run`, `plan`, `recipes`, `version` as a user meets them."""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import yaml

import sharegen as package
from sharegen.cli.options import JobOptions, RunOptions
from sharegen.cli.parameters import parse_size
from sharegen.llm import LLM, SamplingParams
from sharegen.results.journal.record import Record
from sharegen.results.journal.run_file import RunFile, run_file_path
from tests.cli.conftest import Command, write_jsonl
from tests.tiny import save_tiny_model


def journal(path: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_run_says_what_it_does_and_what_came_out(sharegen: Command, job: list[object]) -> None:
    ran = sharegen(*job)
    assert ran.code == 0, ran.err
    assert len(journal("out.jsonl")) == 18
    assert ran.err.startswith("6 problems, 18 samples: ")  # the tree, before anything else
    for said in ("shared by all", "journal: out.jsonl", "100% · 18/18 samples"):
        assert said in ran.err
    for said in ("completions", "18, ", "tokens/s", "prompt tokens", "computed",
                 "accuracy, one sample",
                 "accuracy, the vote", "sharegen show out.jsonl"):  # fmt: skip
        assert said in ran.out
    again = sharegen(*job)
    assert again.code == 0 and again.out == ran.out
    assert "shared by all" in again.err and "on record already" in again.err


def test_less_than_is_on_record_has_a_tree_of_its_own(sharegen: Command, job: list[object]) -> None:
    assert sharegen(*job).code == 0
    fewer = sharegen(*job, "--limit", 2, "-n", 2)
    assert fewer.code == 0 and fewer.err.startswith("2 problems, 4 samples: ")
    assert "problems              2" in fewer.out and "completions           4, " in fewer.out
    said = " ".join(fewer.out.split())
    assert "of all 18 completions on record, more than are asked now" in said


def test_show_folds_the_examples(sharegen: Command, job: list[object]) -> None:
    assert sharegen(*job, "--few-shot", 3).code == 0
    folded = sharegen("show", "out.jsonl", "--problem", "0").out
    whole = sharegen("show", "out.jsonl", "--problem", "0", "--prompt").out
    assert "lines before this (--prompt shows them)" in folded and "Tom has 6 apples" in folded
    assert "Tom has 3 apples" in whole and "Tom has 3 apples" not in folded


def test_torch_s_names_of_dtypes(sharegen: Command, job: list[object]) -> None:
    shown = sharegen(*job, "--dtype", "half", "--show-config")
    assert "dtype: float16" in shown.out
    check = sharegen(*job, "--dtype", "fp16", "--show-config")
    assert check.code == 2 and "'float16'" in check.err


def test_a_plan_tells_the_time_where_a_run_does(sharegen: Command, job: list[object]) -> None:
    plan = ["plan", *job[1:-2]]
    assert "not known: no run of this model on this machine" in " ".join(
        sharegen(*plan).out.split()
    )
    assert json.loads(sharegen(*plan, "--json").out)["seconds"] is None
    assert sharegen(*job[:-2], "-o", "runs/a.jsonl").code == 0
    path = run_file_path(Path("runs/a.jsonl"))
    run = RunFile.read(path)
    assert run is not None
    replace(run, timings={"sampling_seconds": 4.0}).write(path)
    assert "about 4 s, at the" in " ".join(sharegen(*plan).out.split())


def test_a_resumed_run_says_what_is_on_record(sharegen: Command, job: list[object]) -> None:
    assert sharegen(*job).code == 0
    lines = Path("out.jsonl").read_text().splitlines(keepends=True)
    Path("out.jsonl").write_text("".join(lines[:5]))
    ran = sharegen(*job, "-n", 4)
    assert ran.code == 0, ran.err
    assert "journal: out.jsonl\n5 of 24 samples on record\n" in ran.err
    assert "24/24 samples" in ran.err  # the bar goes on from 5 of them


def test_a_run_records_when_where_and_how(sharegen: Command, job: list[object]) -> None:
    def recorded() -> dict[str, str]:
        return json.loads(Path(".sharegen/out.run.json").read_text())["environment"]

    assert sharegen(*job, "-q").code == 0
    first = recorded()
    assert abs(datetime.fromisoformat(first["date"]).timestamp() - time.time()) < 60
    assert first["host"] == platform.node() and first["device"].startswith(("CPU, ", "NVIDIA"))
    assert first["command"].startswith("sharegen run self-consistency --model /")
    assert sharegen(*job, "-q", "-n", 4).code == 0
    second = recorded()
    assert second["begun"] == first["date"] <= second["date"]
    assert second["command"].endswith("-o out.jsonl -q -n 4")


def test_errors_come_before_anything_else(sharegen: Command, job: list[object]) -> None:
    for wrong, code in ((["--dataset", "./none.jsonl"], 2), (["--model", "./none"], 1)):
        ran = sharegen(*job, *wrong)
        assert ran.code == code and ran.err.startswith("sharegen: error: ") and not ran.out
        assert ran.err.count("\n") == 1


def test_what_is_shown_is_the_configuration(sharegen: Command, job: list[object]) -> None:
    job = [*job, "--stop", "\\nX", "--stop", "Y", "--seed", 3, "--dtype", "float32"]
    shown = sharegen(*job, "--show-config")
    assert shown.code == 0 and not shown.err and not Path("out.jsonl").exists()
    printed = yaml.safe_load(shown.out)
    planned = [argument for argument in job[1:] if argument not in ("-o", "out.jsonl")]
    assert sharegen("plan", *planned, "--show-config").out == shown.out
    assert sharegen(*job).code == 0
    assert printed["sampling"]["stop"] == ["\nX", "Y"]
    assert printed["sampling"]["seed"] == 3 and printed["few_shot"]["k"] == 2
    assert printed["sampling"]["top_p"] == 1.0 and "min_p" not in printed["sampling"]
    recorded = json.loads(Path(".sharegen/out.run.json").read_text())
    assert recorded["configuration"]["sampling"]["stop"] == ["\nX", "Y"]
    assert recorded["extent"]["sampling"]["samples"] == 3
    assert recorded["configuration"]["dtype"] == "float32"


def test_quiet_prints_the_path_alone(sharegen: Command, job: list[object]) -> None:
    ran = sharegen(*job, "--quiet")
    assert (ran.code, ran.out, ran.err) == (0, "out.jsonl\n", "")


def test_the_default_output_is_found_again(sharegen: Command, job: list[object]) -> None:
    job = job[:-2]
    first = sharegen(*job, "-q").out
    assert first.startswith("runs/self-consistency-") and first.endswith(".jsonl\n")
    assert sharegen(*job, "-q", "-n", 4).out == first
    assert sharegen(*job, "-q", "--temperature", 0.2).out != first
    assert len(journal(first.strip())) == 24


def test_an_adapter_is_merged_and_belongs_to_the_journal(
    sharegen: Command, job: list[object], model: Path, tmp_path: Path
) -> None:
    peft = pytest.importorskip("peft")
    from transformers import LlamaForCausalLM

    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    peft.get_peft_model(LlamaForCausalLM.from_pretrained(model), config).save_pretrained(
        tmp_path / "lora"
    )
    assert sharegen(*job).code == 0
    tuned = [*job[:-1], "tuned.jsonl", "--adapter", tmp_path / "lora"]
    assert sharegen(*tuned).code == 0
    texts = [
        [line["completion"] for line in journal(path)] for path in ("out.jsonl", "tuned.jsonl")
    ]
    assert len(texts[0]) == len(texts[1]) and texts[0] != texts[1]
    mixed = sharegen(*job, "--adapter", tmp_path / "lora", "-n", 4)
    assert mixed.code != 0 and "adapter" in mixed.err.splitlines()[-1]
    assert len(journal("out.jsonl")) == 18


def test_compile_may_change_within_a_journal(sharegen: Command, job: list[object]) -> None:
    for flag, samples in (("--no-compile", 1), ("--compile", 2)):
        ran = sharegen(*job, "-n", samples, flag)
        assert ran.code == 0, ran.err
        machine = json.loads(Path(".sharegen/out.run.json").read_text())["extent"]["machine"]
        assert machine["compile"] == (flag == "--compile")
    assert len(journal("out.jsonl")) == 12


def test_verify_says_how_near_the_model_s_own_attention_it_was(
    sharegen: Command, job: list[object]
) -> None:
    ran = sharegen(*job, "--verify", 12)
    assert ran.code == 0, ran.err
    said = " ".join(ran.out.split())
    assert re.search(
        r"verified 12 steps: log-probabilities differ from the model's own attention by at most "
        r"\S+e-0[5-8] \(mean \S+e-0[5-9]\); its own back ends differ among themselves by \S+e-0",
        said,
    ), said
    assert "verifying 12 steps" in ran.err
    again = sharegen(*job, "--verify", 12)
    assert again.code == 0 and "Nothing was drawn, so there is nothing to verify." in again.err
    assert sharegen(*job, "--verify", 12, "-q").out == "out.jsonl\n"


def test_vote_and_show_read_what_run_wrote(sharegen: Command, job: list[object]) -> None:
    sharegen(*job)
    shown = sharegen("show", "out.jsonl", "--problem", "2")
    assert shown.code == 0 and "Tom has 8 apples" in shown.out


def test_text_file_of_prompts(sharegen: Command, model: Path, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("Tom has\nTom buys\n")
    ran = sharegen("run", "prompts", "--dataset", "prompts.txt", "--model", model, "-n", 2,
                   "--max-tokens", 4, "-o", "p.jsonl", "--kv-cache-memory", "1M")  # fmt: skip
    assert ran.code == 0, ran.err
    records = journal("p.jsonl")
    assert sorted((r["problem_id"], r["sample"]) for r in records) == [
        ("0", 0), ("0", 1), ("1", 0), ("1", 1),
    ]  # fmt: skip
    assert "answer" not in records[0]
    assert "the vote" not in ran.out


def test_rows_of_messages_are_conversations(sharegen: Command, model: Path, tmp_path: Path) -> None:
    """Beside plain prompts, and one odd row costs no other."""
    asked = [
        [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Tom?"}],
        [{"role": "user", "content": "Tom has", "name": None}],
    ]
    rows: list[dict[str, object]] = [{"messages": asked[0]}, {"prompt": asked[1]}]
    rows += [{"prompt": "Tom has", "messages": asked[0]}, {"messages": [{"from": "user"}]}]
    write_jsonl(tmp_path / "p.jsonl", rows)
    ran = sharegen("run", "prompts", "--dataset", "p.jsonl", "--model", model, "--temperature", 0,
                   "--max-tokens", 8, "-o", "out.jsonl", "--kv-cache-memory", "1M")  # fmt: skip
    assert ran.code == 0 and "1 bad row" in ran.out, ran.err
    records = {record["problem_id"]: record for record in journal("out.jsonl")}
    assert "messages[0] is of type dict and no turn" in records["3"]["error"]
    params = SamplingParams(temperature=0, max_tokens=8)
    with LLM(model, kv_cache_memory=1 << 20) as llm:
        expected = [*llm.chat(asked, params), *llm.generate("Tom has", params)]
    texts = [output.outputs[0].text for output in expected]
    assert [records[name]["completion"] for name in "012"] == texts


def test_messages_without_a_chat_template(sharegen: Command, tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "bare", chat=False)
    write_jsonl(tmp_path / "p.jsonl", [{"messages": [{"role": "user", "content": "Tom?"}]}])
    job = ["prompts", "--dataset", "p.jsonl", "--model", model, "--max-tokens", 4]
    for command in ("run", "plan"):
        ran = sharegen(command, *job)
        assert ran.code == 1 and "no chat template" in ran.err.splitlines()[-1], ran.err
    write_jsonl(tmp_path / "p.jsonl", [{"messages": [{"role": "user", "content": "Tom?"}]},
                                       {"prompt": "Tom has"}])  # fmt: skip
    ran = sharegen("run", *job, "-o", "out.jsonl")
    assert ran.code == 0 and "1 bad row" in ran.out, ran.err
    assert "1 problem," in sharegen("plan", *job).out
    ran = sharegen("run", *job, "-o", "strict.jsonl", "--strict")
    assert ran.code == 1 and "problem 0: a chat" in ran.err and "--strict" in ran.err


def test_chat_with_a_system_message(sharegen: Command, job: list[object]) -> None:
    ran = sharegen(*job, "--system", "Be brief.")
    assert ran.code == 0, ran.err
    recorded = json.loads(Path(".sharegen/out.run.json").read_text())["configuration"]
    assert recorded["chat"]["enabled"] and recorded["chat"]["system"] == "Be brief."
    assert recorded["sampling"]["stop"] == []
    shown = sharegen("show", "out.jsonl", "--problem", "0", "--prompt")
    assert "Be brief." in shown.out and "end with the final number" in shown.out


def test_needles_in_a_long_document(sharegen: Command, model: Path) -> None:
    ran = sharegen(
        "run", "long-document", "--model", model, "--set", "dataset.needles.words=100", "--set",
        "dataset.needles.questions=3", "--set", "dataset.needles.examples=2", "--few-shot", 2,
        "-o", "n.jsonl", "--kv-cache-memory", "4M",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert len(journal("n.jsonl")) == 3
    assert "retrieval accuracy" in ran.out and "3 problems, 3 samples" in ran.err


@pytest.mark.parametrize("name", ["csv", "parquet", "json", "folder"])
def test_every_kind_of_dataset(
    sharegen: Command, job: list[object], rows: Path, tmp_path: Path, name: str
) -> None:
    import datasets

    table = datasets.Dataset.from_json(str(rows))
    path = tmp_path / f"data.{name}"
    if name == "csv":
        table.to_csv(path)
    elif name == "parquet":
        table.to_parquet(path)
    elif name == "json":
        path.write_text(json.dumps(table.to_list()))
    else:
        path.mkdir()
        write_jsonl(path / "test.jsonl", table.to_list())
    assert sharegen(*job, "-o", "a.jsonl", "-q").code == 0
    assert sharegen(*job, "--dataset", path, "-o", "b.jsonl", "-q").code == 0
    by_key = [sorted(Path(f).read_text().splitlines()) for f in ("a.jsonl", "b.jsonl")]
    assert by_key[0] == by_key[1]


def test_plan_shows_the_sharing_and_samples_nothing(
    sharegen: Command, job: list[object], tmp_path: Path
) -> None:
    ran = sharegen("plan", *job[1:-2])
    assert ran.code == 0, ran.err
    for said in ("6 problems, 18 samples", "shared by all", "problem 0", "… 3 more problems",
                 "problem 5", "as asked", "computed", "stored for every sample", "4.0 MiB",
                 "18 sequences at once, 1 wave"):  # fmt: skip
        assert said in ran.out
    assert not (tmp_path / "runs").exists()
    ran = sharegen("plan", *job[1:-2], "--max-sequences", 4)
    assert "4 sequences at once, 5 waves" in ran.out
    ran = sharegen("plan", *job[1:-2], "--kv-cache-memory", "16K")
    assert "too small for one sequence" in ran.out


def test_plan_takes_no_flag_that_would_do_nothing(sharegen: Command) -> None:
    for flag in ("--output", "--overwrite", "--strict", "--quiet", "--token-ids"):
        ran = sharegen("plan", "self-consistency", flag)
        assert ran.code == 2 and flag in ran.err


def test_recipes(sharegen: Command) -> None:
    listed = sharegen("recipes")
    assert listed.code == 0 and "self-consistency\t" in listed.out and "prompts" in listed.out
    shown = sharegen("recipes", "show", "self-consistency")
    assert yaml.safe_load(shown.out)["presets"]["gsm8k"]["dataset"]["source"] == "openai/gsm8k"
    assert sharegen("recipes", "show", "self").code == 2


def test_a_shown_recipe_tells_editors_its_schema_once(sharegen: Command, tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(sharegen("recipes", "show", "prompts").out, encoding="utf-8")
    [line] = [x for x in mine.read_text("utf-8").splitlines() if "yaml-language-server" in x]
    begins, _, address = line.partition(": $schema=")
    assert begins == "# yaml-language-server" and mine.read_text("utf-8").startswith(line)
    schema = json.loads(Path(unquote(urlsplit(address).path)).read_text(encoding="utf-8"))
    assert schema["title"] == "A recipe of sharegen"
    assert sharegen("recipes", "show", "./mine.yaml").out == mine.read_text("utf-8")


def test_a_copy_of_a_recipe_runs(sharegen: Command, tmp_path: Path) -> None:
    """As `sharegen recipes --help` has it: what belongs to the recipe is found from anywhere."""
    (tmp_path / "mine.yaml").write_text(sharegen("recipes", "show", "self-consistency").out)
    own = sharegen("plan", "./mine.yaml", "--limit", 3)
    assert own.code == 0, own.err
    assert own.out == sharegen("plan", "self-consistency", "--limit", 3).out
    write_jsonl(tmp_path / "p.jsonl", [{"prompt": "Tom has"}])
    assert sharegen("plan", "prompts", "--dataset", "p.jsonl", "--model", "tinymath").code == 0


def test_version(sharegen: Command) -> None:
    assert sharegen("version").out == f"{package.__version__}\n"


@pytest.mark.parametrize(
    "command",
    [
        "run",
        "plan",
        "vote",
        "show",
        "recipes",
        "recipes show",
        "report",
        "code-sample",
        "score",
        "convert",
        "version",
    ],
)
def test_help_has_a_worked_example(sharegen: Command, command: str) -> None:
    ran = sharegen(*command.split(), "--help")
    assert ran.code == 0
    assert f"  sharegen {command}" in ran.out


def test_help_starts_at_once() -> None:
    started = time.monotonic()
    program = (
        "import sys; from sharegen.cli import main\n"
        "try: main(['run', '--help'])\n"
        "finally: print(*sorted(set(sys.modules) & {'torch', 'transformers', 'datasets', "
        "'matplotlib', 'numpy'}), file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.returncode == 0 and ran.stderr.strip() == ""
    assert time.monotonic() - started < 20


def test_a_vote_imports_what_it_needs(tmp_path: Path) -> None:
    """Half of its time is imports, and none of these has a part in it where nothing is shown."""
    journal = tmp_path / "a.jsonl"
    journal.write_bytes(Record("1", 0, "h", "#### 18", 3, "stop", -1.0, "18", "18").to_line())
    needless = ("torch", "transformers", "datasets", "numpy", "rich", "yaml", "filelock", "sympy")
    program = (
        "import sys; from sharegen.cli import main\n"
        f"try: main(['vote', {str(journal)!r}])\n"
        f"finally: print('imported:', *sorted(set(sys.modules) & set({needless})))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.returncode == 0 and ran.stdout.splitlines()[-1] == "imported:", ran


def test_a_run_shows_nothing_before_its_workers_import() -> None:
    """What tells of a job is imported while they do, not before they are begun."""
    program = (
        "import sys, sharegen.cli.run\n"
        "print(*sorted(set(sys.modules) & {'torch', 'transformers', 'numpy', 'rich', 'yaml'}))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.returncode == 0 and ran.stdout.strip() == "", ran


def test_completion_can_be_installed(sharegen: Command) -> None:
    assert "--install-completion" in sharegen("--help").out


@pytest.mark.parametrize(
    ("text", "size"),
    [("500", 500), ("8GiB", 8 << 30), ("8G", 8 << 30), ("1.5 mb", 3 << 19), ("64K", 1 << 16)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


def test_options_give_what_was_set_and_nothing_else() -> None:
    assert JobOptions().flags() == {} == RunOptions().flags()
    given = RunOptions(top_k=0, chat=False, limit=3, token_ids=True).flags()
    assert JobOptions(set=["sampling.min_p=0.1", "answer=null"], top_k=2).flags() == {
        "sampling": {"top_k": 2, "min_p": 0.1}, "answer": None,
    }  # fmt: skip
    assert given == {
        "dataset": {"limit": 3}, "chat": {"enabled": False}, "sampling": {"top_k": 0},
        "token_ids": True,
    }  # fmt: skip


def run_apart(arguments: list[object], **options: Any) -> subprocess.Popen[str]:
    """The command in a process of its own."""
    program = "import sys; from sharegen.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", program, *map(str, arguments)]
    paths = [str(Path(package.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, **options)


@pytest.mark.usefixtures("uncovered")  # its file has no room either
@pytest.mark.slow
def test_a_full_disk_ends_in_one_line_and_loses_nothing(
    sharegen: Command, job: list[object]
) -> None:
    import resource

    def limit_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))

    job = [*job, "-n", 20, "-q"]
    process = run_apart(job, preexec_fn=limit_files)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert errors.startswith("sharegen: error: out.jsonl") and errors.count("\n") == 1
    kept = journal("out.jsonl")
    assert 10 < len(kept) < 120
    assert sharegen(*job).code == 0
    assert len(journal("out.jsonl")) == 120 and journal("out.jsonl")[: len(kept)] == kept


@pytest.mark.turn(4)
@pytest.mark.usefixtures("uncovered")
def test_ctrl_c_says_how_to_continue(sharegen: Command, job: list[object]) -> None:
    job = [*job, "-n", 300, "--max-tokens", 64]
    process = run_apart(job)
    while not Path("out.jsonl").exists() or not Path("out.jsonl").stat().st_size:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    last = errors.strip().splitlines()[-1]
    assert last.startswith("sharegen: interrupted: what was finished is in out.jsonl")
    assert "Traceback" not in errors
    assert 0 < len(journal("out.jsonl")) < 1800
    assert json.loads(Path(".sharegen/out.run.json").read_text())["counts"]["samples_asked"] == 1800
