"""Untrusted recipes and chat templates, from the command line: one line, and nothing hangs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Command


def _recipe(model: Path, rows: Path, prompt: str, more: str = "") -> str:
    text = f"model: {model}\ndataset: {{source: {rows}}}\nprompt: {json.dumps(prompt)}\n{more}"
    Path("mine.yaml").write_text(text)
    return "./mine.yaml"


RUN = ("-o", "out.jsonl", "--max-tokens", 2, "--kv-cache-memory", "4MiB", "-n", 1)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("{{ 9**(9**9) }}", "mine.yaml: prompt is '{{ 9**(9**9) }}': not a template"),
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
         "rows.jsonl, line 3: the template 'prompt' takes more than 0.3 s"),
    ],
)  # fmt: skip
@pytest.mark.turn(4)
def test_a_template_without_end_is_wrong_usage(
    sharegen: Command, model: Path, rows: Path, short: None, prompt: str, message: str
) -> None:
    ran = sharegen("run", _recipe(model, rows, prompt), "-q", *RUN)
    assert ran.code == 2 and message in ran.err and ran.err.count("\n") == 1


@pytest.mark.turn(4)
def test_a_template_that_fails_for_one_row_leaves_the_others(
    sharegen: Command, model: Path, rows: Path
) -> None:
    lines = rows.read_text().splitlines()
    rows.write_text("\n".join([*lines[:2], '{"question": "x", "answer": "y", "n": 10000000000}']))
    ran = sharegen("run", _recipe(model, rows, "{{ question * (n | default(1)) }}"), *RUN)
    assert ran.code == 0
    lines = Path("out.jsonl").read_text().splitlines()
    assert len([line for line in lines if "takes more than 1,024 MiB" in line]) == 1
    assert len(lines) == 3


@pytest.mark.slow
@pytest.mark.turn(4)
def test_a_pattern_without_end_loses_no_sample(
    sharegen: Command, model: Path, rows: Path, short: None
) -> None:
    answer = 'answer: {patterns: ["(.*.*)*\\\\x00"]}\nsampling: {max_tokens: 40}\n'
    recipe = _recipe(model, rows, "{{ question }}", answer)
    ran = sharegen("run", recipe, "-o", "out.jsonl", "--limit", 1, "-n", 2, "--temperature", 0)
    assert ran.code == 0 and len(Path("out.jsonl").read_text().splitlines()) == 2
    assert "a pattern of the recipe's answer takes more than 0.3 s" in ran.err


@pytest.mark.slow
def test_a_gold_pattern_without_end_is_wrong_usage(
    sharegen: Command, model: Path, rows: Path, short: None
) -> None:
    gold = 'answer: {patterns: [x], gold: {field: question, pattern: "(.*.*)*\\\\x00"}}\n'
    ran = sharegen("run", _recipe(model, rows, "{{ question }}", gold), *RUN)
    assert ran.code == 2 and "the pattern 'answer.gold.pattern' takes more than 0.3 s" in ran.err


def test_code_of_a_model_takes_the_flag_whatever_a_recipe_says(
    sharegen: Command, model: Path, rows: Path, tmp_path: Path
) -> None:
    own = shutil.copytree(model, tmp_path / "own")
    config = json.loads((own / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "code.Config"}}
    (own / "config.json").write_text(json.dumps(config))
    (own / "code.py").write_text("open('ran', 'w').write('yes')\nraise RuntimeError('read me')\n")
    recipe = _recipe(own, rows, "{{ question }}", "trust_remote_code: true\n")
    for command in ("plan", "run"):
        ran = sharegen(command, recipe)
        assert ran.code == 1 and not Path("ran").exists()
        assert "the recipe mine would run code that comes with the model" in ran.err
        assert "allow it with --trust-remote-code" in ran.err
    ran = sharegen("run", recipe, "--trust-remote-code")
    assert Path("ran").exists() and "the recipe mine would run" not in ran.err


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ 9**(9**9) }}", "takes more than 0.3 s"),
        ("{{ 'x' * 10**10 }}", "takes more than 256 MiB of memory"),
        ("{{ " + "(" * 500 + "1" + ")" * 500 + " }}", "nested too deeply"),
    ],
)
@pytest.mark.turn(6)
def test_a_chat_template_without_end(
    sharegen: Command, model: Path, rows: Path, tmp_path: Path, short: None, template: str,
    message: str,
) -> None:  # fmt: skip
    own = shutil.copytree(model, tmp_path / "own")
    (own / "chat_template.jinja").write_text(template)
    ran = sharegen("run", "self-consistency", "--model", own, "--dataset", rows, "--few-shot", 0,
                   "--chat", "-q", *RUN)  # fmt: skip
    assert ran.code == 1 and all(len(line) < 400 for line in ran.err.splitlines())
    assert "the tokenizer's chat template" in ran.err and message in ran.err


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("sampling.seed=" + "9" * 6000, "a number of 6,000 digits"),
        ("where=" + "[" * 5000, "more than 32 levels"),
        (".".join("a" * 2000) + "=1", "no recipe has that many sections"),
        ("dataset.limit=2024-13-45", "'2024-13-45': it must be a whole number"),
    ],
    ids=["digits", "levels", "sections", "date"],
)
def test_set_goes_not_too_far(
    sharegen: Command, rows: Path, model: Path, assignment: str, message: str
) -> None:
    ran = sharegen("plan", _recipe(model, rows, "{{ question }}"), "--set", assignment)
    assert ran.code == 2 and message in ran.err and ran.err.count("\n") == 1
    assert len(ran.err) < 400
