"""The static files of the console: a page, its scripts and its style. Nothing is fetched from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

from indknn.server.problems import Problem

FOLDER = Path(__file__).parent / "console"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml; charset=utf-8",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".json": "application/json",
    ".woff2": "font/woff2",
}
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def static_file(name: str) -> tuple[bytes, str]:
    """A file of the console and its type. Names with anything like a path in them are not found."""
    kind = _TYPES.get(Path(name).suffix)
    if kind is None or not _NAME.fullmatch(name):
        raise Problem(404, f"there is no file {name!r}")
    try:
        return (FOLDER / name).read_bytes(), kind
    except OSError:
        raise Problem(404, f"there is no file {name!r}") from None
