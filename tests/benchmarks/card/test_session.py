"""Which rows a machine runs, what is left out and why, and that a call goes on where one ended."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.card import running, session
from benchmarks.card.machine import ROOT, Gpu, Machine, visible
from benchmarks.card.popular import POPULAR, SHAPE_TABLE
from benchmarks.card.rows import ROWS, CardRow, command_of, rehearsed, together
from benchmarks.card.running import Ran, Setting
from benchmarks.card.session import CardSettings, chosen, listed, measure_rows, states
from benchmarks.commands import app
from benchmarks.measurement import Numbers, read_all
from benchmarks.result_lines import read_results
from benchmarks.tables.headline import ROWS as README_ROWS
from sharegen.cli import main
from sharegen.engine.model.states.mixers import TORCH_CODE
from sharegen.errors import SharegenError, UsageError

H200 = Gpu("NVIDIA H200", "GPU-a", 140.4, 700.0, "580.1")
ONE = Machine((H200,), "a CPU, 2 cores", "1234567", "13.0")
NONE = Machine((), "a CPU, 2 cores", "1234567", None)


SIZES = {
    "vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "head_dim", "num_experts", "num_local_experts",
    "n_routed_experts", "sliding_window", "kv_lora_rank", "q_lora_rank", "qk_nope_head_dim",
    "qk_rope_head_dim", "v_head_dim", "linear_num_key_heads", "linear_num_value_heads",
    "linear_key_head_dim", "linear_value_head_dim", "query_pre_attn_scalar",
    "bos_token_id", "eos_token_id", "pad_token_id",
}  # fmt: skip
"""What a shape and its small one may differ in."""


def left_out(asked: CardSettings, machine: Machine) -> dict[str, str]:
    return {each.row.name: each.why_not for each in states(asked, machine) if each.why_not}


def test_rows_have_names_of_their_own_and_the_readme_s_are_among_them() -> None:
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names) and set(README_ROWS) <= set(names)


def test_every_shape_and_workload_is_there() -> None:
    words = {word for row in ROWS for word in row.command}
    workloads = {"gsm8k", "longdoc", "apps", "noshare", "few", "reason", "plain"}
    assert workloads | {"llama3-8b", "llama3-70b"} <= words
    own = [word for word in words if word.startswith("benchmarks/shapes/")]
    assert len(own) == 6 and all((ROOT / word / "config.json").is_file() for word in own)


def test_the_ten_popular_shapes_have_configs_and_small_ones_of_the_same_architecture() -> None:
    assert len(SHAPE_TABLE) == 10
    for shape in SHAPE_TABLE:
        folders = (ROOT / "benchmarks/shapes" / each / shape.name for each in (".", "rehearsal"))
        large, small = (json.loads((each / "config.json").read_text()) for each in folders)
        assert large.keys() == small.keys()
        assert {name for name in large if large[name] != small[name]} <= SIZES
        assert small["hidden_size"] == 64


def test_popular_rows_have_their_ceilings_and_are_rehearsed_in_their_own_architecture() -> None:
    assert [row.name for row in chosen([], popular=True)] == [row.name for row in POPULAR]
    bf16 = [row for row in POPULAR if row.precision == "bf16"]
    assert {row.shape for row in bf16} == {shape.name for shape in SHAPE_TABLE}
    assert {row.shape for row in bf16 if row.workload == "few"} == {
        shape.name for shape in SHAPE_TABLE if shape.has_experts
    }
    assert not any(row.gib > 79 for row in POPULAR)  # all fit a card of 80 GB
    for row in POPULAR:
        small = rehearsed(row)
        assert small is not None and "--ceiling" in row.command and "--ceiling" in small.command
        assert f"benchmarks/shapes/rehearsal/{row.shape}" in small.command
    groups = list(together(POPULAR))
    assert len(groups) == len({row.engine for row in POPULAR})  # rows of one engine, one start


def test_a_row_is_not_written_whose_mixers_ran_in_torch_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    [row] = chosen(["qwen3.5-9b-gsm8k-bf16-ceiling"])
    printed = json.dumps({"mixers": TORCH_CODE})
    monkeypatch.setattr(running, "_lines", lambda *_: (line for line in [printed]))
    with pytest.raises(SharegenError, match="its figure is not written"):
        list(running.run_rows([row], Setting()))


def test_an_unknown_row_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="--rows x: there is no such row"):
        chosen(["llama3-8b-gsm8k-bf16", "x"])


def test_what_a_machine_lacks_is_said(tmp_path: Path) -> None:
    asked = CardSettings(tmp_path)
    found = left_out(asked, ONE)
    assert found["llama3-8b-gsm8k-bf16-ranks-2"] == "it needs 2 GPUs, of 1 here"
    assert "llama3-70b-gsm8k-fp8" not in found
    small = replace(ONE, gpus=(replace(H200, gib=79.6),))
    assert (
        left_out(asked, small)["llama3-70b-gsm8k-fp8"] == "it needs 130 GiB on each GPU, of 80 here"
    )
    assert left_out(asked, NONE)["tokasaurus"] == "it needs 1 GPU, of 0 here"
    assert "cpu-generate" in found and "cpu-generate" not in left_out(asked, NONE)
    assert "cpu-generate" not in left_out(replace(asked, names=["cpu-generate"]), ONE)
    assert left_out(replace(asked, device="cpu"), ONE)["tokasaurus"] == "it is for a GPU"


def test_a_folder_without_the_problems_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no file gsm8k_test\.jsonl"):
        list(states(CardSettings(tmp_path, gsm8k=tmp_path), ONE))


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Rows that take no time, of which those of documents fail; the names that were run."""
    names: list[str] = []

    def run_rows(rows: list[CardRow], setting: Setting) -> Iterator[Ran]:
        for row in rows:
            names.append(row.name)
            if "longdoc" in row.name:
                raise SharegenError("out of memory")
            yield Ran("sharegen bench decode", Numbers(tokens_per_second=10))

    monkeypatch.setattr(session, "run_rows", run_rows)
    return names


