"""Errors that a client is told, in one shape: `{"error": "one line", "code": "snake_case"}`.

`error` is a text, as the Open Inference Protocol requires. Clients of that protocol ignore `code`.

What an analyst is told depends on the request alone, never on people's data (rule 8). So unexpected errors and disk
errors have a fixed text.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, TypeAlias

import orjson

from indknn.errors import InvalidInputError, RequestConflictError, StoreError, UnknownOwnerError

RawHeaders: TypeAlias = tuple[tuple[bytes, bytes], ...]

_CODES = {
    413: "body_too_large",
    422: "invalid_input",
    431: "headers_too_large",
    499: "client_disconnected",
    500: "internal_error",
    503: "unavailable",
}
"""The codes that differ from the names of HTTP. `not_found` for 404, for example, is not listed."""
_LONGEST, _LONGEST_VALUE = 600, 80  # characters of a message, and of a value in it


class Problem(Exception):  # noqa: N818 - a response, not a failure of the program
    """An error response."""

    def __init__(self, status: int, message: str, code: str | None = None, headers: RawHeaders = ()):
        super().__init__(message)
        self.status = status
        self.code = code or _CODES.get(status) or HTTPStatus(status).name.lower()
        line = " ".join(message[: 2 * _LONGEST].split())  # one line, whatever it quotes
        self.message = line if len(line) <= _LONGEST else line[: _LONGEST - 3] + "..."
        self.headers = headers

    @property
    def body(self) -> bytes:
        """The JSON of the response."""
        message = self.message.encode(errors="replace").decode()
        return orjson.dumps({"error": message, "code": self.code})


def as_problem(error: BaseException) -> Problem:
    """What a client is told about an error."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, RequestConflictError):
        return Problem(409, str(error), "id_conflict")
    if isinstance(error, UnknownOwnerError):
        return Problem(404, str(error), "unknown_owner")
    if isinstance(error, InvalidInputError):
        return Problem(422, str(error))
    if isinstance(error, StoreError):
        text = "the store cannot be written or read at the moment; nothing was answered"
        return Problem(503, text, headers=((b"retry-after", b"5"),))
    return Problem(500, "something went wrong in the server; its log says where")


def shown(value: Any) -> str:
    """A value that a client sent, for a message. It is always short and cheap, even if the value is large or deep.

    >>> shown([[[]]] * 9), shown({"a": 1}), shown(1.5), len(shown("a" * 1000))
    ('a list of 9', 'an object of 1', '1.5', 82)
    """
    if isinstance(value, bytes):
        value = value.decode("latin-1")
    if isinstance(value, str):
        cut = len(value) > _LONGEST_VALUE
        text = value[: _LONGEST_VALUE - 3] if cut else value
        return repr(text)[:-1] + "...'" if cut else repr(text)
    if isinstance(value, dict):
        return f"an object of {len(value)}"
    if isinstance(value, list | tuple):
        plain = len(value) <= 8 and all(isinstance(item, int | float | None) for item in value)
        return repr(value) if plain else f"a list of {len(value)}"
    return repr(value) if isinstance(value, int | float | None) else type(value).__name__


def first_fault(errors: Sequence[Any]) -> str:
    """The first error of a validation in one line: where it is, and what is allowed.

    It does not repeat the value, which may be personal.
    """
    error = errors[0]
    where = ".".join(str(part) for part in error["loc"]) or "the body"
    return f"{where}: {error['msg']}"


def log_error(error: BaseException) -> None:
    """Log where an error happened, without its text, which may contain features or names."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    cause = "" if error.__cause__ is None else f" from {type(error.__cause__).__name__}"
    logging.getLogger("indknn.server").error("%s%s\n%s", type(error).__name__, cause, frames)
