import os
import shutil
import threading
from pathlib import Path

import pytest

from sharegen.common import cache_folder as module
from sharegen.common.cache_folder import cache_folder, trim, usable_folder

_DAY = 24 * 3600


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "_LEAST_FREE", 1)
    return tmp_path


def _entry(folder: Path, name: str, size: int, written: float) -> Path:
    entry = folder / "version" / name
    entry.mkdir(parents=True)
    (entry / "code").write_bytes(b"x" * size)
    for each in (entry / "code", entry):
        os.utime(each, (written, written))
    return entry


def test_it_lies_where_xdg_says(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "sharegen"
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    for nothing in ("", "relative/folder"):
        monkeypatch.setenv("XDG_CACHE_HOME", nothing)
        assert cache_folder() == tmp_path / "me/.cache/sharegen"


def test_a_folder_is_made_for_its_user_alone(home):
    folder = usable_folder("compiled")
    assert folder == home / "sharegen/compiled"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert list(folder.iterdir()) == []
    assert usable_folder("compiled") == folder


@pytest.mark.parametrize("blocked", ["sharegen", "sharegen/compiled"])
def test_a_file_in_its_place_is_no_cache(home, blocked):
    place = home / blocked
    place.parent.mkdir(exist_ok=True)
    place.write_text("a file")
    assert usable_folder("compiled") is None
    assert place.read_text() == "a file"


def test_a_home_that_cannot_be_written_is_no_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc")  # read-only, for root too
    assert usable_folder("compiled") is None


def test_a_full_disk_is_no_cache(home, monkeypatch):
    monkeypatch.setattr(module, "_LEAST_FREE", shutil.disk_usage(home).total + 1)
    assert usable_folder("compiled") is None


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_disk_that_takes_no_byte_is_no_cache(home, monkeypatch):
    with open("/dev/full", "wb", buffering=0) as full:
        monkeypatch.setattr(module.tempfile, "TemporaryFile", lambda dir: full)
        assert usable_folder("compiled") is None


def test_the_oldest_goes_until_the_rest_fits(tmp_path):
    entries = [_entry(tmp_path, str(day), 100, -day * _DAY) for day in range(1, 5)]
    trim(tmp_path, 250, 2, now=0.0)
    assert [entry.exists() for entry in entries] == [True, True, False, False]
    trim(tmp_path, 250, 2, now=0.0)
    assert [entry.exists() for entry in entries] == [True, True, False, False]


def test_what_was_written_today_stays(tmp_path):
    entry = _entry(tmp_path, "new", 100, -_DAY / 2)
    trim(tmp_path, 0, 2, now=0.0)
    assert entry.exists()


def test_what_was_written_deep_inside_counts(tmp_path):
    entry = _entry(tmp_path, "old", 100, -9 * _DAY)
    os.utime(entry / "code", (-_DAY / 2, -_DAY / 2))
    trim(tmp_path, 0, 2, now=0.0)
    assert entry.exists()


def test_a_folder_that_is_gone_while_it_is_searched_is_no_error(tmp_path, monkeypatch):
    def gone(folder, pattern):
        raise FileNotFoundError(folder)

    monkeypatch.setattr(Path, "glob", gone)
    trim(tmp_path, 0, 2)


def test_files_and_links_are_trimmed_and_what_links_lead_to_is_not(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine").write_text("x" * 100)
    folder = tmp_path / "cache"
    (folder / "version").mkdir(parents=True)
    (folder / "version/file").write_text("x" * 100)
    (folder / "version/link").symlink_to(outside)
    trim(folder, 0, 2, now=9e9 * 2)
    assert list((folder / "version").iterdir()) == []
    assert (outside / "mine").exists()


def test_two_that_trim_at_once_do_not_fail(tmp_path):
    for number in range(200):
        _entry(tmp_path, str(number), 10, -2 * _DAY)
    failed = []

    def work():
        try:
            trim(tmp_path, 0, 2, now=0.0)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert list((tmp_path / "version").iterdir()) == []


def test_nothing_to_trim(tmp_path):
    trim(tmp_path / "absent", 0, 2)
