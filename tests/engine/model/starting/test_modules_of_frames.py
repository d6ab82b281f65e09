"""What asks for the module of a frame is told the same as without."""

from __future__ import annotations

import inspect
import sys
import types

import pytest

from sharegen.engine.model.starting.modules_of_frames import modules_of_frames


def test_a_frame_has_the_module_that_a_search_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = [each.frame for each in inspect.stack()]
    found = {frame: inspect.getmodule(frame) for frame in frames}  # None for a frozen module's
    of_class = inspect.getmodule(types.ModuleType)
    with modules_of_frames():
        for frame, module in found.items():
            assert module is None or inspect.getmodule(frame) is module
        assert inspect.getmodule(types.ModuleType) is of_class
        line = inspect.getframeinfo(sys._getframe()).code_context
        assert line is not None and "getframeinfo" in line[0]
        made: dict[str, object] = {"__name__": "nowhere", "sys": sys}
        exec("frame = sys._getframe()", made)
        assert inspect.getmodule(made["frame"]) is None


def test_an_import_that_fails_leaves_it_as_it_was() -> None:
    own = inspect.getmodule
    with pytest.raises(ImportError), modules_of_frames():
        assert inspect.getmodule is not own
        raise ImportError
    assert inspect.getmodule is own
