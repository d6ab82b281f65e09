"""What commands tell on stderr: a line each, of which nothing is markup or obeyed."""

from __future__ import annotations

import pytest

from sharegen.cli.telling import complain, say


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("a [red]b[/] :smile: c", "a [red]b[/] :smile: c"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("word " * 60, "word " * 60),
    ],
)
def test_a_line_is_told_as_it_is(line: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    say(line)
    captured = capsys.readouterr()
    assert (captured.out, captured.err.rstrip()) == ("", shown.rstrip())
    assert captured.err.count("\n") == 1


def test_a_line_is_the_same_off_a_terminal_as_on_a_dumb_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rich writes no other line, and is asked where the environment says so."""
    line = "a line " * 30 + "[red]"
    say(line)
    plain = capsys.readouterr().err
    monkeypatch.setenv("TTY_COMPATIBLE", "0")
    say(line)
    assert capsys.readouterr().err == plain
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    say(line)
    assert capsys.readouterr().err == f"\x1b[2m{line}\x1b[0m\n"


def test_a_complaint_is_one_line_and_says_whose(capsys: pytest.CaptureFixture[str]) -> None:
    complain("error: a\n  b\x1b[0m")
    assert capsys.readouterr().err == "sharegen: error: a b\\x1b[0m\n"
