"""The time of sampling, which is a GPU's."""

from __future__ import annotations

import pytest

from benchmarks.commands import app
from sharegen.cli import main


def test_says_that_there_is_no_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit) as exit:
        main(["sampling"], app)
    out, err = capsys.readouterr()
    assert (exit.value.code, out) == (2, "")
    assert err == "sharegen: error: this benchmark times a GPU and finds none\n"
