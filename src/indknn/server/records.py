"""Records that come over HTTP: checked, then added, replaced or removed in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import orjson
from pydantic import BaseModel, ValidationError

from indknn.errors import PrivacyError
from indknn.server.problems import Problem, first_fault
from indknn.server.schemas import Deletion, Upload
from indknn.store import Store
from indknn.store.intake import Item
from indknn.store.requests import Upload as Once
from indknn.tables.schema import Schema
from indknn.types import FloatArray

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class Batch:
    """Records in the form that the store takes: an array instead of lists of numbers, or rows of a table."""

    X: FloatArray | list[dict[str, Any]]
    items: list[Item]
    each_row: bool


def read_upload(body: bytes | bytearray, max_records: int) -> Batch:
    """The records of a body, or a problem that names the first error."""
    upload = parsed(Upload, body)
    _refuse_too_many(upload.records, max_records)
    features, values = ([getattr(one, name) for one in upload.records] for name in ("features", "values"))
    if None in values and any(row is not None for row in values):
        raise Problem(422, "all records must have features, or all must have values")
    X = values if None not in values else record_vectors(features, values, None)
    items = [Item(record.label, record.owner, record.id, record.record_id) for record in upload.records]
    return Batch(X, items, upload.each_row)


def read_deletion(body: bytes | bytearray, max_records: int) -> list[int]:
    """The ids of the records to remove."""
    ids = parsed(Deletion, body).ids
    _refuse_too_many(ids, max_records)
    return ids


def parsed(model: type[M], body: bytes | bytearray) -> M:
    """The body as this model, or a problem that names the first error."""
    try:
        return model.model_validate(orjson.loads(body))
    except ValidationError as error:
        raise Problem(422, first_fault(error.errors(include_input=False, include_url=False))) from None
    except ValueError as error:
        raise Problem(400, f"the body is not JSON: {error}", "bad_json") from None


def _refuse_too_many(records: Sequence[Any], most: int) -> None:
    if len(records) > most:
        raise Problem(422, f"a request must have at most {most} records, got {len(records)}")


def upsert(store: Store, batch: Batch, once: Once | None) -> dict[str, Any]:
    """Add and replace records, all or none. An upload that was done `once` is not done again."""
    if once is not None:
        with store.reading() as db:
            known = once.numbers(db)
        if known is not None:
            return {"ids": known.tolist(), **_counts(store), "already_here": 0, "warnings": [], "repeated": True}
    X = batch.X if not isinstance(batch.X, list) else record_vectors([], batch.X, store.schema)
    try:
        added = store.upsert(X, batch.items, each_row=batch.each_row, once=once)
    except PrivacyError as error:
        raise Problem(409, str(error), "who_is_who") from None
    told = {"already_here": added.copies, "warnings": [str(one) for one in added.advice], "repeated": False}
    return {"ids": added.numbers.tolist(), **_counts(store), **told}


def remove(store: Store, ids: list[int]) -> dict[str, Any]:
    """Remove records, all or none."""
    return {"removed": store.forget(records=ids)["records"], **_counts(store)}


def _counts(store: Store) -> dict[str, int]:
    return {"records": len(store.engine.shard), "owners": store.engine.ledger.n_owners}


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
