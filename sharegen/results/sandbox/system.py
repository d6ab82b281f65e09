"""What of this system a program may see, and the command that starts the warmed parent."""

from __future__ import annotations

import errno
import importlib.util
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from sharegen.results.sandbox.tree import DEVICE_LINKS, DEVICES, PRIVATE

Isolation = Literal["bubblewrap", "namespaces", "none"]

INSIDE = "/sandbox"
PACKAGES = "/packages"
_HERE = Path(__file__).resolve().parent
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store")
_FILES = ("/etc/ld.so.cache", "/etc/localtime", "/etc/alternatives")
_ENVIRONMENT = {
    "HOME": "/home",
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "PYTHONHASHSEED": "0",  # the same verdict every time
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUTF8": "1",
    "TMPDIR": "/tmp",
}


def environment() -> dict[str, str]:
    """All the variables that a program gets; none of the user's but the linker's path."""
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    return _ENVIRONMENT | kept


def python_command(folder: str, descriptors: Sequence[int]) -> list[str]:
    """Start the warmed parent with the package `sandbox` found in `folder`."""
    code = (
        f"import sys; sys.path.insert(0, {folder!r}); "
        f"from sandbox.server import main; main({', '.join(map(str, descriptors))})"
    )
    python = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    return [python, "-s", "-S", "-P", "-c", code]


def binds() -> list[tuple[str, str]]:
    """List (path here, path there) of all that is shown, parents before what lies within them.

    Raises PermissionError where Python cannot be shown without the user's files.
    """
    shown = {path: path for path in (*_SYSTEM, *_FILES) if os.path.lexists(path)}
    prefix = os.path.realpath(sys.base_prefix)
    home = Path(os.path.expanduser("~")).resolve()  # "~" where there is none
    if prefix == "/" or (home != Path("/") and home.is_relative_to(prefix)):
        raise PermissionError(errno.EACCES, f"Python's own folder {prefix} holds your home {home}")
    if not any(Path(prefix).is_relative_to(path) for path in _SYSTEM):
        shown[prefix] = prefix
    shown[str(_HERE)] = f"{INSIDE}/sandbox"
    numpy = importlib.util.find_spec("numpy")
    for folder in numpy.submodule_search_locations or () if numpy else ():
        for path in (Path(folder), Path(folder).with_name("numpy.libs")):
            if path.is_dir():
                shown[str(path)] = f"{PACKAGES}/{path.name}"
    return sorted(shown.items(), key=lambda item: item[1])


def command(isolation: Isolation, descriptors: Sequence[int]) -> list[str]:
    """The command line of the warmed parent; its descriptors are as `server.main` takes them."""
    if isolation != "bubblewrap":
        return python_command(str(_HERE.parent), descriptors)
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise FileNotFoundError(errno.ENOENT, "not installed")
    wrap = [bwrap, "--die-with-parent", "--unshare-pid"]
    wrap += ["--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if os.getuid():
        wrap += ["--unshare-user"]
    for source, target in binds():
        for parent in reversed(Path(target).parents[:-1]):
            wrap += ["--perms", "0755", "--dir", str(parent)]
        if os.path.islink(source):
            wrap += ["--symlink", os.readlink(source), target]
        else:
            wrap += ["--ro-bind", source, target]
    # bwrap hides parts of root's /proc; then nobody could mount another, so root does it inside
    wrap += ["--proc", "/proc"] if os.getuid() else ["--dir", "/proc"]
    for folder in ("/dev", *PRIVATE):
        wrap += ["--dir", folder]
    for name in DEVICES:
        wrap += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    for name, there in DEVICE_LINKS.items():
        wrap += ["--symlink", there, f"/dev/{name}"]
    wrap += ["--remount-ro", "/", "--chdir", "/", "--"]
    return wrap + python_command(INSIDE, descriptors)
