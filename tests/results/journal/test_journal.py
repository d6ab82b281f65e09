"""The journal loses nothing: killed writers, torn lines, full disks, two writers at once."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sharegen.errors import JournalError
from sharegen.results.journal.journal import Journal, Record, read
from sharegen.results.journal.keys import Key
from sharegen.results.journal.run_file import run_file_path

REPOSITORY = Path(__file__).resolve().parents[3]
CONFIGURATION = {"model": "m", "sampling": {"temperature": 0.7, "stop": ["\n"]}}


def record(problem: int, sample: int) -> Record:
    rng = random.Random(f"{problem}.{sample}")
    words = " ".join(rng.choice(["two", "più", "三", "\n", '"']) for _ in range(rng.randrange(60)))
    return Record(str(problem), sample, f"h{problem}", words, 7, "eos", -1.5, str(sample % 3), "1")


RECORDS = [record(problem, sample) for problem in range(4) for sample in range(3)]


def fill(path: Path, records: list[Record] = RECORDS) -> bytes:
    with Journal.open(path, CONFIGURATION) as journal:
        for one in records:
            journal.append(one)
        journal.close()
    return path.read_bytes()


def python(code: str, *arguments: object, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=REPOSITORY,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,  # type: ignore[call-overload]
    )


# ---------------------------------------------------------------- start, continue, finish


def test_a_new_journal_has_its_run_file_before_its_first_line(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "deep" / "a.jsonl"
    with Journal.open(path, CONFIGURATION, extent={"samples": 3}, versions={"torch": "2"}):
        assert path.read_bytes() == b""
        run = json.loads(run_file_path(path).read_text())
        assert run["configuration"] == CONFIGURATION
        assert run["extent"] == {"samples": 3} and run["versions"] == {"torch": "2"}


def test_every_line_is_on_disk_when_append_returns(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with Journal.open(path, CONFIGURATION) as journal:
        for number, one in enumerate(RECORDS, start=1):
            journal.append(one)
            assert len(list(read(path))) == number
        assert list(journal.records()) == RECORDS


def test_a_continued_journal_knows_what_is_finished(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    fill(path)
    with Journal.open(path, CONFIGURATION) as journal:
        assert journal.on_record.finished == {one.key for one in RECORDS}
        assert ("2", "h2", 1) in journal.on_record.finished  # a plain tuple is as good as a Key
        assert journal.recovered == 0 and journal.on_record.duplicates == []
        journal.append(record(9, 0))
        assert Key("9", "h9", 0) in journal.on_record.finished
    assert list(read(path)) == [*RECORDS, record(9, 0)]


def test_a_bad_row_is_recorded_once_and_is_not_finished(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    bad = Record("7", None, None, error="row 7: no field `question`")
    for _ in range(2):
        with Journal.open(path, CONFIGURATION) as journal:
            journal.append(bad)
            journal.append(bad)
            assert journal.on_record.finished == set()
            assert journal.on_record.failed == {"7": "row 7: no field `question`"}
    assert list(read(path)) == [bad]


def test_appending_a_finished_key_is_a_bug(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "a.jsonl", CONFIGURATION) as journal:
        journal.append(RECORDS[0])
        with pytest.raises(AssertionError, match="already on record"):
            journal.append(RECORDS[0])


def test_close_records_results_and_a_later_run_keeps_them(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with Journal.open(path, CONFIGURATION) as journal:
        journal.append(RECORDS[0])
        journal.append(Record("7", None, None, error="no"))
        journal.close({"decode_steps": 9}, counts={"problems": 4}, timings={"seconds": 2.5})
        journal.close({"decode_steps": 0})  # closing twice changes nothing
    with Journal.open(path, CONFIGURATION) as journal:
        assert journal.run.stats == {"decode_steps": 9}
        assert journal.run.timings == {"seconds": 2.5}
        assert journal.run.counts == {"problems": 4, "samples": 1, "bad_rows": 1}
        journal.close()
    with Journal.open(path, CONFIGURATION) as journal:
        assert journal.run.stats == {"decode_steps": 9}


# ---------------------------------------------------------------- identity


def test_extent_and_versions_may_change(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    content = fill(path)
    with Journal.open(path, CONFIGURATION, extent={"samples": 40}, versions={"torch": "3"}) as j:
        assert j.run.extent == {"samples": 40}
    run = json.loads(run_file_path(path).read_text())
    assert run["extent"] == {"samples": 40} and run["versions"] == {"torch": "3"}
    assert path.read_bytes() == content


def test_another_configuration_is_refused_by_name_and_touches_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    content = fill(path)
    path.write_bytes(content + b'{"torn')
    run = run_file_path(path).read_bytes()
    other = {"model": "n", "sampling": {"temperature": 0.8, "stop": ("\n",)}}
    with pytest.raises(JournalError) as caught:
        Journal.open(path, other, fingerprints={"few_shot": "d"})
    message = str(caught.value)
    assert 'model was "m" and is now "n"' in message
    assert "sampling.temperature was 0.7 and is now 0.8" in message
    assert 'fingerprints.few_shot was not set and is now "d"' in message
    assert "sampling.stop" not in message
    assert str(path) in message and "--overwrite" in message and "\n" not in message
    assert path.read_bytes() == content + b'{"torn'
    assert run_file_path(path).read_bytes() == run


def test_it_knows_the_row_of_every_sample(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    early, late = (Record("a", sample, "p", row_hash=row) for sample, row in ((0, None), (1, "r")))
    bare, bad = Record("b", 0, "q"), Record("c", None, None, error="no")
    fill(path, [early, late, bare, bad])
    with Journal.open(path, CONFIGURATION) as journal:
        assert journal.on_record.rows == {"a": "r", "b": "q"}
        journal.append(Record("d", 0, "p", row_hash="s"))
        assert journal.on_record.rows["d"] == "s"


def test_an_empty_journal_takes_any_configuration(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    fill(path, [])
    with Journal.open(path, {"model": "n"}) as journal:
        assert journal.run.configuration == {"model": "n"}


def test_bad_rows_alone_give_way_to_another_configuration(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    bad = Record("9", None, None, error="too long")
    fill(path, [bad])
    with Journal.open(path, {"model": "n"}) as journal:
        assert journal.on_record.failed == {} and journal.run.configuration == {"model": "n"}
        assert path.read_bytes() == b""
        journal.append(bad)
        journal.append(RECORDS[5])
        journal.close()
    with pytest.raises(JournalError, match="another configuration"):
        Journal.open(path, {"model": "o"})


def test_overwrite_starts_again(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    fill(path)
    with Journal.open(path, {"model": "n"}, overwrite=True) as journal:
        assert journal.on_record.finished == set() and journal.run.configuration == {"model": "n"}
        journal.append(RECORDS[5])
    assert list(read(path)) == [RECORDS[5]]


def test_overwrite_never_drops_a_file_that_is_no_journal(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text('{"question": "?", "answer": "18"}\n')
    with pytest.raises(JournalError, match=r"train\.jsonl: is not a journal"):
        Journal.open(path, CONFIGURATION, overwrite=True)
    assert path.read_text() == '{"question": "?", "answer": "18"}\n'


def test_a_journal_without_its_run_file_is_refused_unless_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    fill(path)
    run_file_path(path).unlink()
    with pytest.raises(JournalError, match=r"exists without \.sharegen/a\.run\.json") as caught:
        Journal.open(path, CONFIGURATION)
    assert "--overwrite" in str(caught.value)
    Journal.open(path, CONFIGURATION, overwrite=True).close()
    assert path.read_bytes() == b""


# ---------------------------------------------------------------- what a crash leaves


def test_cut_at_any_byte_it_goes_on_to_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # a thousand of them take long
    path = tmp_path / "a.jsonl"
    records = [Record(problem, 0, "h", "è\n", 7, "eos", -1.5) for problem in "ab"]
    content = fill(path, records)
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with Journal.open(path, CONFIGURATION) as journal:
            whole = content[:length].count(b"\n")
            # a line that lacks only its newline is whole too
            whole += content[length : length + 1] == b"\n" and length > 0
            assert journal.on_record.finished == {one.key for one in records[:whole]}, length
            for one in records:
                if one.key not in journal.on_record.finished:
                    journal.append(one)
        assert path.read_bytes() == content, length


@pytest.mark.parametrize("tail", [b"\0" * 4096, b"\xff\xfe\x00", b'{"problem_id": "x", "samp'])
def test_what_is_truncated_is_told(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "a.jsonl"
    content = fill(path)
    path.write_bytes(content + tail)
    with Journal.open(path, CONFIGURATION) as journal:
        assert journal.recovered == len(tail)
    assert path.read_bytes() == content


def test_a_broken_line_in_the_middle_is_named_and_costs_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.jsonl"
    lines = fill(path).splitlines(keepends=True)
    lines[4] = lines[4][:30] + b"\n"
    path.write_bytes(b"".join(lines) + b"torn")
    with Journal.open(path, CONFIGURATION) as journal:
        assert len(journal.on_record.finished) == len(RECORDS) - 1
        assert RECORDS[4].key not in journal.on_record.finished  # and so it is drawn again
        journal.append(RECORDS[4])
    assert "a.jsonl, line 5: the line is not JSON" in caplog.text
    assert path.read_bytes() == b"".join(lines) + RECORDS[4].to_line()
    assert {record.key for record in read(path)} == {record.key for record in RECORDS}


def test_a_key_that_is_there_twice_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    content = fill(path)
    path.write_bytes(content + RECORDS[2].to_line())
    with Journal.open(path, CONFIGURATION) as journal:
        assert journal.on_record.duplicates == [len(RECORDS) + 1]
        assert len(journal.on_record.finished) == len(RECORDS)


KILLED_WRITER = """
import random, sys, time
sys.path.insert(0, "tests/results/journal")
from test_journal import CONFIGURATION, Journal, record
path, seed, pause, problems = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
with Journal.open(path, CONFIGURATION) as journal:
    todo = [record(p, s) for p in range(problems) for s in range(10)]
    random.Random(seed).shuffle(todo)          # samples finish in another order every time
    for one in todo:
        if one.key not in journal.on_record.finished:
            journal.append(one)
            time.sleep(pause)
    journal.close({"done": True})
