"""`sharegen vote` and `sharegen show` as a user meets them."""

from __future__ import annotations

import csv
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from sharegen.cli import votes
from sharegen.errors import DataError, JournalError, SharegenError, UsageError
from sharegen.results.journal.journal import Journal, Record
from sharegen.results.journal.run_file import run_file_path
from sharegen.workload.configuration import resolve
from sharegen.workload.problem import load_problems

REPOSITORY = Path(__file__).resolve().parents[2]

app = typer.Typer()
app.command("vote")(votes.vote)
app.command("show")(votes.show)


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, SharegenError):
        raise result.exception
    return result


def journal(path: Path, answers: dict[str, list[str | None]], gold: str | None = "18") -> Path:
    with Journal.open(path, {"seed": path.stem}) as opened:
        for problem, given in answers.items():
            for sample, answer in enumerate(given):
                opened.append(
                    Record(problem, sample, "h", f"so\t{answer}", 3, "eos", -1.0, answer, gold)
                )
        opened.append(Record("bad", None, None, error="no field `question`"))
        opened.close()
    return path


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    answers: dict[str, list[str | None]] = {
        "10": ["18", "$18.00", "7", None],
        "9": ["7", "18", "7.0", "1,018"],
    }
    return journal(tmp_path / "a.jsonl", answers)


def test_piped_votes_are_tab_separated_and_notes_go_to_stderr(finished: Path) -> None:
    result = run("vote", finished)
    assert result.exit_code == 0
    assert list(csv.reader(result.stdout.splitlines(), dialect="excel-tab")) == [
        ["problem_id", "answer", "votes", "share", "correct", "gold"],
        ["9", "7", "2", "0.5000", "false", "18"],
        ["10", "18", "2", "0.6667", "true", "18"],
    ]
    assert result.stderr == (
        f"{finished}: 2 problems, 8 samples; right: 37.5% of the samples, 50.0% of the votes\n"
    )


def test_output_is_jsonl(finished: Path, tmp_path: Path) -> None:
    output = tmp_path / "votes.jsonl"
    result = run("vote", finished, "--output", output)
    assert [json.loads(line) for line in output.read_text().splitlines()] == [
        {"problem_id": "9", "answer": "7", "votes": 2, "share": 0.5, "correct": False},
        {"problem_id": "10", "answer": "18", "votes": 2, "share": 0.666667, "correct": True},
    ]
    assert f"2 votes written to {output}" in result.stderr
    assert run("vote", finished, "-o", "-").stdout == output.read_text()
    assert run("vote", finished, "-o", output).exit_code == 0  # votes may be taken again


def test_at_votes_over_the_first_samples(finished: Path) -> None:
    result = run("vote", finished, "--at", 1, "-o", "-")
    assert [json.loads(line)["answer"] for line in result.stdout.splitlines()] == ["7", "18"]
    result = run("vote", finished, "--at", 5)
    assert "2 of 2 problems have fewer than 5 samples" in result.stderr
    assert run("vote", finished, "--at", 0).exit_code == 2


def test_files_of_other_jobs_are_told_apart(finished: Path, tmp_path: Path) -> None:
    other = journal(tmp_path / "b.jsonl", {"9": ["18"]}, gold=None)
    result = run("vote", finished, other)
    rows = [line.split("\t") for line in result.stdout.splitlines()]
    assert rows[0][:2] == ["file", "problem_id"]
    assert [row[:3] for row in rows[1:]] == [
        [str(finished), "9", "7"],
        [str(finished), "10", "18"],
        [str(other), "9", "18"],
    ]
    lines = run("vote", finished, other, "-o", "-").stdout.splitlines()
    assert [json.loads(line)["file"] for line in lines] == [str(finished)] * 2 + [str(other)]
    assert "correct" not in json.loads(lines[2])


def test_a_repeated_line_is_logged(finished: Path) -> None:
    lines = finished.read_bytes().splitlines(keepends=True)
    finished.write_bytes(b"".join([*lines, lines[0], lines[1]]))
    result = run("vote", finished)
    assert "2 lines repeat an earlier sample and are left out (first: line 10)" in result.stderr


def test_a_growing_journal_is_voted_on_as_far_as_it_is(finished: Path) -> None:
    finished.write_bytes(finished.read_bytes()[:-90])
    assert "2 problems, 8 samples" in run("vote", finished).stderr


def at_terminal(*arguments: object) -> str:
    """What a terminal of 100 columns shows."""
    code = "import sys; sys.argv[0] = 'sharegen'; sys.path.insert(0, 'tests/cli')\n"
    code += "from test_votes import app; app()"
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=REPOSITORY,
        stdout=child,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"},
    )
    os.close(child)
    shown = b""
    while chunk := _read(parent):
        shown += chunk
    os.close(parent)
    assert process.wait(60) == 0
    return shown.decode().replace("\r\n", "\n")


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # Linux's way to say that the other side is closed
        return b""


