"""One error shape for everything: `{"error": {"code": "snake_case", "message": "one line"}}`.

What an analyst is told depends on the request alone, never on people's data: the messages of the store go to the
curator, and what was not expected is a fixed text.
"""

from __future__ import annotations

from typing import Any

import orjson

from indknn.errors import InvalidInputError, RequestConflictError, StoreError, UnknownOwnerError

CODES = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    409: "conflict",
    413: "body_too_large",
    415: "unsupported_media_type",
    422: "invalid_input",
    429: "too_many_requests",
    431: "headers_too_large",
    500: "internal_error",
    503: "unavailable",
}
UNAVAILABLE = "the store cannot be written or read at the moment; nothing was answered"
INTERNAL = "something went wrong on our side; the operator finds it in the log"


class Problem(Exception):  # noqa: N818 - it is an answer, not a failure of the program
    """An answer that is an error."""

    def __init__(
        self, status: int, message: str, code: str | None = None, headers: tuple[tuple[bytes, bytes], ...] = ()
    ):
        super().__init__(message)
        self.status = status
        self.code = code or CODES.get(status, "error")
        self.message = " ".join(message.split())  # one line
        self.headers = headers

    @property
    def body(self) -> bytes:
        """As JSON."""
        return orjson.dumps(shape(self.code, self.message))


def shape(code: str, message: str) -> dict[str, Any]:
    """The one shape."""
    return {"error": {"code": code, "message": message.encode(errors="replace").decode()}}


def as_problem(error: BaseException) -> Problem:
    """What a caller is told about an error of ours. The unexpected is told by a fixed text."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, RequestConflictError):
        return Problem(409, str(error), "id_conflict")
    if isinstance(error, UnknownOwnerError):
        return Problem(404, str(error), "unknown_owner")
    if isinstance(error, InvalidInputError):
        return Problem(422, str(error))
    if isinstance(error, StoreError):
        return Problem(503, UNAVAILABLE, headers=((b"retry-after", b"5"),))
    return Problem(500, INTERNAL)
