"""Journals of one job find each other by their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharegen.common.shard import Shard
from sharegen.errors import UsageError
from sharegen.results.journal.family import family, journal_path, shard_named, whole_path


@pytest.mark.parametrize(
    ("output", "name"),
    [("a.jsonl", "a.shard-2-of-8.jsonl"), ("a", "a.shard-2-of-8"),
     ("b.c.jsonl", "b.c.shard-2-of-8.jsonl"), ("a.shard-2-of-8.jsonl", "a.shard-2-of-8.jsonl")],
)  # fmt: skip
def test_a_shard_has_a_journal_of_its_own(output: str, name: str) -> None:
    path = journal_path(Path("runs") / output, Shard(2, 8))
    assert path == Path("runs") / name
    assert shard_named(path) == Shard(2, 8)
    assert whole_path(path).name == output.replace(".shard-2-of-8", "")
    assert (
        journal_path(Path(output.replace(".shard-2-of-8", "")), None).name == whole_path(path).name
    )


@pytest.mark.parametrize("name", ["a.jsonl", "a.shard-0-of-3.jsonl", "a.shard-4-of-3.jsonl",
                                  "a.shard-1-of-3.jsonl.scores.jsonl", ".shard-1-of-2.jsonl",
                                  "a.shard-x-of-y.jsonl"])  # fmt: skip
def test_other_names_are_no_shards(name: str) -> None:
    assert shard_named(Path(name)) is None


@pytest.mark.parametrize("shard", [None, Shard(1, 8), Shard(2, 9)])
def test_the_journal_of_another_shard_is_refused(shard: Shard | None) -> None:
    with pytest.raises(UsageError, match=r"is the journal of shard 2/8: give --shard 2/8, or "):
        journal_path(Path("a.shard-2-of-8.jsonl"), shard)


def test_a_journal_stands_for_its_shards_too(tmp_path: Path) -> None:
    path = tmp_path / "a[1].jsonl"
    assert family(path) == [path]  # whoever reads it says that it is not there
    names = ["a[1].shard-2-of-2.jsonl", "a[1].shard-10-of-12.jsonl", "a[1].shard-9-of-12.jsonl"]
    for other in (*names, "a[1].shard-1-of-2", "ab.shard-1-of-2.jsonl", "a1.shard-1-of-2.jsonl",
                  "a[1].shard-2-of-2.jsonl.scores.jsonl"):  # fmt: skip
        (tmp_path / other).touch()
    shards = [tmp_path / names[0], tmp_path / names[2], tmp_path / names[1]]
    assert family(path) == shards
    assert family(shards[0]) == [shards[0]]
    path.touch()
    assert family(path) == [path, *shards]
