"""Queries as rows of a table: objects with column names, or one tensor per column."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any, TypeAlias

import numpy as np

from indknn.server.problems import Problem
from indknn.tables.columns import Text
from indknn.tables.schema import Schema
from indknn.types import FloatArray

Rows: TypeAlias = list[dict[str, Any]]
DATATYPES = {"BOOL", "BYTES", "FP32", "FP64", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"}


def rows_of(asked: dict[str, Any], columns: Collection[str] | None) -> Rows | None:
    """The rows of a request, from `rows` or from `inputs` that are named like columns. None if it sends vectors.

    `columns` are the names in the schema. None if there is no schema.
    """
    if "rows" in asked:
        rows = asked["rows"]
        if columns is None:
            raise Problem(422, "this store has no schema, so it takes 'inputs' and no 'rows'")
        if "inputs" in asked or not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise Problem(422, "'rows' must be a list of objects with column names, without 'inputs' beside it")
        return rows
    inputs = asked.get("inputs")
    if columns is None or not isinstance(inputs, list) or not all(isinstance(one, dict) for one in inputs):
        return None
    if any(one.get("name") == "features" for one in inputs) and "features" not in columns:
        return None
    found = {str(one.get("name")): _data(one) for one in inputs}
    lengths = {len(data) for data in found.values()}
    if len(found) < len(inputs) or len(lengths) != 1:
        raise Problem(422, "'inputs' must have every column once, all with the same number of rows")
    return [dict(zip(found, values, strict=True)) for values in zip(*found.values(), strict=True)]


def _data(tensor: dict[str, Any]) -> list[Any]:
    name, kind, shape, data = (tensor.get(field) for field in ("name", "datatype", "shape", "data"))
    if kind not in DATATYPES:
        raise Problem(422, f"column {name!r}: 'datatype' must be one of {', '.join(sorted(DATATYPES))}")
    if not isinstance(data, list) or shape not in ([len(data)], [len(data), 1]):
        raise Problem(422, f"column {name!r}: 'data' must be a flat list, and 'shape' its length")
    return data


async def encoded(rows: Rows | FloatArray, schema: Schema | None) -> FloatArray:
    """The vectors of these rows, if they are not vectors already. Texts take long and must not delay others."""
    if schema is None or not isinstance(rows, list):
        return np.asarray(rows)
    if any(isinstance(column, Text) for column in schema.used.values()):
        return await asyncio.to_thread(schema.encode, rows)
    return schema.encode(rows)


def record_vectors(
    features: Sequence[list[float] | None], values: Sequence[dict[str, Any] | None], schema: Schema | None
) -> FloatArray:
    """The vectors of records, each of which has either features or values by column."""
    rows = [row for row in values if row is not None]
    if rows:
        if schema is None:
            raise Problem(422, "this store has no schema, so a record must have features instead of values")
        if len(rows) < len(values):
            raise Problem(422, "all records must have features, or all must have values")
        return schema.encode(rows)
    widths = {len(vector or ()) for vector in features}
    if len(widths) > 1:
        raise Problem(422, f"all records must have the same number of features, got {sorted(widths)}")
    return np.array(features, dtype=np.float64)
