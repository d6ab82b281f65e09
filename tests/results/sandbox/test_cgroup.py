"""Where a memory cgroup may lie, on systems made up of files; and what is left of one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sharegen.results.sandbox import cgroup

V1 = "35 31 0:32 {root} {mount} rw,relatime - cgroup cgroup rw,memory\n"
V2 = "41 31 0:38 {root} {mount} rw,relatime - cgroup2 cgroup2 rw\n"


def _process(folder: Path, groups: str, mounts: str) -> Path:
    process = folder / "process"
    process.mkdir()
    (process / "cgroup").write_text(groups)
    (process / "mountinfo").write_text(mounts)
    return process


def _group(path: Path, counts: str = "", most: str = "max") -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "cgroup.subtree_control").write_text(counts + "\n")
    (path / "memory.max").write_text(most + "\n")
    return path


def test_in_version_1_it_lies_within_ours(tmp_path: Path) -> None:
    mounts = V1.format(root="/", mount=tmp_path) + V2.format(root="/", mount=tmp_path / "two")
    process = _process(tmp_path, "4:cpu:/\n3:memory:/a/b\n0::/\n", mounts)
    assert list(cgroup._places(process)) == [(1, tmp_path / "a" / "b")]


def test_in_a_container_our_own_group_is_the_topmost_one_to_see(tmp_path: Path) -> None:
    mounts = V1.format(root="/docker/1", mount=tmp_path)
    process = _process(tmp_path, "3:memory:/docker/1\n", mounts)
    assert list(cgroup._places(process)) == [(1, tmp_path)]
    (process / "cgroup").write_text("3:memory:/elsewhere\n")
    assert list(cgroup._places(process)) == []


def test_in_version_2_it_lies_beside_ours(tmp_path: Path) -> None:
    process = _process(tmp_path, "0::/user/shell\n", V2.format(root="/", mount=tmp_path))
    beside = _group(tmp_path / "user", "memory pids")
    own = _group(beside / "shell")
    assert list(cgroup._places(process)) == [(2, beside)]
    _group(own, "memory")
    assert list(cgroup._places(process)) == [(2, own)]


def test_a_limit_on_our_own_group_is_not_left(tmp_path: Path) -> None:
    process = _process(tmp_path, "0::/user/shell\n", V2.format(root="/", mount=tmp_path))
    _group(_group(tmp_path / "user", "memory") / "shell", most="1073741824")
    assert list(cgroup._places(process)) == []


def test_where_nothing_counts_there_is_none(tmp_path: Path) -> None:
    process = _process(tmp_path, "0::/shell\n", V2.format(root="/", mount=tmp_path))
    _group(_group(tmp_path) / "shell")
    assert list(cgroup._places(process)) == []
    assert list(cgroup._places(tmp_path / "nothing")) == []


def test_groups_of_killed_processes_are_removed(tmp_path: Path) -> None:
    dead, ours = tmp_path / "sharegen-999999999-0", tmp_path / f"sharegen-{os.getpid()}-7"
    for folder in (dead, ours, tmp_path / "other"):
        folder.mkdir()
    with pytest.raises(FileNotFoundError):  # it is no cgroup and has no such files
        cgroup.Cgroup(tmp_path, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", ours.name]


def test_it_is_gone_when_it_is_not_needed_any_more() -> None:
    group = cgroup.create()
    if group is None:
        pytest.skip("no memory cgroup can be had here")
    assert group._path.is_dir() and len(group.descriptors) == 5
    group.remove()
    assert not group._path.exists()
