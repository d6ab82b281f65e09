"""What a client is told instead of an answer, in the shape of OpenAI's errors."""

from __future__ import annotations

from typing import Any

from sharegen.results.export.openai import error_of

_KINDS = {401: "authentication_error", 429: "rate_limit_error"}


class Refusal(Exception):
    """A request that is not answered: why, with the HTTP status that says whose fault it is."""

    def __init__(
        self, status: int, message: str, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    @property
    def body(self) -> dict[str, Any]:
        """The JSON of the answer."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return error_of(str(self), _KINDS.get(self.status, kind), self.param, self.code)
