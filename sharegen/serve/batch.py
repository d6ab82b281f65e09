"""A batch as OpenAI's object has it, from which a server that begins again goes on."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Status = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "cancelling", "cancelled"
]

_OURS = ("settings",)  # what clients are not told


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class BatchCounts(_Part):
    """Requests of a batch: all, those that have an answer, and those that have an error."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class Fault(_Part):
    """What is wrong with a batch as a whole. line: of its file, from 1."""

    code: str | None = None
    message: str
    param: str | None = None
    line: int | None = None


class Faults(_Part):
    """Several of them, as OpenAI lists them."""

    object: Literal["list"] = "list"
    data: list[Fault]


class Batch(_Part):
    """One batch. settings: a hash of what decides its answers beside its file: the model, and what
    stands where a request says nothing."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: Literal["/v1/chat/completions", "/v1/completions"]
    model: str | None = None
    errors: Faults | None = None
    input_file_id: str
    completion_window: Literal["24h"] = "24h"
    status: Status = "validating"
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: BatchCounts = BatchCounts()
    metadata: dict[str, str] | None = None
    settings: str | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing more becomes of it."""
        return self.status in ("failed", "completed", "cancelled")

    @property
    def output_name(self) -> str:
        """The id of the file of its answers, when there is one."""
        return f"file-{self.id.removeprefix('batch_')}-output"

    @property
    def error_name(self) -> str:
        """The id of the file of its errors, when there is one."""
        return f"file-{self.id.removeprefix('batch_')}-error"

    def become(self, status: Status, **changes: Any) -> Batch:
        """The batch in another state, from now on."""
        at = {} if status == "validating" else {f"{status}_at": int(time.time())}
        return self.model_copy(update={"status": status, **at, **changes})

    def fail(self, faults: Iterable[Fault]) -> Batch:
        """The batch that cannot be answered."""
        return self.become("failed", errors=Faults(data=list(faults)))

    def shown(self) -> dict[str, Any]:
        """The object that clients get."""
        return self.model_dump(mode="json", exclude=set(_OURS))
