"""Turns tables into vectors. A public schema describes the columns, and nothing is fitted to private rows."""

from typing import TYPE_CHECKING, Any

from indknn.tables.columns import Category, Column, Date, Ignored, Number, Ordered, Text, YesNo
from indknn.tables.infer import infer
from indknn.tables.schema import Schema, read_schema

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