"""


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@pytest.mark.turn(4)
@pytest.mark.parametrize("problems", [15, pytest.param(30, marks=pytest.mark.slow)])
def test_killed_at_random_moments_it_ends_as_if_never_killed(tmp_path: Path, problems: int) -> None:
    undisturbed, killed = tmp_path / "undisturbed.jsonl", tmp_path / "killed.jsonl"
    assert python(KILLED_WRITER, undisturbed, 0, 0, problems).wait() == 0
    rng, size = random.Random(5), 0
    for attempt in range(1000):
        process = python(
            KILLED_WRITER, killed, attempt, 0.005, problems
        )  # slow enough to be caught
        if attempt < 3:
            time.sleep(rng.uniform(0, 0.3))  # maybe while it opens
        else:
            goal = size + rng.randrange(1, 10_000)
            while process.poll() is None and size_of(killed) < goal:
                time.sleep(rng.uniform(0, 0.001))
        process.kill()
        _, errors = process.communicate()
        assert process.returncode in (0, -signal.SIGKILL), errors
        assert size_of(killed) >= size
        size = size_of(killed)
        if process.returncode == 0:
            break
    assert attempt >= 5
    assert sorted(killed.read_bytes().splitlines()) == sorted(undisturbed.read_bytes().splitlines())
    assert json.loads(run_file_path(killed).read_text())["stats"] == {"done": True}


# ---------------------------------------------------------------- two writers, a reader


def test_a_second_writer_is_refused_and_overwrites_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    code = """
import sys
from sharegen.errors import JournalError
from sharegen.results.journal.journal import Journal
try:
    Journal.open(sys.argv[1], {}, overwrite=sys.argv[2] == "overwrite")
