"""Files of one job are read as one; those of other jobs stay apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharegen.errors import JournalError
from sharegen.results.journal.journal import Journal, Record
from sharegen.results.journal.pool import Pool, one_job, pool


def journal(path: Path, seed: int, *records: tuple[str, int, str]) -> Path:
    with Journal.open(path, {"seed": seed}, extent={"path": str(path)}) as opened:
        for problem, sample, answer in records:
            opened.append(Record(problem, sample, "h", answer=answer))
        opened.close()
    return path


def test_files_are_grouped_by_what_made_them(tmp_path: Path) -> None:
    first = journal(tmp_path / "first.jsonl", 0, ("a", 0, "1"), ("a", 1, "2"))
    other = journal(tmp_path / "other.jsonl", 1, ("a", 0, "3"))
    second = journal(tmp_path / "second.jsonl", 0, ("a", 1, "9"), ("b", 0, "4"))
    bare = tmp_path / "bare.jsonl"
    bare.write_bytes(second.read_bytes())
    pools = pool([first, other, second, bare, first])
    assert [part.files for part in pools] == [[first, second], [other], [bare]]
    together = [(r.problem_id, r.sample, r.answer) for r in pools[0].records()]
    assert together == [("a", 0, "1"), ("a", 1, "2"), ("b", 0, "4")]
    assert pools[0].name == f"{first}, {second}"


def test_a_line_that_repeats_one_of_its_file_is_reported(tmp_path: Path) -> None:
    path = journal(tmp_path / "a.jsonl", 0, ("a", 0, "1"))
    path.write_bytes(path.read_bytes() * 2)
    (part,) = pool([path])
    assert len(list(part.records())) == 1 and part.duplicates == {path: [2]}


def test_a_broken_run_file_or_a_missing_journal_is_named(tmp_path: Path) -> None:
    path = journal(tmp_path / "a.jsonl", 0)
    (tmp_path / ".sharegen" / "a.run.json").write_text("{")
    with pytest.raises(JournalError, match=r"a\.run\.json: is not JSON"):
        pool([path])
    with pytest.raises(JournalError, match=r"none\.jsonl: cannot be read"):
        list(pool([tmp_path / "none.jsonl"])[0].records())


def together(part: Pool) -> list[tuple[str, int | None, str | None]]:
    return [(r.problem_id, r.sample, r.answer) for r in part.records()]


def test_a_journal_brings_those_of_its_shards(tmp_path: Path) -> None:
    journal(tmp_path / "a.shard-2-of-2.jsonl", 0, ("b", 0, "2"))
    journal(tmp_path / "a.shard-1-of-2.jsonl", 0, ("a", 0, "1"))
    (part,) = pool([tmp_path / "a.jsonl"])
    assert together(part) == [("a", 0, "1"), ("b", 0, "2")]
    assert (part.name, part.path) == (str(tmp_path / "a.jsonl"), tmp_path / "a.jsonl")
    journal(tmp_path / "a.jsonl", 0, ("c", 0, "3"))
    (part,) = pool(sorted(tmp_path.glob("*.jsonl")))
    assert len(together(part)) == len(part.files) == 3
    assert together(one_job(tmp_path / "a.shard-2-of-2.jsonl")) == [("b", 0, "2")]


def test_a_sample_that_two_journals_have_counts_once_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = journal(tmp_path / "a.jsonl", 0, ("a", 0, "1"), ("a", 1, "2"))
    shard = journal(tmp_path / "a.shard-1-of-2.jsonl", 0, ("a", 1, "9"), ("b", 0, "4"))
    (part,) = pool([whole])
    assert together(part) == [("a", 0, "1"), ("a", 1, "2"), ("b", 0, "4")]
    assert f"{shard}: 1 sample is in an earlier journal, too: counted once" in caplog.messages


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a.shard-1-of-4", "a.shard-3-of-4"], "without shards 2 and 4 of 4"),
        (["a.shard-1-of-2", "a.shard-2-of-2", "a.shard-1-of-3"], "shards of 2 and 3 are read"),
        (["a.shard-1-of-2", "a.shard-2-of-2"], None),
        (["a", "a.shard-1-of-2"], None),  # the run of all has the rest
    ],
)
def test_shards_that_do_not_make_up_a_job_are_told(
    tmp_path: Path, names: list[str], said: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    for index, name in enumerate(names):
        journal(tmp_path / f"{name}.jsonl", 0, (str(index), 0, "1"))
    (part,) = pool([tmp_path / "a.jsonl"])
    assert len(together(part)) == len(names)
    assert [said in line for line in caplog.messages if said] == ([True] if said else [])
    assert bool(caplog.messages) == bool(said)


def test_shards_of_another_cut_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for index, cut in ((1, "x"), (2, "y")):
        path = tmp_path / f"a.shard-{index}-of-2.jsonl"
        extent = {"shard": {"index": index, "count": 2, "cut": cut}}
        with Journal.open(path, {"seed": 0}, extent=extent) as opened:
            opened.append(Record(str(index), 0, "h"))
            opened.close()
    pool([tmp_path / "a.jsonl"])
    assert "its shards of 2 were not cut alike" in caplog.messages[0]


def test_shards_of_different_jobs_are_no_journal(tmp_path: Path) -> None:
    journal(tmp_path / "a.shard-1-of-2.jsonl", 0, ("a", 0, "1"))
    journal(tmp_path / "a.shard-2-of-2.jsonl", 1, ("b", 0, "2"))
    assert len(pool([tmp_path / "a.jsonl"])) == 2
    said = (
        r"a\.shard-2-of-2\.jsonl: comes from another configuration than .*seed was 0 and is now 1"
    )
    with pytest.raises(JournalError, match=said):
        one_job(tmp_path / "a.jsonl")


def test_why_shards_of_one_name_are_read_apart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for index in (1, 2):
        with Journal.open(tmp_path / f"a.shard-{index}-of-2.jsonl", {"heat": index}) as opened:
            opened.append(Record("a", index, "h"))
            opened.close()
    assert [len(part.files) for part in pool([tmp_path / "a.jsonl"])] == [1, 1]
    first, second = (tmp_path / f"a.shard-{index}-of-2.jsonl" for index in (1, 2))
    said = f"{second}: is counted separately, because its configuration differs from that of "
    assert caplog.messages[0].startswith(f"{said}{first}: heat ")


@pytest.mark.parametrize("names", [True, False])
def test_shards_may_lie_in_several_folders(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, names: bool
) -> None:
    files = []
    for index in (1, 2):
        folder = tmp_path / str(index)
        folder.mkdir()
        files.append(folder / f"a.shard-{index}-of-2.jsonl")
        extent = {"shard": {"index": index, "count": 2, "cut": "x"}}
        with Journal.open(files[-1], {"seed": 0}, extent=extent) as opened:
            opened.append(Record(str(index), 0, "h"))
            opened.close()
    [found] = pool([tmp_path / "1" / "a.jsonl", tmp_path / "2" / "a.jsonl"], names=names)
    assert found.files == files and not caplog.messages
    pool([files[1]], names=names)
    assert "a.jsonl: without shard 1 of 2" in caplog.messages[0]


def test_why_journals_are_not_pooled(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    paths = [tmp_path / f"{name}.jsonl" for name in "abc"]
    for path, heat, seed in zip(paths, (1, 1, 2), (0, 1, 0), strict=True):
        with Journal.open(path, {"heat": heat, "sampling": {"seed": seed}}) as opened:
            opened.append(Record("a", 0, "h"))
            opened.close()
    pool(paths)
    assert not caplog.messages
    pool(paths, seeds=True)
    assert any(line.startswith(f"{paths[2]}: is counted separately") for line in caplog.messages)


def test_two_halves_that_both_count_from_0_are_told_apart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    paths = [tmp_path / "first.jsonl", tmp_path / "second.jsonl"]
    for path, prompt in zip(paths, ("h1", "h2"), strict=True):
        with Journal.open(path, {"seed": 0}) as opened:
            opened.append(Record("0", 0, prompt, answer=prompt, row_hash=prompt))
            opened.append(Record("1", 0, "same", answer="a", gold=prompt, row_hash=prompt + "g"))
            opened.append(Record("2", 0, "same too", answer="b", row_hash="same too"))
            opened.close()
    (part,) = pool(paths)
    assert together(part) == [
        ("0", 0, "h1"), ("1", 0, "a"), ("2", 0, "b"),
        (f"0 ({paths[1]})", 0, "h2"), (f"1 ({paths[1]})", 0, "a"),
    ]  # fmt: skip
    assert f"{paths[1]}: 2 problems have the ids of other rows" in " ".join(caplog.messages)


def seeded(path: Path, seed: int, **answers: list[str]) -> Path:
    with Journal.open(path, {"sampling": {"seed": seed, "top_p": 1}}) as opened:
        for problem, given in answers.items():
            for sample, answer in enumerate(given):
                opened.append(Record(problem, sample, "h", answer=answer))
        opened.close()
    return path


def test_seeds_are_pooled_where_that_is_asked_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = seeded(tmp_path / "first.jsonl", 0, a=["1", "2"], b=["3"])
    second = seeded(tmp_path / "second.jsonl", 7, a=["4"], b=["5"])
    third = seeded(tmp_path / "third.jsonl", 0, c=["6"])
    assert len(pool([first, second, third])) == 2
    assert not caplog.messages
    (part,) = pool([first, second, third], seeds=True)
    assert part.files == [first, third, second]
    assert together(part) == [
        ("a", 0, "1"), ("a", 1, "2"), ("b", 0, "3"), ("c", 0, "6"), ("a", 2, "4"), ("b", 2, "5"),
    ]  # fmt: skip
    assert "samples of seeds 0 and 7 are pooled, in this order" in caplog.messages[0]


def test_other_differences_are_never_pooled(tmp_path: Path) -> None:
    first = journal(tmp_path / "first.jsonl", 0, ("a", 0, "1"))
    second = seeded(tmp_path / "second.jsonl", 0, a=["1"])
    assert len(pool([first, second], seeds=True)) == 2


def test_names_may_keep_journals_of_one_job_apart(tmp_path: Path) -> None:
    first = journal(tmp_path / "first.jsonl", 0, ("a", 0, "1"))
    second = journal(tmp_path / "second.jsonl", 0, ("b", 0, "1"))
    journal(tmp_path / "second.shard-1-of-1.jsonl", 0, ("c", 0, "1"))
    assert [len(part.files) for part in pool([first, second], names=False)] == [1, 2]


def test_a_sample_that_failed_in_one_journal_is_the_one_drawn_in_another(tmp_path: Path) -> None:
    for index, error in ((1, "NaN"), (2, None)):
        with Journal.open(tmp_path / f"a.shard-1-of-{index}.jsonl", {"seed": 0}) as opened:
            opened.append(Record("a", 0, "h", error=error, answer=None if error else "1"))
            opened.append(Record("b", 0, "h", error="NaN"))
            opened.append(Record("c", None, None, error="no field"))
            if error is None:
                opened.append(Record("c", 0, "h", answer="3"))
            opened.close()
    found = list(one_job(tmp_path / "a.jsonl").records())
    assert [(r.problem_id, r.sample, r.answer, r.error) for r in found] == [
        ("a", 0, "1", None), ("c", 0, "3", None), ("b", 0, None, "NaN")
    ]  # fmt: skip


def test_how_the_shards_went_is_added_up(tmp_path: Path) -> None:
    for index in (1, 2):
        extent = {"shard": {"index": index, "count": 2, "cut": "x"}, "vote": True}
        path = tmp_path / f"a.shard-{index}-of-2.jsonl"
        with Journal.open(path, {"seed": 0}, extent=extent) as opened:
            opened.append(Record(str(index), 0, "h"))
            stats = {"generated_tokens": 10 * index, "peak_blocks": index, "plan": {"fit": 1},
                     "slots": 4, "steps_by_levels": {"0 1": index}}  # fmt: skip
            opened.close(stats, timings={"sampling_seconds": 1.5, "progress": [[1.5, 10]]})
    run = pool([tmp_path / "a.jsonl"])[0].run
    assert run is not None
    assert run.extent == {"vote": True} and run.timings == {"sampling_seconds": 3.0}
    assert run.stats == {
        "generated_tokens": 30, "peak_blocks": 2, "slots": 4, "steps_by_levels": {"0 1": 3}
    }  # fmt: skip
    assert run.counts["samples"] == 2


def test_a_shard_without_its_run_file_is_named(tmp_path: Path) -> None:
    for index in (1, 2):
        journal(tmp_path / f"a.shard-{index}-of-2.jsonl", 0, (str(index), 0, "1"))
    (tmp_path / ".sharegen" / "a.shard-2-of-2.run.json").unlink()
    with pytest.raises(JournalError, match=r"2-of-2\.jsonl: has no \.sharegen/a\.shard-2-of-2"):
        one_job(tmp_path / "a.jsonl")


def test_a_seed_that_is_no_number_is_a_seed(tmp_path: Path) -> None:
    path = seeded(tmp_path / "a.jsonl", 0, a=["1"])
    text = (tmp_path / ".sharegen" / "a.run.json").read_text().replace('"seed": 0', '"seed": [0]')
    (tmp_path / ".sharegen" / "a.run.json").write_text(text)
    (part,) = pool([path], seeds=True)
    assert together(part) == [("a", 0, "1")]
