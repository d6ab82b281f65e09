"""What stopping early saves: runs of the bundled job that go on, and the table of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.commands import app
from sharegen.cli import main


@pytest.mark.slow
@pytest.mark.turn(10)
def test_the_table_of_runs_that_are_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second command draws nothing, and says the same of another clock."""
    job = ["--folder", str(tmp_path), "--seeds", "1", "-n", "4", "--limit", "3", "--device", "cpu"]
    job += ["--rules", "decided", "--rules", "window=4"]

    def run(*more: str) -> list[str]:
        with pytest.raises(SystemExit) as ended:
            main(["stopping", *job, *more], app)
        assert not ended.value.code
        return capsys.readouterr().out.splitlines()[-2:]

    replayed = run("--replay")
    assert [path.stem for path in tmp_path.glob("*.jsonl")] == ["full-0"]
    wall = run()
    journals = {path: path.read_bytes() for path in tmp_path.glob("*.jsonl")}
    assert {path.stem for path in journals} == {"full-0", "decided-0", "window=4-0"}
    cpu = run("--clock", "cpu")
    assert all(path.read_bytes() == lines for path, lines in journals.items())
    for of_replay, by_wall, by_cpu in zip(replayed, wall, cpu, strict=True):
        assert "+0.00 points (+0.00 to +0.00)" in by_wall and by_wall.startswith(of_replay)
        assert by_cpu.startswith(of_replay)
    assert wall[0].split()[:2] == ["decided", "1"]
    assert wall[1].split()[10:12] == ["12", "0.0%"]  # all are drawn


@pytest.mark.parametrize(
    ("rule", "line"),
    [("never", "not a rule: decided"), ("right=9", "right=9: only 4 samples are drawn")],
)
def test_rules_that_cannot_be(
    rule: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "runs")
    with pytest.raises(SystemExit) as ended:
        main(
            ["stopping", "--folder", folder, "-n", "4", "--rules", "decided", "--rules", rule], app
        )
    assert ended.value.code == 2 and line in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