def test_a_call_goes_on_where_one_ended(tmp_path: Path, quick: list[str], capsys: Any) -> None:
    asked = CardSettings(tmp_path, busy=True)
    assert not measure_rows(asked, ONE)  # for one failed
    first, said = list(quick), capsys.readouterr()
    assert first[0] == "llama3-8b-gsm8k-bf16" and len(first) > 20
    assert "llama3-8b-longdoc-bf16: failed: out of memory" in said.err
    lines = [json.loads(line) for line in said.out.splitlines()]
    assert len(lines) == len(read_all(tmp_path)) and Path(lines[0]["file"]).is_file()
    assert "llama3-8b-reason-bf16" in [line["row"] for line in lines]  # behind the one that failed
    quick.clear()
    measure_rows(asked, ONE)
    assert quick == ["llama3-8b-longdoc-bf16", "llama3-8b-longdoc-fp8"]
    quick.clear()
    measure_rows(asked, replace(ONE, commit="7654321"))
    assert quick == first
    measured = read_all(tmp_path)[0]
    assert measured.busy and measured.card.uuids == ("GPU-a",) and measured.versions.cuda == "13.0"


def test_no_row_begins_that_would_end_after_the_budget(
    tmp_path: Path, quick: list[str], capsys: Any
) -> None:
    measure_rows(CardSettings(tmp_path, budget=100.0), ONE)
    assert quick == ["llama3-8b-gsm8k-bf16", "llama3-8b-longdoc-bf16", *quick[2:]]
    assert "llama3-8b-reason-bf16" not in quick and "llama3.2-1b-gsm8k-bf16" in quick
    said = capsys.readouterr().err
    assert "llama3-8b-reason-bf16: left out: it takes about 35 s to start and 66 s" in said