@pytest.mark.turn(4)
def test_on_a_terminal_votes_are_a_table(finished: Path) -> None:
    lines = [line.split() for line in at_terminal("vote", finished).splitlines()]
    assert lines == [
        ["problem", "answer", "votes", "share", "gold"],
        ["9", "7", "2/4", "50%", "18", "✗"],
        ["10", "18", "2/3", "67%", "18", "✓"],
    ]


def test_a_journal_without_answers_has_no_vote(tmp_path: Path) -> None:
    path = journal(tmp_path / "a.jsonl", {"1": [None]}, gold=None)
    with pytest.raises(DataError, match=r"a\.jsonl: no sample has an answer"):
        run("vote", path)


def test_votes_never_replace_a_journal(finished: Path, tmp_path: Path) -> None:
    content = finished.read_bytes()
    with pytest.raises(UsageError, match="is a journal: choose another --output"):
        run("vote", finished, "-o", finished)
    bare = tmp_path / "bare.jsonl"
    bare.write_bytes(content)
    with pytest.raises(UsageError, match="is a journal"):
        run("vote", bare, "-o", tmp_path / "." / "bare.jsonl")
    for name in ("a.run.json", "new.run.json"):
        with pytest.raises(UsageError, match="name of a journal's run file"):
            run("vote", finished, "-o", tmp_path / name)
    assert finished.read_bytes() == bare.read_bytes() == content
    assert json.loads(run_file_path(finished).read_text())["configuration"] == {"seed": "a"}


def test_an_output_that_cannot_be_written_is_named(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none/v\.jsonl: cannot be written: No such file"):
        run("vote", finished, "-o", tmp_path / "none" / "v.jsonl")
    with pytest.raises(DataError, match="/dev/full: cannot be written: No space left"):
        run("vote", finished, "-o", "/dev/full")
    assert Path("/dev/full").is_char_device()


def test_a_file_that_is_no_journal_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "?"}\n')
    with pytest.raises(JournalError, match=r"rows\.jsonl, line 1: the line has no field"):
        run("vote", path)
    with pytest.raises(JournalError, match="none: cannot be read: No such file"):
        run("vote", tmp_path / "none")
    with pytest.raises(JournalError, match="none: cannot be read"):
        run("show", tmp_path / "none", "--problem", "1")


# ---------------------------------------------------------------- show


def test_show_lays_out_a_problem_as_the_model_wrote_it(finished: Path) -> None:
    result = run("show", finished, "--problem", "10")
    assert result.exit_code == 0
    assert "so\t$18.00\n" in result.stdout
    assert result.stdout.endswith(
        "vote\n2 ██████████████████████████████ 18 ✓\n1 ███████████████ 7 ✗\n"
        "1 of 4 samples have no answer\n\ngold 18\n"
    )
    assert "the prompt cannot be shown: " in result.stderr


@pytest.fixture
def asked(tmp_path: Path) -> Path:
    """A journal of a recipe and a dataset that are there, with one sample of its first problem."""
    (tmp_path / "recipe.yaml").write_text(
        "model: m\nprompt: 'Q: {{ question }}\n\n  A:'\nexample: '{{ question }}\n\n'\n"
        "few_shot: {k: 1, file: examples.jsonl}\n"
    )
    (tmp_path / "examples.jsonl").write_text('{"question": "[one]?"}\n')
    (tmp_path / "rows.jsonl").write_text('{"id": "a", "question": "Two?"}\n{"id": "b"}\n')
    job = resolve(str(tmp_path / "recipe.yaml"), str(tmp_path / "rows.jsonl"))
    (problem,) = load_problems(job)
    path = tmp_path / "asked.jsonl"
    with Journal.open(path, job.identity, extent=job.extent) as opened:
        opened.append(Record(problem.id, 0, problem.prompt_hash, "yes"))
        opened.append(Record("b", None, None, error="no field `question`"))
        opened.close()
    return path


def test_show_renders_the_prompt_again(asked: Path) -> None:
    result = run("show", asked, "--problem", "a")
    assert result.stderr == ""
    job = resolve(f"{asked.parent}/recipe.yaml", f"{asked.parent}/rows.jsonl")
    prompt = str(load_problems(job)[0].prompt)
    assert prompt.startswith("[one]?") and "Q: Two?" in prompt
    assert result.stdout.startswith(f"prompt\n{prompt}\n\nsample 0 · ")