except JournalError as error:
    print(error)
"""
    with Journal.open(path, CONFIGURATION) as journal:
        journal.append(RECORDS[0])
        for overwrite in ("continue", "overwrite"):
            said, _ = python(code, path, overwrite).communicate(timeout=60)
            assert said.startswith(f"{path}: another process is writing it")
            assert said.count("\n") == 1
        with pytest.raises(JournalError, match="another process"):
            Journal.open(path, CONFIGURATION)  # also within one process
        journal.append(RECORDS[1])
    assert list(read(path)) == RECORDS[:2]
    Journal.open(path, CONFIGURATION).close()  # released


@pytest.mark.turn(4)
def test_of_many_that_start_at_once_one_writes(tmp_path: Path) -> None:
    code = """
import sys, time
from pathlib import Path
from sharegen.errors import JournalError
from sharegen.results.journal.journal import Journal, Record
path = Path(sys.argv[1])
time.sleep(max(0, float(sys.argv[2]) - time.time()))
try:
    with Journal.open(path, {}) as journal:
        for sample in range(50):
            journal.append(Record(sys.argv[3], sample, "h"))
        deadline = time.monotonic() + 30  # the others may be late
        while len(list(path.parent.glob("*.refused"))) < 3 and time.monotonic() < deadline:
            time.sleep(0.02)
        print("wrote")
