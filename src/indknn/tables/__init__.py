"""Turns tables into vectors. A public schema describes the columns, and nothing is fitted to private rows."""

from typing import TYPE_CHECKING, Any

from indknn.tables.categorical import Category, Ordered, YesNo
from indknn.tables.column import Column, Ignored
from indknn.tables.numeric import Date, Number
from indknn.tables.sample import infer
from indknn.tables.schema import Schema
from indknn.tables.texts import Text
from indknn.tables.written import read_schema

if TYPE_CHECKING:
    from indknn.tables.encoder import TableEncoder

__all__ = [
    "Category",
    "Column",
    "Date",
    "Ignored",
    "Number",
    "Ordered",
    "Schema",
    "TableEncoder",
    "Text",
    "YesNo",
    "infer",
    "read_schema",
]


def __getattr__(name: str) -> Any:
    if name == "TableEncoder":  # scikit-learn takes a second to import
        from indknn.tables.encoder import TableEncoder  # noqa: PLC0415

        return TableEncoder
    raise AttributeError(f"module 'indknn.tables' has no attribute {name!r}")
