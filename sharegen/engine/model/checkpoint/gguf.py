"""GGUF files: one file that holds config, tokenizer and weights, in the format of llama.cpp.

transformers reads them. What it would pass over or report in many lines is looked at before: the
header says where each tensor ends and of which kind it is, and how positions are scaled.
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import copy
import math
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

import torch
import transformers
from packaging.version import Version

from sharegen.common.extras import install
from sharegen.engine.model.checkpoint.folder import MOST_LAYERS
from sharegen.errors import ModelError

# Earlier ones make models of GGUF files whose attention keeps its own implementation.
READS_GGUF = Version(transformers.__version__).release >= (5, 23)

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS = "BbHhIif?__QqdQ"  # struct's letter by the number of a metadata type
_STRING, _ARRAY = 8, 9
_MOST = 2**24  # entries of the metadata, items of an array, tensors: more than any file has
_MOST_TEXT = 2**26  # bytes of a string
_UNSCALED = (None, "none")
_FACTORS = "rope_freqs.weight"
_TOKENIZER = "tokenizer.ggml.model"
_LLAMA3 = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_PLAIN = ("F32", "F16", "BF16", "F64")


@dataclass(frozen=True)
class GGUFTensor:
    """Where a tensor lies. start: in bytes behind the header; kind: the number of its ggml type."""

    name: str
    shape: tuple[int, ...]
    kind: int
    start: int


@dataclass(frozen=True)
class GGUFHeader:
    """metadata: single values by key; arrays are left out. data: where the tensors begin."""

    metadata: dict[str, Any]
    tensors: tuple[GGUFTensor, ...]
    data: int


def begins_as_gguf(file: Path) -> bool:
    """Whether a file is one by its first bytes: caches keep them under names without a suffix."""
    try:
        with file.open("rb") as stream:
            return stream.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def check_gguf(file: Path) -> None:
    """Raise ModelError for what is no whole GGUF file of kinds that can be read."""
    for package in ("gguf", "accelerate"):
        if find_spec(package) is None:
            raise ModelError(f"{file} is a GGUF file, which needs {package}: {install('gguf')}")
    if not READS_GGUF:
        raise ModelError(
            f"{file} is a GGUF file, which needs transformers 5.23 or later: here is "
            f"{transformers.__version__}"
        )
    header = read_header(file)
    _check_tensors(file, header)
    architecture = header.metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise ModelError(f"{file}: names no architecture (general.architecture)")
    layers = header.metadata.get(f"{architecture}.block_count", 0)
    if not isinstance(layers, int) or layers > MOST_LAYERS:
        raise ModelError(
            f"{file}: {architecture}.block_count is {layers!r:.20}: more than any model has"
        )
    parts = header.metadata.get("split.count", 0)
    if isinstance(parts, int) and parts > 1:
        raise ModelError(
            f"{file}: is one of {parts} files of a model: join them (llama-gguf-split --merge)"
        )
    if not {_TOKENIZER, f"{architecture}.vocab_size"} & header.metadata.keys():
        raise ModelError(
            f"{file}: has no tokenizer in it ({_TOKENIZER}), which also says how many tokens the "
            "model has: give a file that has one, or the model's folder in safetensors"
        )
    scaling = header.metadata.get(f"{architecture}.rope.scaling.type")
    if scaling not in _UNSCALED:
        raise _scaled_otherwise(file, str(scaling))
    if any(tensor.name.startswith("rope_factors") for tensor in header.tensors):
        raise _scaled_otherwise(file, "longrope")


def _scaled_otherwise(file: Path, how: str) -> ModelError:
    return ModelError(
        f"{file}: scales its positions ({how:.40}), which transformers does not read from GGUF "
        "files: give the model's folder in safetensors"
    )


def scale_positions(file: Path, config: Any) -> None:
    """Scale the positions of a config as the file does, where transformers passes that over.

    Files of Llama 3.1 and later have a factor for each frequency, and not what it comes from.
    Raises ModelError for factors that are none of Llama 3's.
    """
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    header = read_header(file)
    tensor = next((each for each in header.tensors if each.name == _FACTORS), None)
    if tensor is None:
        return
    with file.open("rb") as stream:
        stream.seek(header.data + tensor.start)
        content = bytearray(stream.read(4 * math.prod(tensor.shape)))
    factors = torch.frombuffer(content, dtype=torch.float32)
    theta = (getattr(config, "rope_parameters", None) or {}).get("rope_theta")
    if theta is None or getattr(config, "head_dim", None) is None:  # of each kind of layer, perhaps
        raise _scaled_otherwise(file, "factors of its own")
    rope = _LLAMA3 | {"rope_theta": theta, "factor": round(float(factors.max()), 3)}
    changed = copy.deepcopy(config)
    changed.rope_parameters = rope
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](changed, torch.device("cpu"))
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    plain = theta**-exponents
    if factors.shape != scaled.shape or not torch.allclose(plain / scaled, factors, rtol=1e-3):
        raise _scaled_otherwise(file, "factors of its own")
    config.rope_parameters = rope


def kinds_of(file: Path) -> str:
    """The kinds of its tensors, the most frequent first, such as "Q4_K, Q6_K, F32"."""
    from gguf import GGMLQuantizationType

    counts = Counter(tensor.kind for tensor in read_header(file).tensors)
    return ", ".join(GGMLQuantizationType(kind).name for kind, _ in counts.most_common())


def dtype_of(file: Path) -> torch.dtype:
    """What a GPU computes its numbers in, unless told otherwise."""
    kinds = kinds_of(file).split(", ")
    return torch.float16 if "F16" in kinds and kinds[0] in ("F16", "F32") else torch.bfloat16


def read_header(file: Path) -> GGUFHeader:
    """All but the tensors. Raises ModelError where it is none, or cut short."""
    try:
        with file.open("rb") as stream:
            return _read_header(stream)
    except OSError as error:
        raise ModelError(f"{file}: cannot be read: {error.strerror}") from None
    except (struct.error, UnicodeDecodeError):
        raise ModelError(f"{file}: is cut short or no GGUF file: fetch it anew") from None
    except ValueError as error:
        raise ModelError(f"{file}: {error}") from None


def _read_header(stream: BinaryIO) -> GGUFHeader:
    if stream.read(4) != _MAGIC:
        raise ValueError("is no GGUF file: give one, or the folder that holds config.json")
    version, num_tensors, num_entries = _unpack(stream, "IQQ")
    if version not in _VERSIONS:
        raise ValueError(f"is GGUF of version {version}: versions 2 and 3 are read")
    metadata = {}
    for _ in range(_count(num_entries)):
        key = _text(stream)
        value = _value(stream, _unpack(stream, "I")[0])
        if value is not None:
            metadata[key] = value
    tensors = []
    for _ in range(_count(num_tensors)):
        name = _text(stream)
        (dimensions,) = _unpack(stream, "I")
        if dimensions > 8:
            raise ValueError(f"tensor {name!r:.60} has {dimensions} dimensions")
        shape = _unpack(stream, f"{dimensions}Q")
        kind, start = _unpack(stream, "IQ")
        tensors.append(GGUFTensor(name, shape, kind, start))
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 0 < alignment <= 2**20:
        raise ValueError(f"has an alignment of {alignment!r:.20}")
    return GGUFHeader(metadata, tuple(tensors), -(-stream.tell() // alignment) * alignment)


def _unpack(stream: BinaryIO, layout: str) -> tuple[Any, ...]:
    return struct.unpack(f"<{layout}", stream.read(struct.calcsize(f"<{layout}")))


def _count(number: int, most: int = _MOST) -> int:
    if number > most:
        raise ValueError(f"says that it has {number:,} of something: it is broken")
    return number


def _text(stream: BinaryIO) -> str:
    (length,) = _unpack(stream, "Q")
    found = stream.read(_count(length, _MOST_TEXT))
    if len(found) < length:
        raise struct.error
    return found.decode()


def _value(stream: BinaryIO, kind: int) -> Any:
    """A single value; None behind an array."""
    if kind == _STRING:
        return _text(stream)
    if kind == _ARRAY:
        inner, length = _unpack(stream, "IQ")
        if inner == _ARRAY:
            raise ValueError("has arrays of arrays in its metadata")
        size = None if inner == _STRING else struct.calcsize(_scalar(inner))
        if size is not None:
            stream.seek(_count(length) * size, 1)
        for _ in range(_count(length) if size is None else 0):
            stream.seek(_count(_unpack(stream, "Q")[0], _MOST_TEXT), 1)
        return None
    return _unpack(stream, _scalar(kind))[0]


def _scalar(kind: int) -> str:
    if kind >= len(_SCALARS) or _SCALARS[kind] == "_":
        raise ValueError(f"has metadata of the unknown type {kind}")
    return _SCALARS[kind]


def _check_tensors(file: Path, header: GGUFHeader) -> None:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    size = file.stat().st_size
    for tensor in header.tensors:
        try:
            kind = GGMLQuantizationType(tensor.kind)
            numbers, bytes_of_block = GGML_QUANT_SIZES[kind]
        except (ValueError, KeyError):
            raise ModelError(
                f"{file}: {tensor.name} is of ggml type {tensor.kind}, which is not known: give "
                "another quantisation of the model"
            ) from None
        count = math.prod(tensor.shape)
        if header.data + tensor.start + count // numbers * bytes_of_block > size:
            raise ModelError(f"{file}: is cut short in {tensor.name}: fetch it anew")
        if not _is_read(kind):
            raise ModelError(
                f"{file}: {tensor.name} is {kind.name}, which cannot be turned into numbers here: "
                "give another quantisation of the model"
            )


def _is_read(kind: Any) -> bool:
    """Whether the package gguf dequantises this kind."""
    import numpy as np
    from gguf import GGML_QUANT_SIZES, dequantize

    if kind.name in _PLAIN:
        return True
    try:
        dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


@contextmanager
def without_progress_bar() -> Iterator[None]:
    """Keep the bar away that transformers draws over a GGUF file's tensors, and cannot turn off."""
    from transformers import modeling_gguf_pytorch_utils as reading

    drawn: Any = reading.tqdm
    reading.tqdm = lambda items, **options: items  # type: ignore
    try:
        yield
    finally:
        reading.tqdm = drawn
