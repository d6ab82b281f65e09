"""Files that are replaced whole, and not through what somebody laid in the way."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from sharegen.common import files
from sharegen.common.files import check_is_file, make_folders, replace_file


def test_the_old_file_or_the_whole_new_one_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    replace_file(path, b"one")
    replace_file(path, b"two")
    assert path.read_bytes() == b"two" and [*tmp_path.iterdir()] == [path]
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(OSError, match="it is a folder"):
        replace_file(folder, b"three")
    assert sorted(tmp_path.iterdir()) == [path, folder]


def test_nothing_is_written_through_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by a name that can be foretold nor by one that was guessed."""
    theirs = tmp_path / "theirs"
    theirs.write_text("theirs")
    (tmp_path / "a.run.json.partial").symlink_to(theirs)
    replace_file(tmp_path / "a.run.json", b"mine")
    monkeypatch.setattr(files.os, "urandom", lambda _: b"guessed")
    (tmp_path / f".{b'guessed'.hex()}.partial").symlink_to(theirs)
    with pytest.raises(FileExistsError):
        replace_file(tmp_path / "a.run.json", b"again")
    assert theirs.read_text() == "theirs" and (tmp_path / "a.run.json").read_bytes() == b"mine"


def test_a_file_is_as_readable_as_others(tmp_path: Path) -> None:
    (tmp_path / "b").touch()
    replace_file(tmp_path / "a", b"")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_nothing_but_a_file_is_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    link = tmp_path / "link"
    link.symlink_to("/dev/null")
    for path, kind in ((pipe, "a named pipe"), (link, "a device"), (tmp_path, "a folder")):
        with pytest.raises(OSError, match=f"it is {kind}"):
            replace_file(path, b"mine")
    assert stat.S_ISFIFO(pipe.stat().st_mode) and sorted(tmp_path.iterdir()) == [link, pipe]


def test_a_socket_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        with pytest.raises(OSError, match="it is a socket"):
            check_is_file(Path("socket"))


@pytest.mark.slow
def test_folders_deeper_than_recursion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a whole path has at most 4,096 bytes
    deep = Path("d/" * 1_900)
    make_folders(deep)
    make_folders(deep)
    assert deep.is_dir()
    check_is_file(deep / "a.jsonl")
    for each in (Path("d/" * depth) for depth in range(1_900, 0, -1)):
        each.rmdir()


@pytest.mark.parametrize("path", ["a" * 300, "abcdef/" * 1_900 + "a"])
def test_names_that_are_too_long(path: str) -> None:
    for function in (check_is_file, make_folders):
        with pytest.raises(OSError, match="File name too long"):
            function(Path(path))
