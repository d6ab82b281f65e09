"""The content of one file: opened once and read in a stream, unpacked, as UTF-8, hashed as read.

The hash is of the bytes that the rows come from, so that no rows stand under another file's
fingerprint, whatever the time stamps say. UTF-16 and UTF-32 are recognised by their byte order mark
and recoded. The reader refuses a line in any other encoding than UTF-8.
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import io
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sharegen.errors import DataError

MAX_UNPACKED = 2**30
"""Bytes that a packed file may hold: its size says nothing of what it becomes in memory."""

MAX_LINE = 2**29
"""Bytes of one line. The largest rows of known datasets, tests of programs, have a fifth of it."""

_CHUNK = 2**20

_MOST_PACKED = 1_040
"""Bytes that one byte of a gzip file can stand for."""

_MARKS = (  # the longer ones first: UTF-32's begins with UTF-16's
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


class FileContent:
    """A file that is open.

    file: as it is, for a reader that seeks in it. The other ways to read go through it once.
    """

    def __init__(self, path: Path, file: io.FileIO) -> None:
        self.path = path
        self.file = file
        self._opened = os.fstat(file.fileno())
        self._digest = hashlib.blake2b(digest_size=16)
        self._is_streamed = False

    @property
    def size(self) -> int:
        """The size in bytes when the file was opened."""
        return self._opened.st_size

    def fingerprint(self) -> str:
        """A hash of the whole file. Raises DataError where it was written to meanwhile."""
        if not self._is_streamed:
            self.file.seek(0)
        while self._read():
            pass
        now = os.fstat(self.file.fileno())
        if (now.st_size, now.st_mtime_ns) != (self._opened.st_size, self._opened.st_mtime_ns):
            raise DataError(f"{self.path}: was written to while it was read: try again")
        return self._digest.hexdigest()

    def chunks(self) -> Iterator[bytes]:
        """What it holds: unpacked, as UTF-8, without a byte order mark."""
        chunks = self._unpacked() if is_packed(self.path) else iter(self._read, b"")
        head = next(chunks, b"")
        mark, encoding = marked(head)
        if encoding == "utf-8":
            yield head[len(mark) :]
            yield from chunks
        else:
            yield from self._recoded(head[len(mark) :], chunks, encoding)

    def whole(self) -> bytes:
        """All that it holds."""
        return b"".join(self.chunks())

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """The lines with something on them, without their ends, numbered from 1."""
        for number, line in enumerate(self.ended_lines(), start=1):
            if line.strip():
                yield number, line.rstrip(b"\n").removesuffix(b"\r")

    def ended_lines(self) -> Iterator[bytes]:
        r"""All lines with their ends: \n, or \r in a file whose first lines end so.

        Ends within quotes may be of a cell.
        """
        end = b""
        begun: list[bytes] = []
        for chunk in self.chunks():
            end = end or _end_of_lines(b"".join(chunk.split(b'"')[::2])) or _end_of_lines(chunk)
            *ended, rest = chunk.split(end) if end else [chunk]
            for line in ended:
                yield b"".join((*begun, line, end))
                begun.clear()
            begun.append(rest)
            if len(begun) * _CHUNK > MAX_LINE:
                raise DataError(f"{self.path}: a line has more than {MAX_LINE // 2**20} MiB")
        if any(begun):
            yield b"".join(begun)

    def stream(self) -> io.BufferedReader:
        """The file as it is, to be read from its beginning to its end."""
        return io.BufferedReader(_Stream(self._read), _CHUNK)

    def _read(self) -> bytes:
        self._is_streamed = True
        chunk = self.file.read(_CHUNK)
        self._digest.update(chunk)
        return chunk

    def _unpacked(self) -> Iterator[bytes]:
        too_much = DataError(
            f"{self.path}: unpacks to more than {MAX_UNPACKED // 2**30} GiB: unpack it, and give "
            "the file that comes of it"
        )
        if MAX_UNPACKED < self._claimed() < _MOST_PACKED * self.size:
            raise too_much
        total = 0
        with gzip.GzipFile(fileobj=self.stream()) as unpacked:
            while chunk := unpacked.read(_CHUNK):
                total += len(chunk)
                if total > MAX_UNPACKED:
                    raise too_much
                yield chunk

    def _claimed(self) -> int:
        """What gzip's last bytes say of the unpacked size, modulo 4 GiB."""
        self.file.seek(-min(4, self.size), io.SEEK_END)
        size = int.from_bytes(self.file.read(4), "little")
        self.file.seek(0)
        return size

    def _recoded(self, head: bytes, chunks: Iterator[bytes], encoding: str) -> Iterator[bytes]:
        decoder = codecs.getincrementaldecoder(encoding)()
        try:
            yield decoder.decode(head).encode()
            for chunk in chunks:
                yield decoder.decode(chunk).encode()
            yield decoder.decode(b"", final=True).encode()
        except UnicodeError as error:
            raise DataError(
                f"{self.path}: begins as {encoding[:6].upper()}, and not all of it is "
                f"({getattr(error, 'reason', error)}): save it as UTF-8"
            ) from None


class _Stream(io.RawIOBase):
    """What a function reads, as the file that a library asks for."""

    def __init__(self, read: Callable[[], bytes]) -> None:
        self._read = read
        self._left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._left = self._left or self._read()
        count = min(len(buffer), len(self._left))
        buffer[:count], self._left = self._left[:count], self._left[count:]
        return count


@contextmanager
def opened(path: Path) -> Iterator[FileContent]:
    """The content of a file, for as long as the block lasts.

    Raises DataError, in one line, for whatever the file does to who reads it in the block.
    """
    with explained(path), path.open("rb", buffering=0) as file:
        yield FileContent(path, file)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn what a file does to its reader into one line."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path}: cannot be read: {reason}") from None


def read_text(path: Path) -> str:
    """A whole text file. Raises DataError when it cannot be read or is not UTF-8."""
    with opened(path) as content:
        return text_of(path, content.whole())


NULS = "holds NUL bytes: it is UTF-16 without a byte order mark, or broken: save it as UTF-8"


def text_of(path: Path, content: bytes) -> str:
    """The text of a file's content. Raises DataError with the line and byte that is none."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}, line {line}: {not_utf8(error)} of the text") from None
    nul = text.find("\0")
    if nul >= 0:
        line = text.count("\n", 0, nul) + 1
        raise DataError(f"{path}, line {line}: {NULS}")
    return text


def not_utf8(error: UnicodeDecodeError) -> str:
    """What is wrong, in words that complete "line 3: ..."."""
    return f"is not UTF-8 text at byte {error.start}"


def file_hash(path: Path) -> str:
    """A hash of a file's content. Raises DataError when it cannot be read."""
    with opened(path) as content:
        return content.fingerprint()


def is_packed(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


def suffix_of(path: Path) -> str:
    """The kind of file, by its name: `.jsonl` of `a.jsonl` and of `A.JSONL.gz`."""
    name = path.name.lower().removesuffix(".gz")
    return name[name.rfind(".") :] if "." in name else ""


def marked(head: bytes) -> tuple[bytes, str]:
    """The byte order mark that a content begins with, or none, and the encoding that it tells."""
    return next((pair for pair in _MARKS if head.startswith(pair[0])), (b"", "utf-8"))


def _end_of_lines(chunk: bytes) -> bytes:
    return b"\n" if b"\n" in chunk else b"\r" if b"\r" in chunk[:-1] else b""
