"""Names and values of a benchmark, on stderr."""

from __future__ import annotations

import pytest

from sharegen.bench.table import print_table


def test_values_stand_below_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    print_table({"seconds": 1234.5, "tokens": 12, "quantization": None})
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split() for line in err.splitlines()] == [
        ["seconds", "1,234.500"], ["tokens", "12"], ["quantization", "None"]
    ]  # fmt: skip
    assert {line.index("  ", 28) for line in err.splitlines()} == {28}