def test_a_file_of_lines_takes_the_rows_and_says_what_is_done(
    tmp_path: Path, quick: list[str]
) -> None:
    asked = CardSettings(
        tmp_path / "rows.jsonl", names=["llama3-8b-gsm8k-bf16", "llama3-8b-few-bf16"]
    )
    assert measure_rows(asked, ONE)
    assert [row.row for row in read_results(asked.results)] == quick == list(asked.names)
    assert measure_rows(asked, ONE) and len(quick) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


@pytest.mark.parametrize(
    "error", [SharegenError("no driver"), KeyError("workload"), ValueError("x"), OSError("full")]
)
def test_a_start_that_measures_nothing_costs_only_its_first_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The others are tried by themselves, behind all that has not been tried yet."""
    begun: list[list[str]] = []

    def run_rows(rows: list[CardRow], setting: Setting) -> Iterator[Ran]:
        begun.append([row.name for row in rows])
        if len(rows) > 1:
            raise error
        yield Ran("sharegen bench decode", Numbers(tokens_per_second=10))

    monkeypatch.setattr(session, "run_rows", run_rows)
    names = ["llama3-8b-gsm8k-bf16", "llama3-8b-few-bf16", "qwen3-8b-gsm8k-bf16"]
    assert not measure_rows(CardSettings(tmp_path, names=names), ONE)
    assert begun == [names[:2], names[2:], names[1:2]]
    assert {row.row for row in read_all(tmp_path)} == set(names[1:])


def test_a_row_that_hangs_is_stopped_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(session, "_LATE", 0)
    monkeypatch.setattr(session, "_LATE_SECONDS", 1)

    def run_rows(rows: list[CardRow], setting: Setting) -> Iterator[Ran]:
        yield from running._lines([sys.executable, "-c", "import time; time.sleep(99)"], setting)

    monkeypatch.setattr(session, "run_rows", run_rows)
    assert not measure_rows(CardSettings(tmp_path, names=["qwen3-8b-gsm8k-bf16"]), ONE)
    said = capsys.readouterr().err
    assert (
        "qwen3-8b-gsm8k-bf16: failed: it took more than 1 s, and was estimated to take 61" in said
    )


def test_what_no_card_of_80_gb_can_hold_is_left_out_there(tmp_path: Path) -> None:
    h100 = Gpu("NVIDIA H100 80GB HBM3", "GPU-a", 79.6, 700.0, "580.1")
    two = replace(ONE, gpus=(h100, h100))
    why = left_out(CardSettings(tmp_path), two)
    assert why["llama3-70b-gsm8k-fp8"] == "it needs 130 GiB on each GPU, of 80 here"
    assert why["llama3-70b-gsm8k-bf16-ranks-2"] == "it needs 139 GiB on each GPU, of 80 here"
    assert not {"llama3-70b-gsm8k-fp8-ranks-2", "tokasaurus", "gpt-oss-20b-gsm8k-bf16"} & set(why)


def test_a_small_row_goes_where_a_long_one_before_it_does_not_fit(
    tmp_path: Path, quick: list[str]
) -> None:
    names = ["llama3-8b-gsm8k-bf16", "llama3-8b-reason-bf16", "llama3-8b-apps-bf16"]
    measure_rows(CardSettings(tmp_path, names=names, budget=100.0), ONE)
    assert quick == [names[0], names[2]]


def test_rows_of_one_engine_are_one_command() -> None:
    """Whose flags are those of each row's own command."""
    groups = list(together(ROWS))
    assert [row for group in groups for row in group] == list(ROWS)
    first = groups[0]
    assert len(first) > 5 and all("--workers" not in g[0].engine for g in groups if len(g) > 1)
    assert command_of(first)[: len(first[0].engine)] == first[0].command[:-2]
    assert first[1].command[-2:] == ("--workload", "longdoc")


