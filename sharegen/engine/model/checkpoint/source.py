"""Where a model comes from: a folder, a GGUF file or the Hugging Face hub, and its config.

transformers retries an unreachable hub for half a minute; here one quick question decides whether
the hub or only its local cache is asked, and every failure is one line that says what to do.
"""

from __future__ import annotations

import os
import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import constants
from huggingface_hub.errors import (
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import validate_repo_id
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig

from sharegen.common.hub import hub_is_reachable
from sharegen.engine.model.checkpoint.folder import check_folder, refuse_path
from sharegen.engine.model.checkpoint.gguf import (
    begins_as_gguf,
    check_gguf,
    dtype_of,
    scale_positions,
)
from sharegen.errors import ModelError, SharegenError, UsageError

_OF_VALUES = (TypeError, AttributeError, IndexError, ArithmeticError, AssertionError)
"""What transformers raises for a value in a file that it has not looked at before it uses it."""

_SAID = 300  # characters of an error

# transformers' words where it cannot make a weight of several tensors; a report, which is not
# shown, has their names.
_IN_PIECES = "during automatic conversion of the weights"


@dataclass(frozen=True)
class Source:
    """A folder, a GGUF file, or a hub id, which is read from the hub or (offline) its local cache.

    revision: branch, tag or commit on the hub; None is the main one. gguf: the file, which holds
    config, tokenizer and weights; there is no folder then.
    """

    name: str
    folder: Path | None
    trust_remote_code: bool = False
    offline: bool = False
    revision: str | None = None
    gguf: Path | None = None

    @property
    def origin(self) -> str:
        """The first argument of every `from_pretrained` of this source."""
        return self.name if self.gguf is None else str(self.gguf.parent)

    @property
    def is_local(self) -> bool:
        """Whether it lies on this machine, in a place of the user's own."""
        return self.folder is not None or self.gguf is not None

    @property
    def place(self) -> dict[str, Any]:
        """Keyword arguments of whatever reads a file of this source."""
        place: dict[str, Any] = {"local_files_only": self.offline or self.is_local}
        return place | ({"revision": self.revision} if self.revision is not None else {})

    @property
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of every `from_pretrained` of this source."""
        arguments = self.place | {"trust_remote_code": self.trust_remote_code}
        return arguments if self.gguf is None else arguments | {"gguf_file": self.gguf.name}

    @property
    def of_hub(self) -> str:
        """Its name on the hub, with the revision where one is asked for."""
        return self.name if self.revision is None else f"{self.name} at revision {self.revision}"


def locate(
    name: str | os.PathLike[str], trust_remote_code: bool = False, revision: str | None = None
) -> Source:
    """Decide whether `name` is a folder, a GGUF file or a hub id.

    revision: branch, tag or commit on the hub. Raises ModelError when it can be none of them, and
    UsageError where there is a revision of a folder or a file.
    """
    text = os.fspath(name)
    folder = Path(os.path.expanduser(text))
    is_file = folder.is_file() and (folder.suffix.lower() == ".gguf" or begins_as_gguf(folder))
    if revision is not None and (folder.is_dir() or is_file):
        raise UsageError(
            f"revision {revision!r} is of a model on the hub, and {text} is a "
            f"{'file' if is_file else 'folder'}: leave it out"
        )
    if folder.is_dir():
        check_folder(folder)
        return Source(str(folder), folder, trust_remote_code)
    if is_file:
        check_gguf(folder)
        return Source(str(folder), None, trust_remote_code, gguf=folder)
    if folder.exists():
        raise ModelError(f"model {text} is a file: give the folder that holds config.json")
    refuse_path(text)
    try:
        validate_repo_id(text)
    except HFValidationError:
        raise ModelError(
            f"{text!r} is neither a folder nor a hub id: give a model folder or owner/name"
        ) from None
    return Source(text, None, trust_remote_code, not hub_is_reachable(), revision)


def load_config(source: Source) -> Any:
    """The model's config. Raises ModelError."""
    if source.folder is not None and not (source.folder / "config.json").is_file():
        inside = min(source.folder.glob("*.gguf"), default=None)
        hint = "" if inside is None else f": give the GGUF file itself, such as {inside}"
        raise ModelError(f"model folder {source.name} has no config.json{hint}")
    with explained(source, "config"):
        config = AutoConfig.from_pretrained(source.origin, **source.arguments)
    if source.gguf is not None:
        config.dtype = dtype_of(source.gguf)
        scale_positions(source.gguf, config)
    return config


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers' warnings and progress bars off the terminal."""
    verbosity = transformers.logging.get_verbosity()
    bars = transformers.logging.is_progress_bar_enabled()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers.logging.set_verbosity(verbosity)
        if bars:
            transformers.logging.enable_progress_bar()


@contextmanager
def explained(source: Source, part: str) -> Iterator[None]:
    """Turn what transformers raises into one line."""
    with quiet():
        try:
            yield
        except (pickle.UnpicklingError, EOFError) as error:
            raise ModelError(
                f"model {source.name} has its {part} in a pickle, which could run code, and this "
                "one would or is broken: convert it where you trust it, with AutoModelForCausalLM."
                "from_pretrained(...).save_pretrained(FOLDER), which writes safetensors"
            ) from error
        except SharegenError:
            raise
        except Exception as error:  # tokenizers raises it as it is, others nearly all that there is
            raise ModelError(_reason(source, part, error)) from error


def _reason(source: Source, part: str, error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])
    detail = said[:_SAID] or type(error).__name__
    if "trust_remote_code" in str(error):
        return (f"model {source.name} brings its own code: read it, then allow it with "
                "--trust-remote-code")  # fmt: skip
    if _IN_PIECES in str(error):
        detail = (f"some of the {part} that are put together of several tensors, such as experts, "
                  "are missing or of another shape: it is incomplete or broken")  # fmt: skip
    if isinstance(error, KeyError):
        detail = f"{detail} is missing in one of its files, or is a name that is not known"
    elif isinstance(error, _OF_VALUES):
        detail = f"a value in one of its files cannot be used ({type(error).__name__}: {detail})"
    elif isinstance(error, SafetensorError) and (broken := _broken_file(source)) is not None:
        detail = f"{broken.name} is cut short, or no safetensors file ({detail})"
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        detail = f"it needs the package {package}: pip install {package}"
    if source.gguf is not None:
        return f"cannot load the {part} of GGUF file {source.name}: {detail}"
    if source.folder is not None:
        return f"cannot load the {part} of model folder {source.name}: {detail}"
    if source.offline:
        return (f"cannot load the {part} of {source.of_hub}: the hub ({constants.ENDPOINT}) is not "
                "reachable and it is not in the local cache: give a model folder")  # fmt: skip
    if source.revision is not None and _is_no_revision(error):
        return (f"the hub has no revision {source.revision} of {source.name}: give a branch, a tag "
                "or a commit of it, or none for the main one")  # fmt: skip
    if isinstance(error, RepositoryNotFoundError) or "not a valid model identifier" in str(error):
        return f"the hub has no model {source.name} (or it is private: log in with `hf auth login`)"
    return f"cannot load the {part} of {source.of_hub}: {detail}"