except JournalError as error:
    print("refused" if "another process" in str(error) else error)
    path.with_name(sys.argv[3] + ".refused").touch()
"""
    path = tmp_path / "a.jsonl"
    start = time.time() + 1.0
    writers = [python(code, path, start, name) for name in "abcd"]
    said = sorted(writer.communicate(timeout=60)[0].strip() for writer in writers)
    assert said == ["refused"] * 3 + ["wrote"]
    records = list(read(path))
    assert len(records) == 50 and len({one.problem_id for one in records}) == 1


def test_it_can_be_read_while_it_grows(tmp_path: Path) -> None:
    path, done, seen = tmp_path / "a.jsonl", threading.Event(), [0]
    expected = [record(problem, 0) for problem in range(2000)]
    failures: list[str] = []

    def follow() -> None:
        while not done.is_set():
            records = list(read(path))
            if records != expected[: len(records)] or len(records) < seen[-1]:
                failures.append(f"{len(records)} after {seen[-1]}")
            seen.append(len(records))

    with Journal.open(path, CONFIGURATION) as journal:
        reader = threading.Thread(target=follow)
        reader.start()
        for one in expected:
            journal.append(one)
        done.set()
        reader.join()
    assert failures == []


# ---------------------------------------------------------------- disks and folders

FILL_UP = """
import sys
from pathlib import Path
sys.path.insert(0, "tests/results/journal")
from test_journal import CONFIGURATION, Journal, JournalError, read, record
path, ballast, limit = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
if limit:
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
appended = []
try:
    with Journal.open(path, CONFIGURATION) as journal:
        while True:
            journal.append(record(len(appended), 0))
            appended.append(record(len(appended), 0))
except JournalError as error:
    print(error)
assert appended and list(read(path)) == appended
assert path.read_bytes().endswith(b"\\n")      # the torn tail was taken back
journal.close({"ignored": True})               # as a `finally` may do
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
else:
    ballast.unlink()                           # room again
with Journal.open(path, CONFIGURATION) as journal:
    assert journal.recovered == 0 and len(journal.on_record.finished) == len(appended)
    journal.append(record(len(appended), 0))
    journal.close({"done": True})
