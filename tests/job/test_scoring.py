"""Verdicts on several journals are those of one job."""

from __future__ import annotations

from pathlib import Path

from sharegen.job.scoring import pooled_verdicts
from sharegen.results.journal.journal import Journal, Record
from sharegen.results.journal.pool import one_job
from sharegen.results.scoring.score_file import Verdict


def test_every_sample_of_the_shards_has_one_verdict(tmp_path: Path) -> None:
    verdicts: dict[Path, list[Verdict]] = {}
    for index, problems in ((1, "ab"), (2, "bc")):  # cut in two ways, say, so both have b
        path = tmp_path / f"a.shard-{index}-of-2.jsonl"
        with Journal.open(path, {"seed": 0}) as opened:
            for problem in problems:
                opened.append(Record(problem, 0, "h", "print(1)"))
            opened.close()
        verdicts[path] = [Verdict(problem, 0, index == 1, "-") for problem in problems]
    found = pooled_verdicts(one_job(tmp_path / "a.jsonl"), verdicts)
    assert [(v.problem_id, v.passed) for v in found] == [("a", True), ("b", True), ("c", False)]
    first = tmp_path / "a.shard-1-of-2.jsonl"
    assert pooled_verdicts(one_job(first), verdicts) == verdicts[first]
