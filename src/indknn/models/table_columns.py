"""Where the pieces of each numeric column stand in the vector of a row, read from a plain schema.

The shared model is below `indknn.tables`, so it cannot ask a schema. A test compares this with `Schema.parts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

Spans: TypeAlias = tuple[tuple[int, int], ...]
_PIECES = 12  # of a number without knots


def numbers_in(schema: Mapping[str, Any] | None) -> Spans:
    """The first coordinate of each number or date, and the one after its last piece. Without a schema there are none.

    >>> numbers_in({"columns": {"job": {"kind": "category", "values": ["a", "b"]}, "age": {"kind": "number"}}})
    ((4, 16),)
    """
    found, at = [], 0
    for about in (schema or {}).get("columns", {}).values():
        kind = about if isinstance(about, str) else about["kind"]
        if kind == "ignored":
            continue
        values = {} if isinstance(about, str) else about
        if kind in {"number", "date"}:
            knots = values.get("knots")
            width = _PIECES if knots is None else len(knots) + 1
            found.append((at, at + width))
        elif kind == "text":
            if values.get("width") is None:
                return ()  # only the extractor knows it
            width = values["width"]
        else:
            width = {"category": 1, "ordered": 0, "yesno": 1}[kind] + len(values.get("values", ()))
        at += int(width) + (values.get("missing", "place") == "place")
    return tuple(found)
