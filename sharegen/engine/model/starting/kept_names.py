"""The names that transformers' models have, kept from one start to the next.

Whoever imports transformers waits until it has read the 3,000 files of its models twice, to find
which names are in which: a third of the time. It comes out the same until another transformers is
installed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Callable
from importlib import metadata
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from sharegen.common.cache_folder import trim, usable_folder
from sharegen.common.files import replace_file
from sharegen.engine.model.starting.packages import packages_distributions as _packages

_PACKAGE = "transformers"
_FINDS = f"{_PACKAGE}.utils.import_utils"  # the module whose function finds them
_FUNCTION = "define_import_structure"
_FORMAT = "after a hash"  # of the file
_LIMIT = 8 << 20  # bytes, of all versions together; one is 0.2 MB

Names = dict[frozenset[str], dict[str, set[str]]]
"""By what they need: the names of a module, as `define_import_structure` returns them."""


def keep_names() -> None:
    """Have transformers take them from the cache where they are kept, and kept where they are not.

    Nothing changes where transformers is imported already, or is being worked on by its user.
    """
    if _PACKAGE in sys.modules:
        return
    models = _installed_models()
    folder = None if models is None else usable_folder("names")
    if models is not None and folder is not None:
        trim(folder, _LIMIT, 1)
        sys.meta_path.insert(0, _Finder(models, folder / f"{_stamp(models)}.json"))


def _installed_models() -> Path | None:
    """The folder of transformers' models, where a package manager put it."""
    try:
        files = metadata.distribution(_PACKAGE)
    except metadata.PackageNotFoundError:
        return None
    spec = PathFinder.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        return None
    installed = Path(str(files.locate_file(f"{_PACKAGE}/__init__.py")))
    return installed.parent / "models" if installed == Path(spec.origin) else None


def _stamp(models: Path) -> str:
    """A name for all that they depend on: another installation writes these anew."""
    written = [os.stat(path).st_mtime_ns for path in (models, models / "__init__.py")]
    made_of = (_FORMAT, str(models), metadata.version(_PACKAGE), written)
    return hashlib.blake2b(repr(made_of).encode(), digest_size=16).hexdigest()


class _Finder(MetaPathFinder, Loader):
    """Finds the one module of transformers that finds names, and gives it a memory.

    The same module of older versions asks whose each package is, and is told sooner.
    """

    def __init__(self, models: Path, file: Path) -> None:
        self._models = models
        self._file = file

    def find_spec(self, name: str, path: Any = None, *_: Any) -> ModuleSpec | None:
        if name != _FINDS:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        own, metadata.packages_distributions = metadata.packages_distributions, _packages
        try:
            self._loader.exec_module(module)
        finally:
            metadata.packages_distributions = own
        function = getattr(module, _FUNCTION, None)
        if function is not None:
            setattr(module, _FUNCTION, _with_memory(function, self._models, self._file))


def _with_memory(find: Callable[..., Names], models: Path, file: Path) -> Callable[..., Names]:
    """The function that finds names, which remembers those of all models."""

    def names_in(module_path: Any, prefix: str | None = None) -> Names:
        if Path(module_path) not in (models, models / "__init__.py"):
            return find(module_path, prefix)
        names = _read(file)
        if names is None:
            found = find(module_path, prefix)
            if prefix is None:
                with contextlib.suppress(OSError, TypeError, AttributeError):
                    replace_file(file, _as_bytes(found))
            return found
        start = "" if prefix is None else f"{prefix}."
        return {
            needs: {f"{start}{module}": own for module, own in modules.items()}
            for needs, modules in names.items()
        }

    return names_in


def _as_bytes(names: Names) -> bytes:
    """The names as JSON, after a line with its hash: a damaged file may still be JSON."""
    entries = [
        [sorted(needs), {module: sorted(own) for module, own in modules.items()}]
        for needs, modules in names.items()
    ]
    body = json.dumps(entries).encode()
    return _hash(body) + b"\n" + body


def _hash(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16).hexdigest().encode()


def _read(file: Path) -> Names | None:
    """What was kept; None where nothing is, or the file is damaged."""
    try:
        told, _, body = file.read_bytes().partition(b"\n")
        if told != _hash(body):
            return None
        return {
            frozenset(needs): {module: set(own) for module, own in modules.items()}
            for needs, modules in json.loads(body)
        }
    except (OSError, ValueError, TypeError, AttributeError):  # or another version's
        return None
