"""Files that come as forms, onto the disk as they come."""

from __future__ import annotations

import asyncio
import math

from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from sharegen.serve.bodies import bounded, check_type, declared_length, in_time
from sharegen.serve.faults import Refusal
from sharegen.serve.file_store import FileStore, StoredFile
from sharegen.serve.limits import Limits

_FORM = 16 << 10
"""Bytes of a form beside its file."""

_TOGETHER = 4
"""Uploads at once; each has a file of its own until it is whole."""

_FIELDS = 8
_NAME = 200  # characters of a file's name


class Uploads:
    """What receives files for a store."""

    def __init__(self, store: FileStore, limits: Limits) -> None:
        self._store, self._limits = store, limits
        self._open = 0

    async def take(self, request: Request) -> StoredFile:
        """The file of a form, kept. Raises Refusal, ClientDisconnect and OSError."""
        if self._open >= _TOGETHER:
            raise Refusal(429, f"{_TOGETHER} files are uploaded already: ask again later")
        self._open += 1
        try:
            return await self._take(request)
        finally:
            self._open -= 1

    async def _take(self, request: Request) -> StoredFile:
        check_type(request, "multipart/form-data")
        await asyncio.to_thread(self._store.refuse_more)
        pieces = bounded(request, self._limits.file + _FORM, "--max-file")
        parser = MultiPartParser(
            request.headers, pieces, max_files=1, max_fields=_FIELDS, max_part_size=_FORM
        )
        try:
            async with in_time(self._seconds(request)):
                form = await parser.parse()
        except MultiPartException as error:
            raise Refusal(400, f"the form cannot be read: {error.message}") from None
        try:
            _check_fields({name: form[name] for name in form if name != "file"})
            file = form.get("file")
            if file is None or isinstance(file, str):
                raise Refusal(400, "the form has no file of the name 'file'", "file")
            name = (file.filename or "batch.jsonl")[:_NAME]
            return await asyncio.to_thread(self._store.take, file.file, name)
        finally:
            await form.close()

    def _seconds(self, request: Request) -> float:
        """For which a client may upload: its time for a body, for each body that it is as long
        as."""
        length = declared_length(request) or self._limits.file
        return self._limits.client_seconds * max(1, math.ceil(length / self._limits.body))


def _check_fields(fields: dict[str, object]) -> None:
    """Raise Refusal for what is not `purpose=batch`."""
    other = next((name for name in fields if name != "purpose"), None)
    if other is not None:
        hint = ": files are kept until they are deleted" if other.startswith("expires") else ""
        raise Refusal(400, f"unknown field {other!r:.80}{hint}", other[:80], "unknown_parameter")
    if fields.get("purpose") != "batch":
        raise Refusal(
            400, f"purpose is {fields.get('purpose')!r:.80}: files are for batches: say batch",
            "purpose", "invalid_value",
        )  # fmt: skip
