"""What requests and answers look like, as pydantic models. The OpenAPI document follows from them.

Only predictions are described by hand: they may have binary data, and no framework reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Self, TypeAlias, TypeVar

import numpy as np
import orjson
from pydantic import (
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
    model_validator,
)

from indknn.ledger.figures import Account, Promise
from indknn.server.infer import VERSION
from indknn.server.problems import Problem, first_fault
from indknn.server.service import Service
from indknn.server.wire import INTERVALS, LABEL, NUMBERS, PROBABILITIES
from indknn.store.keyfile import ROLES
from indknn.types import Given

_NAME = Annotated[StrictStr, Field(max_length=1024)]
_SHORT_NAME = Annotated[StrictStr, Field(min_length=1, max_length=128)]
_NUMBER = Annotated[int, Field(strict=True, ge=0, lt=1 << 63)]
_EPSILON = Annotated[float, Field(strict=True, gt=0)]
_FEATURES = Annotated[list[Annotated[float, Field(strict=True)]], Field(fail_fast=True)]  # no texts like numbers
_FILE_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$"  # nothing like a path
_VALUE = StrictInt | StrictFloat | StrictBool | StrictStr | None
Label: TypeAlias = int | float | bool | str
M = TypeVar("M", bound=BaseModel)
Examples: TypeAlias = dict[int | str, dict[str, Any]]


class Wanted(BaseModel):
    """The body of a request. It has no other fields than these."""

    model_config = ConfigDict(extra="forbid")


class Record(Wanted):
    """One record of a person. With the `id` of an existing record it replaces that record.

    If no owner is named then, the owner stays the same. `record_id` is your own id. If you send it again, it replaces
    the record that has it. In a store with a schema, `values` by column name replace `features`.
    """

    features: _FEATURES | None = Field(default=None, min_length=1, max_length=1 << 17, examples=[[0.1, 0.9]])
    values: dict[str, _VALUE] | None = Field(default=None, min_length=1, examples=[{"age": 39, "ward": "surgery"}])
    label: StrictInt | StrictFloat | _NAME | StrictBool = Field(examples=["healthy"])
    owner: StrictInt | _NAME | None = Field(default=None, examples=["ann"])
    id: _NUMBER | None = None
    record_id: StrictInt | _NAME | None = Field(default=None, examples=["visit-17"])
    expires: StrictStr | None = Field(
        default=None, max_length=64, examples=["2027-01-31"], description="From when it takes no part: ISO 8601, UTC."
    )
    epsilon: _EPSILON | None = Field(default=None, description="What the owner is promised, if less than the store's.")

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.features is None) == (self.values is None):
            raise ValueError("a record must have either features or values")
        return self


class Upload(Wanted):
    """Records to add.

    With `each_row`, every record is a new person. Only a store that never had any people allows that.
    """

    records: Annotated[list[Record], FailFast()] = Field(min_length=1)
    each_row: StrictBool = False


class Lowered(Wanted):
    """What a person is promised from now on. It is never raised again."""

    epsilon: _EPSILON = Field(examples=[0.25])


class Deletion(Wanted):
    """Records to remove: by the server's numbers (`ids`), by your own `record_ids`, or all of some `owners`."""

    ids: Annotated[list[_NUMBER], FailFast()] = []
    record_ids: Annotated[list[StrictInt | _NAME], FailFast()] = Field(default=[], examples=[["visit-17"]])
    owners: Annotated[list[StrictInt | _NAME], FailFast()] = []

    @model_validator(mode="after")
    def _at_least_one(self) -> Self:
        if not (self.ids or self.record_ids or self.owners):
            raise ValueError("must name at least one of ids, record_ids or owners")
        return self


class Holding(Wanted):
    """The people whose hold begins or ends."""

    owners: Annotated[list[StrictInt | _NAME], FailFast()] = Field(min_length=1, max_length=10_000)


class NewKey(Wanted):
    """A key to be made. `owner` is the person that a key of role owner is for.

    `epsilon` is less than the store's, for all that this analyst is ever told.
    """

    role: StrictStr = Field(json_schema_extra={"enum": list(ROLES)})
    name: _SHORT_NAME = Field(examples=["alice"])
    owner: _SHORT_NAME | None = None
    rate: Annotated[float, Field(strict=True, gt=0)] | None = None
    max_queries: _NUMBER | None = None
    epsilon: _EPSILON | None = None


@dataclass(frozen=True)
class Batch:
    """Records as the store takes them: an array or rows of a table, and the numbers of records that they replace."""

    given: Given
    numbers: list[int | None]
    each_row: bool


def read_upload(body: bytes | bytearray, max_records: int) -> Batch:
    """The records of a body, or a problem that names the first error."""
    upload = parsed(Upload, body)
    _refuse_too_many(upload.records, max_records)
    features, values = ([getattr(record, name) for record in upload.records] for name in ("features", "values"))
    if None in values and any(row is not None for row in values):
        raise Problem(422, "all records must have features, or all must have values")
    widths = {len(vector or ()) for vector in features}
    if len(widths) > 1:
        raise Problem(422, f"all records must have the same number of features, got {sorted(widths)}")
    X = values if None not in values else np.array(features, dtype=np.float64)
    rows = [(r.label, r.owner, r.record_id, r.expires, r.epsilon) for r in upload.records]
    return Batch(Given(X, *map(list, zip(*rows, strict=True))), [r.id for r in upload.records], upload.each_row)


def read_deletion(body: bytes | bytearray, max_records: int) -> Deletion:
    """Which records to remove."""
    wanted = parsed(Deletion, body)
    _refuse_too_many([*wanted.ids, *wanted.record_ids, *wanted.owners], max_records)
    return wanted


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


# Answers


class Error(BaseModel):
    """Every error has this shape. `error` is a text for people, `code` a name for programs."""

    error: str = Field(examples=["the queries must have 64 features per row, got 3"])
    code: str = Field(examples=["invalid_input"])


PROBLEMS: Examples = {
    status: {"description": HTTPStatus(status).phrase, "model": Error}
    for status in (400, 401, 403, 404, 405, 408, 409, 413, 415, 422, 429, 500, 503)
}


class ModelReady(BaseModel):
    """The model can answer."""

    name: str
    ready: bool


class Server(BaseModel):
    """The server, in the terms of the protocol."""

    name: str
    version: str
    extensions: list[str]


@dataclass(frozen=True)
class Guarantee(Promise):
    """The promise in numbers and in words. If budgets are renewed, it is for each period."""

    words: str
    periods: dict[str, Any] | None = None


class Session(BaseModel):
    """Who the caller is, and what they may do."""

    role: str
    name: str | None
    model: str
    open: bool = Field(description="Whether the server has no keys.")
    n_features: int | None
    classes: list[Label]
    can: list[str] = Field(description="The permissions of the caller.")
    owner: str | None
    guarantee: Guarantee
    time: dict[str, Any] | None = Field(
        None,
        description="If budgets depend on the clock: `period`, and when the `next_begins`; `by_now` is the share of "
        "their part that votes may have used by now.",
    )


class Tensor(BaseModel):
    """A tensor that the model takes or gives. -1 stands for any length."""

    name: str
    datatype: str
    shape: list[int]


