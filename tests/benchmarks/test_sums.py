"""Sums over GPUs, which need several."""

from __future__ import annotations

import pytest

from benchmarks.commands import app
from sharegen.cli import main


def test_says_that_there_are_too_few_gpus(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    with pytest.raises(SystemExit) as ended:
        main(["sums", "--ranks", "4"], app)
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert err == "sharegen: error: --ranks 4: it takes 2 or more GPUs, and here are 1\n"