assert len(list(read(path))) == len(appended) + 1
"""


def test_a_file_that_may_not_grow_ends_in_one_line_and_loses_nothing(tmp_path: Path) -> None:
    process = python(FILL_UP, tmp_path / "a.jsonl", "-", 50_001)
    said, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "cannot be written: File too large" in said and said.count("\n") == 1


def test_a_full_disk_ends_in_one_line_and_loses_nothing(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size=256k none {disk} && head -c 100000 /dev/zero > {disk}/ballast"
    inside = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    unshare = shutil.which("unshare")
    if not unshare or subprocess.run([*inside, mount], capture_output=True).returncode:
        pytest.skip("no user namespace to mount a small disk in")
    command = [*inside, f'{mount} && exec "$@"', "sh", sys.executable, "-c", FILL_UP]
    process = subprocess.run(
        [*command, f"{disk}/a.jsonl", f"{disk}/ballast", "0"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert process.returncode == 0, process.stderr
    assert "No space left on device: nothing written before is lost" in process.stdout
    assert process.stdout.count("\n") == 1


def test_an_output_that_cannot_be_a_journal_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path, complaint in [
        (tmp_path, "Is a directory"),
        (tmp_path / "file" / "a.jsonl", "Not a directory|File exists"),
        (Path("/dev/full"), "is not a regular file"),
    ]:
        with pytest.raises(JournalError, match=complaint) as caught:
            Journal.open(path, CONFIGURATION)
        assert str(caught.value).startswith(f"{path}: ")
        assert "choose another --output" in str(caught.value)


def test_a_folder_that_is_not_writable_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o555)
    code = """
import os, sys
from sharegen.errors import JournalError
from sharegen.results.journal.journal import Journal
os.chdir(sys.argv[1])
if os.geteuid() == 0:
    os.setuid(65534)
try:
    Journal.open("a.jsonl", {})
except JournalError as error:
    print(error)
"""
    said, errors = python(code, folder).communicate(timeout=60)
    assert said == "a.jsonl: cannot be written: Permission denied: choose another --output\n", (
        errors
    )


def test_an_interrupted_append_closes_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    journal = Journal.open(path, CONFIGURATION)
    journal.append(RECORDS[0])
    write = os.write

    def interrupted(descriptor: int, line: bytes) -> int:
        write(descriptor, line[:20])
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        journal.append(RECORDS[1])
    monkeypatch.undo()
    with pytest.raises(AssertionError, match="closed"):
        journal.append(RECORDS[2])  # nothing may follow half a line
    with Journal.open(path, CONFIGURATION) as journal:
        assert journal.recovered == 20 and journal.on_record.finished == {RECORDS[0].key}


def test_an_interrupt_at_any_moment_of_closing_leaves_nobody_waiting(tmp_path: Path) -> None:
    """Also within Python's own modules, which may have taken a lock just then."""
    moments, reached = 0, True
    while reached:
        moments += 1
        left = moments
        journal = Journal.open(tmp_path / f"{moments}.jsonl", CONFIGURATION)

        def trace(*_: object) -> object:
            nonlocal left
            left -= 1
            if left == 0:
                raise KeyboardInterrupt  # which also ends the tracing
            return trace

        def leave(journal: Journal = journal) -> None:
            with contextlib.suppress(KeyboardInterrupt):
                sys.settrace(trace)  # of this thread alone
                journal.__exit__()
                sys.settrace(None)
            journal.__exit__()

        leaving = threading.Thread(target=leave, daemon=True)
        leaving.start()
        leaving.join(20)
        assert not leaving.is_alive(), moments
        reached = left <= 0
    assert moments > 20


def test_short_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, line: write(descriptor, line[:7]))
    fill(tmp_path / "a.jsonl")
    assert list(read(tmp_path / "a.jsonl")) == RECORDS


