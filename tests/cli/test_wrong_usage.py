"""What Typer's versions say in words of their own is said in ours."""

from __future__ import annotations

import pytest

from sharegen.cli.wrong_usage import of_click


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("'x' is not a valid integer.", "it must be a whole number"),
        ("'x' is not a valid int.", "it must be a whole number"),
        ("'1.5' is not a valid integer range.", "it must be a whole number"),
        ("'a\nb' is not a valid float.", "it must be a number"),
        ("'' is not a valid float range.", "it must be a number"),
        ("0 is not in the range x>=1.", "it must be at least 1"),
        ("0.0 is not in the range x>=0.1.", "it must be at least 0.1"),
        ("300 is not in the range x<=256.", "it must be at most 256"),
        ("3 is not in the range 0<=x<=2.", "it must be at most 2"),
        ("-1 is not in the range 0<=x<=2.", "it must be at least 0"),
        ("Got unexpected extra argument (b)", "b is an argument too many"),
        (
            "Got unexpected extra arguments (runs/b.jsonl runs/c.jsonl)",
            "runs/b.jsonl is an argument too many: where a pattern finds several files, name one",
        ),
        ("'x' is not one of 'a', 'b'.", "'x' is not one of 'a', 'b'."),
    ],
)
def test_what_is_wrong(theirs: str, ours: str) -> None:
    assert of_click(theirs) == ours
