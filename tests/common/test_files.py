"""Files that are replaced whole, and not through what somebody laid in the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharegen.common import files
from sharegen.common.files import replace_file


def test_the_old_file_or_the_whole_new_one_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    replace_file(path, b"one")
    replace_file(path, b"two")
    assert path.read_bytes() == b"two" and [*tmp_path.iterdir()] == [path]
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        replace_file(folder, b"three")
    assert sorted(tmp_path.iterdir()) == [path, folder]


def test_nothing_is_written_through_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by a name that can be foretold nor by one that was guessed."""
    theirs = tmp_path / "theirs"
    theirs.write_text("theirs")
    (tmp_path / "a.run.json.partial").symlink_to(theirs)
    replace_file(tmp_path / "a.run.json", b"mine")
    monkeypatch.setattr(files.secrets, "token_hex", lambda _: "guessed")
    (tmp_path / ".guessed.partial").symlink_to(theirs)
    with pytest.raises(FileExistsError):
        replace_file(tmp_path / "a.run.json", b"again")
    assert theirs.read_text() == "theirs" and (tmp_path / "a.run.json").read_bytes() == b"mine"


def test_a_file_is_as_readable_as_others(tmp_path: Path) -> None:
    (tmp_path / "b").touch()
    replace_file(tmp_path / "a", b"")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode
