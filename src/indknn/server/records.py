"""Records as they come over the wire: checked, then added, replaced or removed in one transaction."""

from __future__ import annotations

from typing import Annotated, Any, Self, TypeVar

import orjson
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
    model_validator,
)

from indknn.errors import PrivacyError
from indknn.server.options import Options
from indknn.server.problems import Problem, first_fault
from indknn.server.tables import record_vectors
from indknn.store import Store
from indknn.store.intake import Item

_FEATURE = Annotated[float, Field(strict=True)]  # no text that looks like a number
_NUMBER = Annotated[int, Field(strict=True, ge=0, lt=1 << 63)]
_VALUE = StrictInt | StrictFloat | StrictBool | StrictStr | None
M = TypeVar("M", bound=BaseModel)


class Record(BaseModel):
    """One record of a person. With the `id` of a held record it replaces that one, whose owner stays if none is named.

    `record_id` is an id of your choice: sent again, it replaces the record that has it. In a store with a schema,
    `values` by the names of the columns take the place of `features`.
    """

    model_config = ConfigDict(extra="forbid")
    features: list[_FEATURE] | None = Field(default=None, min_length=1, max_length=1 << 17, examples=[[0.1, 0.9]])
    values: dict[str, _VALUE] | None = Field(default=None, min_length=1, examples=[{"age": 39, "ward": "surgery"}])
    label: StrictInt | StrictStr | StrictBool = Field(examples=["healthy"])
    owner: StrictInt | StrictStr | None = Field(default=None, examples=["ann"])
    id: _NUMBER | None = None
    record_id: StrictInt | StrictStr | None = Field(default=None, examples=["visit-17"])

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.features is None) == (self.values is None):
            raise ValueError("a record must have either features or values")
        return self


class Upload(BaseModel):
    """Records to add. With `each_row` every one is of a new person; only a store that nobody was in yet takes that."""

    model_config = ConfigDict(extra="forbid")
    records: list[Record] = Field(min_length=1)
    each_row: StrictBool = False


class Deletion(BaseModel):
    """Ids of records to remove."""

    model_config = ConfigDict(extra="forbid")
    ids: list[_NUMBER] = Field(min_length=1)


def parsed(model: type[M], body: bytes, options: Options) -> M:
    """The body as this model, or a problem that names the first thing that is wrong."""
    try:
        result = model.model_validate(orjson.loads(body))
    except ValidationError as error:
        raise Problem(422, first_fault(error.errors())) from None
    except ValueError as error:
        raise Problem(400, f"the body is not JSON: {error}", "bad_json") from None
    n = len(next(iter(result.__dict__.values())))
    if n > options.max_records:
        raise Problem(422, f"a request must have at most {options.max_records} records, got {n}")
    return result


def upsert(store: Store, upload: Upload) -> dict[str, Any]:
    """Add and replace, all or none."""
    features, values = ([getattr(one, name) for one in upload.records] for name in ("features", "values"))
    X = record_vectors(features, values, store.schema)
    items = [Item(record.label, record.owner, record.id, record.record_id) for record in upload.records]
    try:
        added = store.upsert(X, items, each_row=upload.each_row)
    except PrivacyError as error:
        raise Problem(409, str(error), "who_is_who") from None
    told = {"already_here": added.copies, "warnings": [str(one) for one in added.advice]}
    return {"ids": added.numbers.tolist(), **_counts(store), **told}


def remove(store: Store, deletion: Deletion) -> dict[str, Any]:
    """Remove, all or none."""
    return {"removed": store.forget(records=deletion.ids)["records"], **_counts(store)}


def _counts(store: Store) -> dict[str, int]:
    return {"records": len(store.engine.shard), "owners": store.engine.ledger.n_owners}
