"""Where a model comes from: a local folder or the Hugging Face hub, its config, its weights.

transformers retries an unreachable hub for half a minute; here one quick question decides whether
the hub or only its local cache is asked, and every failure is one line that says what to do.
"""

from __future__ import annotations

import copy
import os
import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import constants
from huggingface_hub.errors import (
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
    StrictDataclassError,
)
from huggingface_hub.utils import validate_repo_id
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.quantizers.auto import AutoHfQuantizer

from sharegen.common.extras import install
from sharegen.common.hub import hub_is_reachable
from sharegen.engine.model.checkpoint.folder import check_folder
from sharegen.engine.model.fp8.loading import ToFP8
from sharegen.engine.model.fp8.stored_fp8 import StoredFP8, stored_fp8
from sharegen.errors import ModelError, UsageError

# What transformers is seen to raise for folders and repositories that it cannot load.
_LOADING_ERRORS = (
    OSError, ValueError, ImportError, LookupError, AttributeError, TypeError, RuntimeError,
    ArithmeticError, SafetensorError, StrictDataclassError,
)  # fmt: skip

_SAID = 300  # characters of an error


@dataclass(frozen=True)
class Source:
    """A folder, or a hub id that is read from the hub or (offline) from its local cache.

    revision: branch, tag or commit on the hub; None is the main one.
    """

    name: str
    folder: Path | None
    trust_remote_code: bool = False
    offline: bool = False
    revision: str | None = None

    @property
    def place(self) -> dict[str, Any]:
        """Keyword arguments of whatever reads a file of this source."""
        place: dict[str, Any] = {"local_files_only": self.offline or self.folder is not None}
        return place | ({"revision": self.revision} if self.revision is not None else {})

    @property
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of every `from_pretrained` of this source."""
        return self.place | {"trust_remote_code": self.trust_remote_code}

    @property
    def of_hub(self) -> str:
        """Its name on the hub, with the revision where one is asked for."""
        return self.name if self.revision is None else f"{self.name} at revision {self.revision}"


def locate(
    name: str | os.PathLike[str], trust_remote_code: bool = False, revision: str | None = None
) -> Source:
    """Decide whether `name` is a folder or a hub id. Raises ModelError when it can be neither.

    revision: branch, tag or commit on the hub. Raises UsageError where there is one of a folder.
    """
    text = os.fspath(name)
    folder = Path(os.path.expanduser(text))
    if folder.is_dir():
        if revision is not None:
            raise UsageError(
                f"revision {revision!r} is of a model on the hub, and {text} is a folder: leave it "
                "out"
            )
        check_folder(folder)
        return Source(str(folder), folder, trust_remote_code)
    if folder.exists():
        raise ModelError(f"model {text} is a file: give the folder that holds config.json")
    if (
        text.startswith((".", "/", "~"))
        or text.count("/") > 1
        or (os.sep != "/" and os.sep in text)
    ):
        raise ModelError(f"no folder {text}: give a model folder or a hub id like owner/name")
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
        raise ModelError(f"model folder {source.name} has no config.json")
    with explained(source, "config"):
        return AutoConfig.from_pretrained(source.name, **source.arguments)


def load_weights(
    source: Source,
    config: Any,
    dtype: torch.dtype,
    device: torch.device,
    quantization: str | None = None,
) -> PreTrainedModel:
    """The model with its weights on `device`. Raises ModelError, also when weights are missing.

    quantization: "fp8" makes the large ones FP8 as they are read. Raises UsageError for a device
    that has no FP8, where they are to be, or are in the checkpoint.
    """
    stored = stored_quantization(source, config, quantization)
    own = stored if isinstance(stored, StoredFP8) else None
    fp8 = None
    placement: dict[str, Any] = {}
    if quantization is not None or own is not None:
        fp8 = ToFP8(source.name, device, own)
        config = without_quantization(config)
        placement = {"quantization_config": fp8}
    elif stored is not None:
        # Quantised weights must be laid out on the device that they will run on.
        placement = {"device_map": {"": device}}
    with explained(source, "weights"):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source.name,
            config=config,
            dtype=dtype,
            attn_implementation="eager",
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported, and refused below in our words
            **placement,
            **source.arguments,
        )
    model, report = loaded
    refuse_missing(source, report)
    if fp8 is not None:
        model = fp8.finish(model)
    return (model if stored is not None else model.to(device)).eval()


def refuse_missing(source: Source, report: dict[str, Any]) -> None:
    """Raise ModelError for weights that transformers reports as missing or of another shape."""
    missing = sorted(report["missing_keys"]) + sorted(key[0] for key in report["mismatched_keys"])
    if missing:
        raise ModelError(
            f"model {source.name}: {len(missing)} weights are missing or of another shape, "
            f"such as {missing[0]}: the folder is incomplete or not of this architecture"
        )


def stored_quantization(
    source: Source, config: Any, quantization: str | None = None
) -> StoredFP8 | str | None:
    """How the checkpoint's weights are quantised: FP8, or the method by which transformers does it.

    quantization: what is asked besides. Raises ModelError for a method that transformers would
    skip, and then read nonsense, for FP8 that it would widen, and for two quantisations at once.
    """
    parts = (config, config.get_text_config())
    settings = next(
        (q for q in (getattr(c, "quantization_config", None) for c in parts) if q), None
    )
    if settings is None:
        return None
    method = settings.get("quant_method", "bitsandbytes")
    if quantization is not None:
        raise ModelError(
            f"model {source.name} is quantised already ({method}): leave out --quantization "
            f"{quantization}"
        )
    stored = stored_fp8(source.name, settings)
    if stored is not None:
        return stored
    with explained(source, "weights"):
        known = AutoHfQuantizer.supports_quant_method(settings)
    if not known:
        raise ModelError(
            f"model {source.name} is quantised by {method}, which transformers does not know: "
            "give a checkpoint that is not quantised, or quantised by a method that it has"
        )
    if find_spec("accelerate") is None:
        raise ModelError(
            f"model {source.name} is quantised ({method}), and loading it needs accelerate: "
            + install("quantised")
        )
    return str(method)


def without_quantization(config: Any) -> Any:
    """A copy that says nothing of how the checkpoint is quantised."""
    config = copy.deepcopy(config)
    for part in (config, config.get_text_config()):
        if hasattr(part, "quantization_config"):
            del part.quantization_config
    return config


def build_on_meta(source: Source, config: Any, dtype: torch.dtype) -> PreTrainedModel:
    """The model without weights, on torch's meta device. Raises ModelError."""
    with explained(source, "config"), torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            config,
            dtype=dtype,
            attn_implementation="eager",
            trust_remote_code=source.trust_remote_code,
        )
        model.set_experts_implementation("batched_mm")  # the one that needs no numbers
    return model.eval()


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
        except _LOADING_ERRORS as error:
            raise ModelError(_reason(source, part, error)) from error


def _reason(source: Source, part: str, error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])
    detail = said[:_SAID] or type(error).__name__
    if "trust_remote_code" in str(error):
        return (f"model {source.name} brings its own code: read it, then allow it with "
                "--trust-remote-code")  # fmt: skip
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        detail = f"it needs the package {package}: pip install {package}"
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