class Model(BaseModel):
    """The public facts about the model."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[Tensor]
    outputs: list[Tensor]
    parameters: dict[str, Any] = Field(description="The classes, the promise, and the limits of a request.")


class Forecast(BaseModel):
    """For how long budgets last, if analysts go on as before."""

    observer: str
    queries_left_for_average_owner: int | None = Field(description="None: nobody was charged for an answer yet.")
    words: str
    why: str


class AnswersAt(BaseModel):
    """How many answers were given since the point before."""

    at: str
    answers: int


class Status(BaseModel):
    """How much people have spent."""

    tau: float | None
    records: int
    owners: int
    forgotten: int
    retention: dict[str, int | None] = Field(
        description="What expires when: within a `day`, `week`, `month`, `year`, `later` or `never`, in about these "
        "numbers. `expired`: not erased yet. `held`: people under a hold. `keep_days`: how long records are kept."
    )
    answers: int
    analysts: list[str]
    guarantee: Guarantee
    time: dict[str, Any] | None = Field(
        None,
        description="If budgets depend on the clock: `period`, and when the `next_begins`; `by_now` is the share of "
        "their part that votes may have used by now.",
    )
    one_analyst: Account = Field(description="What counts for one analyst.")
    together: Account = Field(description="What counts for all analysts together.")
    whose: str
    spent_share_histogram: list[int]
    spent_share_median: float
    exhausted: int = Field(description="How many people no longer take part.")
    over_all_periods: dict[str, Any] | None = Field(None, description="If budgets are renewed: all periods so far.")
    own_promises: int = Field(description="How many people were promised less.")
    given_less: dict[str, float | None] = Field(description="The epsilon of analysts who are told less.")
    forecast: Forecast
    answers_over_time: list[AnswersAt]


class Entry(BaseModel):
    """An entry of the audit trail."""

    position: int
    at: str
    kind: str
    body: dict[str, Any]
    text: str = Field(description="The exact body that the hash covers.")
    hash: str


class Trail(BaseModel):
    """A page of the audit trail."""

    entries: list[Entry]
    next: int | None = Field(description="What to send as `after` for the next page.")
    last: int
    head: dict[str, Any] | None = Field(description="On the last page: how far the trail is, signed.")


class SigningKey(BaseModel):
    """A public key. `until` is the time at which it was replaced."""

    key: str
    since: str
    until: str | None


class SigningKeys(BaseModel):
    """The public keys of the store, the oldest first."""

    store: str
    algorithm: str
    keys: list[SigningKey]


class Published(BaseModel):
    """The shared model. `docs/guides/publish-model.md` has a reader for it."""

    model_config = ConfigDict(extra="allow")
    format: str
    version: int
    made: str
    promise: dict[str, Any]
    classes: list[Any]
    n_features: int


class Counts(BaseModel):
    """How many records and owners the store has now."""

    records: int
    owners: int


class Added(Counts):
    """What became of an upload."""

    ids: list[int]
    added: int = Field(description="How many are new.")
    replaced: int = Field(description="How many have replaced a record.")
    unchanged: int = Field(description="How many are equal to the record with their record id.")
    expired: int = Field(description="How many had expired already. They are not kept, and have the number -1.")
    already_here: int = Field(description="How many are new, but exact copies of records that were here.")
    warnings: list[str]
    repeated: bool = Field(description="Whether this upload was done before.")


class Receipt(BaseModel):
    """What was done, and what is kept. The audit trail has an entry with this hash."""

    model_config = ConfigDict(extra="allow")
    receipt: str
    store: str
    at: str
    audit_hash: str
    signed_with: str = Field(description="The public key of the store.")
    signature: str = Field(description="Ed25519, see `indknn check`.")


class Holds(BaseModel):
    """The people under a hold."""

    owners: list[str]


class Everywhere(BaseModel):
    """What a person has spent in several stores, added up."""

    stores: list[str]
    one_analyst: Account
    together: Account
    words: str


class Removed(Counts):
    """How many records were removed, and the receipt."""

    removed: int
    receipt: Receipt


class Statement(BaseModel):
    """What a person may see about themselves."""

    owner: str
    records: int
    one_analyst: Account
    together: Account
    rounding: str
    promise: str | None = Field(None, description="The person's own promise, if it is smaller than the store's.")
    words: str
    over_all_periods: dict[str, Any] | None = Field(None, description="If budgets are renewed: all periods so far.")
    everywhere: Everywhere | None = Field(None, description="If the server has several stores about the same people.")


class KeyFacts(BaseModel):
    """A key without its text."""

    id: str
    name: str
    role: str
    created: str
    owner: str | None
    rate: float | None
    max_queries: int | None
    revoked: str | None
    epsilon: float | None = Field(description="Less than the store's, if this analyst was given less.")


class KeyMade(KeyFacts):
    """A new key."""

    key: str = Field(description="The text of the key. It is shown only once.")


class KeyList(BaseModel):
    """All keys that were ever made."""

    keys: list[KeyFacts]


class AnalystUse(BaseModel):
    """What one analyst has used, with all keys of that name."""

    name: str | None
    answers: int
    keys: int
    max_queries: int | None
    queries_left: int | None
    epsilon: float | None


class Analysts(BaseModel):
    """What all analysts have used."""

    analysts: list[AnalystUse]
    answers: int


class Owners(BaseModel):
    """Names of people, and whether there are more."""

    owners: list[str]
    more: bool


class BackupName(Wanted):
    """How a backup is to be called. Without a name, it gets the name of the model and the time."""

    name: Annotated[StrictStr, Field(pattern=_FILE_NAME, max_length=128, examples=["monday.store"])] | None = None


class BackupMade(BaseModel):
    """A backup in the server's folder, and the newest entry of the audit trail in it."""

    backup: str = Field(description="Its name in the folder.")
    keys: bool = Field(description="Whether the file of keys was copied too.")
    audit_entries: int
    at: str
    audit_hash: str


class Verified(BaseModel):
    """The result of a check of the whole store."""

    ok: bool
    problems: list[str]
    entries: int


def body_of(model: type[BaseModel]) -> dict[str, Any]:
    """The request body of a route that reads its body itself."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    schema.pop("$defs", None)
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def completed(document: dict[str, Any], service: Service) -> dict[str, Any]:
    """FastAPI's document, with the keys, the prediction route and the facts of this store added."""
    schemas, width, classes = document["components"]["schemas"], service.n_features, service.classes.tolist()
    schemas["Record"] = record = Record.model_json_schema()
    if width is not None:
        record["properties"]["features"].update(minItems=width, maxItems=width)
        numbers = service.store.settings.bounds
        record["properties"]["label"] = {"enum": classes, "examples": classes[:1]}
        if numbers is not None:
            record["properties"]["label"] = {"type": "number", "examples": [numbers[0]]}
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"key": []}, {}]
    predict = _infer(service, document["paths"]["/v1/session"]["get"]["responses"])
    document["paths"]["/v2/models/{name}/infer"] = {"post": predict}
    version = {"name": "version", "in": "path", "required": True, "schema": {"enum": [VERSION]}}
    versioned = {**predict, "parameters": [*predict["parameters"], version]}
    document["paths"]["/v2/models/{name}/versions/{version}/infer"] = {"post": versioned}
    return document