def _broken_file(source: Source) -> Path | None:
    """The first file of weights in a folder that cannot be opened."""
    for file in sorted(source.folder.glob("*.safetensors")) if source.folder is not None else ():
        try:
            with safe_open(file, framework="pt"):
                pass
        except (OSError, SafetensorError):
            return file
    return None


def _is_no_revision(error: BaseException | None) -> bool:
    """Whether the hub said so, somewhere below what transformers made of it."""
    while error is not None:
        if isinstance(error, RevisionNotFoundError):
            return True
        error = error.__cause__ or error.__context__
    return False


def resolve_device(device: str | torch.device) -> torch.device:
    """ "auto" is CUDA where there is one. Raises UsageError for a device that is not there."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError):
        raise UsageError(f"unknown device {device!r}: use auto, cpu or cuda") from None
    if resolved.type not in ("cpu", "cuda"):
        raise UsageError(f"device {device!r} is not supported: use auto, cpu or cuda")
    if resolved.type == "cuda":
        if not torch.cuda.is_available():
            raise UsageError(f"device {device} was asked for but no CUDA GPU is available")
        if resolved.index is not None and resolved.index >= torch.cuda.device_count():
            raise UsageError(f"there is no {device}: {torch.cuda.device_count()} CUDA devices")
    return resolved


def resolve_dtype(dtype: str | torch.dtype, device: torch.device, config: Any) -> torch.dtype:
    """ "auto" is float32 on a CPU and the checkpoint's own on CUDA; "half" and "float" are torch's.

    Raises UsageError.
    """
    if dtype == "auto":
        own = getattr(config, "dtype", None) or getattr(config.get_text_config(), "dtype", None)
        dtype = own if own is not None and device.type == "cuda" else torch.float32
    names = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
    if isinstance(dtype, str):
        known = names | {"half": torch.float16, "float": torch.float32}
        if dtype not in known:
            raise UsageError(f"unknown dtype {dtype!r}: use auto, {', '.join(names)}")
        return known[dtype]
    if dtype not in names.values():
        raise UsageError(f"dtype {dtype} is not supported: use auto, {', '.join(names)}")
    return dtype
