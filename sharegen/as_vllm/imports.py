"""`import vllm` in this process: modules by vLLM's names that have sharegen's.

Python asks finders in turn for a module; ours comes first and knows vLLM's alone. Packages that
look for vLLM's version among the installed ones (`importlib.metadata`) find the same.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
from types import ModuleType
from typing import Any

from sharegen.as_vllm.names import MODULES, NOT_HERE
from sharegen.version import __version__

VERSION = f"0.11.0+sharegen.{__version__}"
"""The version of vLLM whose names these are, and that it is a stand-in."""

_PAGE = "docs/reference/vllm.md"


def stand_in() -> None:
    """From now on `import vllm` finds sharegen's module, in this process.

    Raises:
        RuntimeError: where the program has imported vLLM itself already.
    """
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    if "vllm" in sys.modules:
        raise RuntimeError("vllm was imported before sharegen could stand in for it")
    sys.meta_path.insert(0, _Finder())
    print(f"sharegen {__version__} stands in for vllm in this process", file=sys.stderr)


def what_to_use(error: ImportError | AttributeError) -> str | None:
    """What to use instead of the name or the module of vLLM's that an error says is missing."""
    if isinstance(error, ImportError):
        where, name = error.name or "", _missing(str(error))
    else:
        where, name = getattr(error.obj, "__name__", ""), error.name
    if where.partition(".")[0] != "vllm":
        return None
    whole = f"{where}.{name}" if name else where
    return f"{whole} is not in sharegen's stand-in for vllm: {_instead(whole)}"


def _missing(said: str) -> str | None:
    """The name that `from vllm import NAME` did not find, which Python 3.11 says in words alone."""
    found = re.match(r"cannot import name '(\w+)'", said)
    return found[1] if found else None


def _instead(whole: str) -> str:
    fitting = [at for at in NOT_HERE if whole == at or whole.startswith(f"{at}.")]
    return NOT_HERE[max(fitting, key=len)] if fitting else f"{_PAGE} says what there is"


class _Finder(DistributionFinder, MetaPathFinder):
    """Finds vLLM's modules, and its version, and nothing else."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] != "vllm":
            return None
        if name not in MODULES:
            error = ModuleNotFoundError(f"No module named {name!r}", name=name)
            error.add_note(f"sharegen stands in for vllm: {_instead(name)}")
            raise error
        return ModuleSpec(name, _Loader(), is_package=True)

    def find_distributions(
        self, context: DistributionFinder.Context | None = None
    ) -> Iterable[Distribution]:
        asked = None if context is None else context.name
        return [_Installed()] if asked in (None, "vllm") else []


class _Loader(Loader):
    def exec_module(self, module: ModuleType) -> None:
        module.__getattr__ = _Names(module.__name__)  # type: ignore[method-assign]
        module.__all__ = sorted(MODULES[module.__name__])  # type: ignore[attr-defined]
        module.__doc__ = "sharegen in vLLM's place."
        if module.__name__ == "vllm":
            module.__version__ = VERSION  # type: ignore[attr-defined]


class _Names:
    """Names of one module, each loaded from its home in sharegen when it is first asked for."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __call__(self, name: str) -> Any:
        homes = MODULES[self._module]
        if name not in homes:
            said = f"module {self._module!r} has no attribute {name!r}"
            raise AttributeError(said, name=name, obj=sys.modules[self._module])
        found = getattr(import_module(homes[name]), name)
        setattr(sys.modules[self._module], name, found)
        return found


class _Installed(Distribution):
    """What `importlib.metadata` reads of an installed package: its name and its version."""

    def read_text(self, filename: str) -> str | None:
        if filename != "METADATA":
            return None
        return f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}\n"

    def locate_file(self, path: Any) -> Any:
        raise FileNotFoundError(f"vllm has no file {path}: sharegen stands in for it")