def _infer(service: Service, responses: dict[str, Any]) -> dict[str, Any]:
    """The description of predictions, which FastAPI does not know."""
    text, width, schema = {"type": "string"}, service.n_features or 2, service.schema
    fields = _asked()
    query = [round(0.5 / (i + 1), 3) for i in range(width)]
    example: dict[str, Any] = {"inputs": [{"name": "features", "shape": [1, width], "datatype": "FP32", "data": query}]}
    if schema is not None:  # queries may also be objects with column names
        row = _object({name: {"type": ["number", "string", "boolean", "null"]} for name in schema.used}, *schema.used)
        fields["rows"] = {"type": "array", "items": row, "minItems": 1}
        example = {"rows": [dict.fromkeys(schema.used)]}
    asked = {"schema": _object(fields, *(["inputs"] if schema is None else [])), "example": {"id": "17", **example}}
    found: dict[str, Any] = {"name": "label", "shape": [1], "datatype": "BYTES", "data": ["healthy"]}
    if service.store.settings.numeric:
        found = {**found, "datatype": "FP64", "data": [41.5]}
    answer = {"model_name": service.name, "model_version": VERSION, "id": "17", "outputs": [found]}
    headers = {
        "Inference-Header-Content-Length": {"type": "integer", "minimum": 0},
        "X-Request-Id": {**text, "maxLength": 256},
        "X-Indknn-Rows": {"type": "integer", "minimum": 1},
    }
    return {
        "tags": ["predict"],
        "summary": "Predict",
        "description": (
            "Returns the label of each row. What people pay for it is charged durably before. If `outputs` names "
            "`probabilities`, the probability of each class is returned too, at no further charge. A store of numbers "
            "has `intervals` instead: two ends for each row, which hold the number as often as `coverage` says. If the "
            "rows have ids of yours, in `parameters` or as a tensor, the output `id` repeats them. The request is of "
            "the Open Inference Protocol v2, in JSON or with binary tensor data, or it is raw rows of little-endian "
            "float32. The same id with the same rows gives the same answer and is charged once."
        ),
        "parameters": [
            {"name": "name", "in": "path", "required": True, "schema": {"enum": [service.name]}},
            *({"name": name, "in": "header", "schema": header} for name, header in headers.items()),
        ],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": asked,
                "application/octet-stream": {"schema": {**text, "format": "binary"}},
            },
        },
        "responses": {
            **responses,
            "200": {"description": "Done", "content": {"application/json": {"example": answer}}},
        },
    }


def _asked() -> dict[str, Any]:
    """The fields of a prediction."""
    flag = {"type": "boolean", "description": "Whether the labels are sent as binary data behind the JSON."}
    ids = {"type": "array", "items": {"type": ["string", "integer"]}, "description": "Your ids of the rows, to repeat."}
    least = {"type": "number", "minimum": 0, "maximum": 1, "description": "Labels that are less likely are empty."}
    coverage = {"type": "number", "description": "How often an interval holds the number: above 0, below 1."}
    weight = {"description": "`balanced`, or a weight for each label, by name."}
    decision = {"min_confidence": least, "class_weight": weight}
    numbers = {"type": "array", "items": {"anyOf": [{"type": "number"}, {"type": "array"}]}}
    shape = {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 2, "maxItems": 2}
    tensor = {"name": {"const": "features"}, "shape": shape, "datatype": {"enum": list(NUMBERS)}, "data": numbers}
    output = {"name": {"enum": [LABEL, PROBABILITIES, INTERVALS]}, "parameters": _object({"binary_data": flag})}
    return {
        "id": {"type": "string", "maxLength": 256, "description": "The same id with the same rows is charged once."},
        "inputs": {"type": "array", "items": _object(tensor, *tensor), "minItems": 1, "maxItems": 1},
        "outputs": {"type": "array", "items": _object(output, "name"), "minItems": 1, "maxItems": 2},
        "parameters": {
            **_object({"binary_data_output": flag, "ids": ids, "coverage": coverage, **decision}),
            "description": "Others than those listed are ignored.",
        },
    }


def _object(fields: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": fields}
