"""Arrow's tables as rows: Parquet files, folders of `save_to_disk`, what `datasets` reads.

Arrow holds a key that only another row has as a null. Within a value such a key is no key: a call
of one function does not get the parameters of the others. Bytes (images, audio) are not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sharegen.common import json_values
from sharegen.errors import DataError
from sharegen.workload.files.content import FileContent, not_utf8
from sharegen.workload.files.lines import Found

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH = 1_000  # rows that are converted at once


class Binary:
    """Stands for bytes that a row holds: no text, and too much to keep where nobody asks for it."""

    def __repr__(self) -> str:
        return "<binary>"


BINARY = Binary()


class _Fault(str):
    """Stands for a value that cannot be read: why."""


def read_parquet(content: FileContent) -> Iterator[tuple[str, Found]]:
    """The rows of a Parquet file, of which some thousand are in memory as Arrow's at once."""
    if content.size == 0:
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    with arrow_errors(content.path, "Parquet"):
        file = pq.ParquetFile(pa.PythonFile(content.file, mode="r"))
        schema = file.schema_arrow
        wanted = [field.name for field in schema if not _is_bytes(field.type)]
        for index, found in enumerate(
            rows_of(content.path, schema, file.iter_batches(_BATCH, columns=wanted))
        ):
            yield f"row {index + 1}", found


def read_stream(content: FileContent) -> Iterator[tuple[str, Found]]:
    """The rows of a file in Arrow's stream format, as `save_to_disk` writes it."""
    import pyarrow as pa

    with arrow_errors(content.path, "an Arrow stream"):
        stream = pa.ipc.open_stream(pa.PythonFile(content.stream(), mode="r"))
        batches = map(_validated, stream)
        for index, found in enumerate(rows_of(content.path, stream.schema, batches)):
            yield f"row {index + 1}", found


def _validated(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch, which the library trusts as it is read: values of a broken one end the process."""
    batch.validate(full=True)
    return batch


@contextmanager
def arrow_errors(path: Path, kind: str) -> Iterator[None]:
    """Turn what the library finds wrong with a file into one line."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise DataError(f"{path}: is not {kind} that can be read: {lines[0]}") from None


def rows_of(where: object, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[Found]:
    """The rows of a table in which a column that the batches lack is one of bytes.

    Raises DataError where two columns have one name.
    """
    twice = next((name for name in schema.names if schema.names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{where}: two columns are called {twice!r:.80}: rename one")
    for batch in batches:
        columns: list[Sequence[Any]] = []
        for field in schema:
            is_read = field.name in batch.schema.names and not _is_bytes(field.type)
            columns.append(
                _values(batch.column(field.name)) if is_read else [BINARY] * batch.num_rows
            )
        for values in zip(*columns, strict=True):
            row = dict(zip(schema.names, values, strict=True))
            faults = (name for name, value in row.items() if isinstance(value, _Fault))
            wrong = next(faults, None)
            yield row if wrong is None else f"the column {wrong!r:.80} {row[wrong]}"


def _values(column: pa.Array) -> list[Any]:
    """The values of a column; a fault in the place of each that cannot be read."""
    try:
        values = column.to_pylist()
        return values if _is_plain(column.type) else [_read(column.type, v) for v in values]
    except (ValueError, OverflowError):
        return [_value(column.type, scalar) for scalar in column]


def _value(kind: pa.DataType, scalar: pa.Scalar) -> Any:
    try:
        return _read(kind, scalar.as_py())
    except UnicodeDecodeError as error:
        return _Fault(not_utf8(error))
    except (ValueError, OverflowError) as error:
        return _Fault(f"cannot be read: {error}")


def _read(kind: pa.DataType, value: Any) -> Any:
    """A value without what Arrow brought into it: keys of other rows, JSON as text, bytes."""
    import pyarrow as pa

    if value is None:
        return None
    if isinstance(kind, pa.BaseExtensionType):
        is_json = kind.extension_name == "arrow.json"
        return json_values.parse(value) if is_json else _read(kind.storage_type, value)
    if _is_bytes(kind):
        return BINARY
    if pa.types.is_struct(kind):
        inner = {field.name: _read(field.type, value[field.name]) for field in kind}
        return {name: found for name, found in inner.items() if found is not None}
    if pa.types.is_map(kind):
        return {str(key): _read(kind.item_type, found) for key, found in value}
    if _is_list(kind):
        return [_read(kind.value_type, found) for found in value]
    return value


def _is_plain(kind: pa.DataType) -> bool:
    """Whether its values are what they are, for whoever reads them."""
    import pyarrow as pa

    return not (pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType))


def _is_list(kind: pa.DataType) -> bool:
    import pyarrow as pa

    names = ("list", "large_list", "fixed_size_list", "list_view", "large_list_view")
    return any(getattr(pa.types, f"is_{name}")(kind) for name in names)


def _is_bytes(kind: pa.DataType) -> bool:
    """Whether it is of bytes, or an image, audio or a video as `datasets` keeps them, or a list."""
    import pyarrow as pa

    if isinstance(kind, pa.BaseExtensionType):
        return _is_bytes(kind.storage_type)
    if _is_list(kind):
        return _is_bytes(kind.value_type)
    if pa.types.is_struct(kind):
        names = {field.name for field in kind}
        return names == {"bytes", "path"} and _is_bytes(kind.field("bytes").type)
    names_ = ("binary", "large_binary", "fixed_size_binary", "binary_view")
    return any(getattr(pa.types, f"is_{name}")(kind) for name in names_)