def test_a_row_for_one_card_is_left_out_on_others(tmp_path: Path) -> None:
    said = "it is for an H100: --rows tokasaurus measures it here"
    assert left_out(CardSettings(tmp_path), ONE)["tokasaurus"] == said
    assert "tokasaurus" not in left_out(CardSettings(tmp_path, names=["tokasaurus"]), ONE)
    h100 = replace(ONE, gpus=(replace(H200, name="NVIDIA H100 80GB HBM3", gib=79.6),))
    assert "tokasaurus" not in left_out(CardSettings(tmp_path), h100)


def test_the_list_says_how_long_it_takes(tmp_path: Path) -> None:
    lines = list(listed(CardSettings(tmp_path), NONE))
    assert len(lines) == len(ROWS) + 1
    assert lines[-1].split()[-2:] == ["330", "s"]


def test_visible_cards_are_those_that_cuda_would_see() -> None:
    gpus = [H200, replace(H200, uuid="GPU-b"), replace(H200, uuid="GPU-c")]
    ids = [
        [gpu.uuid for gpu in visible(gpus, named)]
        for named in (None, "2,0", "GPU-b", "1,7,0", "", "-1")
    ]
    assert ids == [["GPU-a", "GPU-b", "GPU-c"], ["GPU-c", "GPU-a"], ["GPU-b"], ["GPU-b"], [], []]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rehearse"], "--rehearse measures nothing that counts"),
        (["--popular", "--rows", "x"], "--popular names its own rows"),
        (["--device", "tpu"], "it must be auto, cuda or cpu"),
        (["--rows", "x", "--list", "--commit", "1234567"], "there is no such row"),
    ],
)
def test_wrong_usage_is_one_line(words: list[str], said: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["card", *words], commands=app, name="python -m benchmarks")
    error = capsys.readouterr().err
    assert caught.value.code == 2 and said in error and error.count("\n") == 1


def test_rehearsals_are_of_the_cpu() -> None:
    found = [rehearsal for row in ROWS if (rehearsal := rehearsed(row)) is not None]
    assert len(found) > 25 and not any(row.gpus or row.gib for row in found)
    assert not any("fp8" in row.command for row in found)


def test_a_command_that_is_stopped_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[str]] = []
    real = subprocess.Popen

    def popen(*args: Any, **more: Any) -> subprocess.Popen[str]:
        started.append(real(*args, **more))
        return started[-1]

    monkeypatch.setattr(running.subprocess, "Popen", popen)
    sleeper = [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(600)"]
    with pytest.raises(SharegenError, match="the budget is spent"):
        running._run(sleeper, Setting(deadline=time.monotonic()))
    lines = running._lines(sleeper, Setting())
    assert next(lines) == "1\n"
    lines.close()  # as where the caller is interrupted
    assert [process.poll() for process in started] == [-signal.SIGTERM] * 2


def test_a_command_that_fails_is_named() -> None:
    with pytest.raises(SharegenError, match=r"-c 'raise SystemExit\(3\)': ended with exit code 3"):
        running._run([sys.executable, "-c", "raise SystemExit(3)"], Setting())


@pytest.mark.slow
def test_a_row_is_measured_by_the_command_of_a_user(tmp_path: Path, capsys: Any) -> None:
    names = ["llama3-8b-longdoc-bf16", "llama3-8b-few-bf16", "tokasaurus"]
    asked = CardSettings(tmp_path, names=names, rehearse=True)
    assert measure_rows(asked, NONE)
    few, job, command = read_all(tmp_path)
    assert few.numbers.start_seconds == job.numbers.start_seconds  # they share it
    assert job.command is not None and job.command.startswith("sharegen bench decode --shape")
    assert job.numbers.tokens == 4 * 2 * 8 and job.workload is not None
    assert command.numbers.command_seconds is not None and command.numbers.start_seconds is not None
    assert 0 < command.numbers.start_seconds < command.numbers.command_seconds
    assert command.command is not None and str(tmp_path.parent) not in command.command
    assert command.workload is not None and command.workload.samples == 4
