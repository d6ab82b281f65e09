"""One problem, laid out: everything on record is there, and nothing a model wrote is obeyed."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from sharegen.errors import DataError
from sharegen.results.journal.record import Record
from sharegen.results.screen.show import ShownPrompt, describe, select, visible


def shown(records: list[Record], prompt: str | None = None, terminal: bool = False) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, highlight=False, soft_wrap=True)
    for line in describe(records, None if prompt is None else ShownPrompt(prompt)):
        console.print(line)  # a tab comes out as spaces
    return file.getvalue()


def sample(index: int, completion: str, answer: str | None, gold: str | None = "18") -> Record:
    return Record("7", index, "h", completion, 5, "stop", -2.345, answer, gold)


def test_a_problem_reads_from_prompt_to_gold() -> None:
    records = [
        sample(0, "6 + 12 = 18", "$18"),
        sample(1, "6 + 13 = 19", "19"),
        sample(2, "no idea", None),
        sample(3, "18", "18.0"),
    ]
    assert shown(records, "Q: six and twelve?\nA:").splitlines() == [
        "prompt",
        "Q: six and twelve?",
        "A:",
        "",
        "sample 0 · 5 tokens · stop · log-probability -2.35 · answer $18 ✓",
        "6 + 12 = 18",
        "",
        "sample 1 · 5 tokens · stop · log-probability -2.35 · answer 19 ✗",
        "6 + 13 = 19",
        "",
        "sample 2 · 5 tokens · stop · log-probability -2.35 · no answer",
        "no idea",
        "",
        "sample 3 · 5 tokens · stop · log-probability -2.35 · answer 18.0 ✓",
        "18",
        "",
        "vote",
        "2 ██████████████████████████████ 18 ✓",
        "1 ███████████████ 19 ✗",
        "1 of 4 samples have no answer",
        "",
        "gold 18",
    ]


def test_without_answers_or_gold_nothing_is_made_up() -> None:
    record = Record("7", 0, "h", "def f(): ...", 5, "eos", None)
    assert shown([record]).splitlines() == ["", "sample 0 · 5 tokens · eos", "def f(): ..."]


def test_a_bad_row_says_why() -> None:
    text = shown([Record("7", None, None, error="row 7: no field `question`")])
    assert text.splitlines() == ["", "not sampled", "row 7: no field `question`"]


def test_a_failed_sample_says_why() -> None:
    failed = replace(sample(1, "", None), finish_reason="error", error="no [numbers]")
    out = shown([sample(0, "18 eggs", "18"), failed])
    assert "no [numbers]" in out and "1 of 2 samples have no answer" in out


def test_what_a_model_wrote_is_neither_markup_nor_terminal_control() -> None:
    hostile = "[bold red]x[/] \x1b[2J\x07 a\u202eb \ud800 [/nothing] \\[x]\r\nend"
    text = shown([sample(0, hostile, "[b]", "[link=x]")], hostile, terminal=True)
    for line in ("[bold red]x[/] \\x1b[2J\\x07 a\\u202eb \\ud800 [/nothing] \\[x]\\r", "end"):
        assert text.count(f"{line}\n") == 2
    assert "\x1b[2J" not in text and "\u202e" not in text
    assert "[b]" in text and "[link=x]" in text


def test_ordinary_text_of_any_script_stays_as_it_is() -> None:
    text = "naïve 三つ 👩‍👩‍👧 x²\u00a0½ א"
    assert visible(text) == text


def test_select_finds_the_problem_and_orders_its_samples() -> None:
    records = [sample(2, "c", None), Record("8", 0, "h"), sample(0, "a", None)]
    assert [record.completion for record in select(records, "7")] == ["a", "c"]


def test_an_unknown_problem_is_named_with_the_nearest() -> None:
    records = [Record(f"test/{n}", 0, "h") for n in range(50)]
    with pytest.raises(DataError, match=r"no problem 'tst/49' among 50: the nearest are 'test/49'"):
        select(records, "tst/49")
    with pytest.raises(DataError, match=r"among 50: there are, for example, 'test/0', 'test/1'"):
        select(records, "zzz")
    with pytest.raises(DataError, match="the journal is empty"):
        select([], "1")


def test_what_prompts_have_in_common_is_folded() -> None:
    examples = "".join(f"Question: {n}\nAnswer: {n}\n\n" for n in range(8))
    own = "Question: six and twelve?\nAnswer:"
    prompt = ShownPrompt.of(examples + own, own)
    assert (prompt.text, prompt.folded) == (own, 24)
    lines = list(describe([sample(0, "18", "18")], prompt))
    assert "24 lines before this (--prompt shows them)" in lines[1] and "six and twelve" in lines[2]
    assert ShownPrompt.of(f"Answer.\n{own}", own).folded == 0  # a line or two are no burden
    assert ShownPrompt.of(own, own) == ShownPrompt.of(own, None) == ShownPrompt(own)


def test_a_long_prompt_of_which_nobody_knows_what_is_its_own() -> None:
    prompt = ShownPrompt.of("".join(f"line {n}\n" for n in range(100)), None)
    assert prompt.folded == 80 and prompt.text.startswith("line 80\n")
