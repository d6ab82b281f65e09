"""Which distributions a package is of, as Python says it."""

from importlib import metadata
from pathlib import Path

import pytest

from sharegen.engine.model.starting.packages import packages_distributions


def test_packages_are_of_the_distributions_that_python_says() -> None:
    expected, found = metadata.packages_distributions(), packages_distributions()
    assert len(expected) > 20
    for package, of in expected.items():
        assert set(of) <= set(found[package]), package


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ("one/a.py,,\none/b.py,,\n../../bin/x,,\none-1.dist-info/RECORD,,\n", {"one"}),
        ("two.py,,\n_three.cpython-311-x86_64-linux-gnu.so,,\n", {"two", "_three"}),
        ('"four/a,b.py",,\nfour/c.py,,\n', {"four"}),
        (None, set()),
    ],
)
def test_a_distribution_s_packages_are_those_of_its_record(
    record: str | None, expected: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "some-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: some\nVersion: 1\n")
    if record is not None:
        (folder / "RECORD").write_text(record)
        for name in ("four/c.py", "four/a,b.py"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).touch()
    only = [metadata.Distribution.at(folder)]
    monkeypatch.setattr(metadata, "distributions", lambda: only)
    assert packages_distributions() == {name: ["some"] for name in expected}