@pytest.fixture
def broken_disk(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """A disk whose first fsync fails and whose later ones succeed, as Linux has it."""
    monkeypatch.setattr("sharegen.results.journal.journal._SYNC_SECONDS", 0.01)
    failed = threading.Event()
    fsync = os.fsync

    def once(descriptor: int) -> None:
        if not failed.is_set() and threading.current_thread().name == "journal-fsync":
            failed.set()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", once)
    return failed


def test_lines_are_synced_meanwhile_and_a_failure_is_told(
    tmp_path: Path, broken_disk: threading.Event
) -> None:
    journal = Journal.open(tmp_path / "a.jsonl", CONFIGURATION)
    assert broken_disk.wait(10)
    with pytest.raises(JournalError, match="the disk did not take the last lines: Input/output"):
        for one in RECORDS:
            journal.append(one)
            time.sleep(0.02)
    journal.close()  # closed already
    Journal.open(tmp_path / "a.jsonl", CONFIGURATION).close()  # and let go


def test_a_failure_to_sync_is_told_at_the_latest_by_close(
    tmp_path: Path, broken_disk: threading.Event
) -> None:
    with Journal.open(tmp_path / "a.jsonl", CONFIGURATION) as journal:
        journal.append(RECORDS[0])
        assert broken_disk.wait(10)
        with pytest.raises(JournalError, match="the disk did not take the last lines"):
            journal.close({"done": True})
    assert list(read(tmp_path / "a.jsonl")) == RECORDS[:1]


def test_close_says_when_it_fails_to_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(descriptor: int) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    journal = Journal.open(tmp_path / "a.jsonl", CONFIGURATION)
    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(JournalError, match="did not take the last lines: Disk quota exceeded"):
        journal.close()


def test_a_run_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    path, hidden = tmp_path / "a.jsonl", tmp_path / ".sharegen"
    with Journal.open(path, CONFIGURATION) as journal:
        journal.append(RECORDS[0])
        hidden.rename(tmp_path / "away")
        hidden.touch()
        with pytest.raises(JournalError, match=r"a\.run\.json: cannot be written: .* is complete"):
            journal.close()
    hidden.unlink()
    (tmp_path / "away").rename(hidden)
    with Journal.open(path, CONFIGURATION, versions={"torch": "3"}) as journal:
        assert journal.on_record.finished == {RECORDS[0].key}


def test_a_file_that_cannot_be_locked_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(descriptor: int, operation: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("fcntl.flock", broken)
    with pytest.raises(JournalError, match="cannot be locked: Input/output error: choose an"):
        Journal.open(tmp_path / "a.jsonl", CONFIGURATION)


WITHOUT_FLOCK = """
import errno, fcntl, sys
from sharegen.errors import JournalError
from sharegen.results.journal.journal import Journal, Record

def unsupported(descriptor, operation):
    raise OSError(errno.ENOLCK, "No locks available")

fcntl.flock = unsupported
try:
    with Journal.open(sys.argv[1], {}) as journal:
        journal.append(Record(sys.argv[2], 0, "h"))
        print("wrote", flush=True)
        sys.stdin.read()
except JournalError as error:
    print(error)
"""


@pytest.mark.slow
def test_of_two_writers_without_the_kernel_s_locks_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lock = tmp_path / ".sharegen" / "a.jsonl.lock"
    first = python(WITHOUT_FLOCK, path, "a", stdin=subprocess.PIPE)
    assert first.stdout is not None and first.stdout.readline() == "wrote\n"
    said, errors = python(WITHOUT_FLOCK, path, "b", stdin=subprocess.DEVNULL).communicate()
    assert said.count("\n") == 1 and "another process is writing it" in said, errors
    assert f"process {first.pid} on" in said and f"remove {lock}" in said
    first.communicate()
    said, errors = python(WITHOUT_FLOCK, path, "b", stdin=subprocess.DEVNULL).communicate()
    assert said == "wrote\n", errors
    assert [one.problem_id for one in read(path)] == ["a", "b"]
    assert not lock.exists()


@pytest.mark.slow
def test_a_killed_writer_s_lock_is_taken_over_and_another_machine_s_is_not(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lock = tmp_path / ".sharegen" / "a.jsonl.lock"
    first = python(WITHOUT_FLOCK, path, "a", stdin=subprocess.PIPE)
    assert first.stdout is not None and first.stdout.readline() == "wrote\n"
    first.kill()
    first.communicate()
    assert lock.exists()
    said, errors = python(WITHOUT_FLOCK, path, "b", stdin=subprocess.DEVNULL).communicate()
    assert said == "wrote\n", errors
    lock.write_text("17\nelsewhere\n")
    said, errors = python(WITHOUT_FLOCK, path, "c", stdin=subprocess.DEVNULL).communicate()
    assert "process 17 on elsewhere" in said and f"remove {lock}" in said, errors
    assert [one.problem_id for one in read(path)] == ["a", "b"]
