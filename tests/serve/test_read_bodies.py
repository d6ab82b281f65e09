"""Bodies that come again are read once, but for those that ask otherwise at another time."""

from __future__ import annotations

import pytest

from sharegen.engine.core.request import SamplingParams
from sharegen.serve import read_bodies
from sharegen.serve.asked import Asked, Delivery
from sharegen.serve.read_bodies import ReadBodies


def asked(lasts: bool = True) -> Asked:
    return Asked("text", [[1]], ["a"], SamplingParams(), Delivery(), None, False, lasts=lasts)


def test_what_came_before_is_known_by_its_bytes_and_its_endpoint() -> None:
    known, one = ReadBodies(), asked()
    known.remember(b"{}", one)
    assert known.get("text", b"{}") is one
    assert known.get("chat", b"{}") is None and known.get("text", b"{ }") is None


def test_the_least_recently_asked_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_bodies, "_MOST", 10)
    known = ReadBodies()
    for body in (b"1234", b"5678"):
        known.remember(body, asked())
    known.get("text", b"1234")
    known.remember(b"90ab", asked())
    assert known.get("text", b"1234") and known.get("text", b"90ab")
    assert known.get("text", b"5678") is None and known._held == 8


def test_what_does_not_last_and_what_is_large_is_not_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(read_bodies, "_LARGEST", 4)
    known = ReadBodies()
    known.remember(b"1", asked(lasts=False))
    known.remember(b"12345", asked())
    known.remember(b"2", asked())
    known.remember(b"2", asked())
    assert known._held == 1 and list(known._known) == [("text", b"2")]
