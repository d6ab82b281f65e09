"""A folder in which every module's name is taken by one that says it was imported, and fails."""

from __future__ import annotations

import sys
from pathlib import Path

OTHERS = (
    "accelerate", "charset_normalizer", "conftest", "datasets", "dill", "einops", "filelock",
    "jinja2", "llguidance", "lm_eval", "math_verify", "multiprocess", "networkx", "numpy",
    "optree", "pandas", "peft", "pkg_resources", "psutil", "pyarrow", "pydantic", "ray", "regex",
    "requests", "rich", "safetensors", "setuptools", "sitecustomize", "sympy", "tokenizers",
    "torch", "torchao", "tqdm", "transformers", "triton", "typer", "usercustomize", "yaml",
)  # fmt: skip


class Traps:
    """The modules of a folder; `sprung`: those that somebody has imported."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._log = folder / "sprung.txt"
        code = f"open({str(self._log)!r}, 'a').write(__name__ + '\\n')\nraise SystemExit(99)\n"
        for name in {*sys.stdlib_module_names, *OTHERS}:
            (folder / f"{name}.py").write_text(code)

    @property
    def sprung(self) -> list[str]:
        return self._log.read_text().split() if self._log.exists() else []