def test_show_says_why_it_cannot_render_the_prompt(asked: Path) -> None:
    rows = asked.with_name("rows.jsonl")
    assert run("show", asked, "-p", "b").stderr == (
        "the prompt cannot be shown: the dataset has no problem 'b' that can be asked\n"
    )
    rows.write_text('{"id": "a", "question": "Three?"}\n')
    result = run("show", asked, "-p", "a")
    assert "cannot be shown: the dataset or the recipe's files have changed" in result.stderr
    assert result.stdout.startswith("\nsample 0")
    rows.unlink()
    assert "cannot be shown: " in run("show", asked, "-p", "a").stderr
    run_file_path(asked).unlink()
    assert "asked.run.json is not there" in run("show", asked, "-p", "a").stderr


def test_show_tells_why_a_row_was_not_asked(finished: Path) -> None:
    assert "not sampled\nno field `question`\n" in run("show", finished, "-p", "bad").stdout


def test_show_names_an_unknown_problem(finished: Path) -> None:
    with pytest.raises(DataError, match=r"a\.jsonl: there is no problem '1' among 3: the nearest"):
        run("show", finished, "--problem", "1")


@pytest.mark.parametrize("command", ["vote", "show"])
def test_help_has_a_worked_example(command: str) -> None:
    text = run(command, "--help").stdout
    assert f"sharegen {command} runs/gsm8k.jsonl" in text


@pytest.fixture
def solved(tmp_path: Path) -> Path:
    """A journal of a recipe that reads numbers, and its dataset with solutions."""
    rows = [{"id": "a", "question": "9 eggs at $2?", "answer": "9 * 2 = 18\n#### 18"}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    job = resolve(
        "self-consistency", str(tmp_path / "rows.jsonl"), {"model": "m", "few_shot": {"k": 0}}
    )
    (problem,) = load_problems(job)
    texts = [
        ("So 9 * 2 = 18.\n#### $18.00", "eos"),
        ("The answer is \x1b[31m17.", "eos"),
        ("I cannot determine it.", "eos"),
        ("The answer is 1", "length"),
        ("<think>It may be 18", "length"),
    ]
    path = tmp_path / "solved.jsonl"
    with Journal.open(path, job.identity, extent=job.extent) as opened:
        for sample, (text, end) in enumerate(texts):
            opened.append(
                Record(problem.id, sample, problem.prompt_hash, text, 9, end, -1.0, "0", "18")
            )
        opened.close()
    return path


def test_explain_says_what_was_read_where_and_why(solved: Path) -> None:
    result = run("vote", solved, "--explain", "a")
    assert result.stdout.splitlines() == [
        "sample 0 · 18 · right · after ####",
        r"    So 9 * 2 = 18.\n#### [[$18.00]]",
        'sample 1 · 17 · wrong · after "the answer is"',
        r"    The answer is \x1b[31m[[17]].",
        "sample 2 · no answer · no rule finds one",
        "    I cannot determine it.",
        "sample 3 · no answer · cut off before an answer was complete",
        "    The answer is 1",
        "sample 4 · no answer · nothing follows the model's thinking",
        "    <think>It may be 18",
        "gold · 18 · after ####",
        r"    9 * 2 = 18\n#### [[18]]",
    ]


def test_explain_reads_by_the_recipe_as_it_is_now(solved: Path) -> None:
    result = run("vote", solved, "--explain", "a", "--set", r"answer.patterns=['\w+ is']")
    assert r"sample 1 · answer is · wrong · pattern \w+ is" in result.stdout


def test_explain_of_what_is_not_there(solved: Path, finished: Path) -> None:
    with pytest.raises(DataError, match="there is no problem 'b'"):
        run("vote", solved, "--explain", "b")
    with pytest.raises(UsageError, match="leave out --at and --output"):
        run("vote", solved, "--explain", "a", "--at", 2)
    assert (
        "sample 0 · 18 · right · as its line has it"
        in run("vote", finished, "--explain", "10").stdout
    )
    solved.with_name("rows.jsonl").unlink()
    assert (
        "gold · 18 · the dataset cannot be read: " in run("vote", solved, "--explain", "a").stdout
    )


def test_what_a_terminal_would_obey_is_spelled_in_piped_votes_too(tmp_path: Path) -> None:
    """They are read through `less` or `head`, which pass it on."""
    path = journal(tmp_path / "a.jsonl", {"p\x1b[2J": ["\x1b]0;title\x07"]}, gold="\x9b31m")
    for arguments in (["vote", path], ["show", path, "-p", "p\x1b[2J"]):
        result = run(*arguments)
        assert not set("\x1b\x07\x9b") & set(result.stdout + result.stderr), arguments
    assert r"\x1b]0;title\x07" in run("vote", path).stdout
    assert "\x1b" not in run("vote", path, "-o", "-").stdout
