"""The OpenAPI document: examples, the error shape, and the prediction route, which FastAPI does not know."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Any, TypeAlias

from pydantic import BaseModel

from indknn.server.keyring import OPEN
from indknn.server.records import Record
from indknn.server.service import VERSION, Service
from indknn.server.tensors import LABEL, NUMBERS, PROBABILITIES

Responses: TypeAlias = dict[int | str, dict[str, Any]]
DESCRIPTION = (
    "Private predictions from sensitive data that keeps changing. Send a key as `Authorization: Bearer KEY`. "
    'Every error has the shape `{"error": "text", "code": "snake_case"}`.'
)
_TEXT = {"type": "string"}
_ERROR = {
    "type": "object",
    "required": ["error", "code"],
    "properties": {"error": _TEXT, "code": _TEXT},
    "example": {"error": "the queries must have 64 features per row, got 3", "code": "invalid_input"},
}
_ERROR_CONTENT = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
PROBLEMS: Responses = {
    status: {"description": HTTPStatus(status).phrase, "content": _ERROR_CONTENT}
    for status in (400, 401, 403, 404, 405, 408, 409, 413, 415, 422, 429, 500, 503)
}
TEXT: Responses = {200: {"description": "Prometheus text", "content": {"text/plain": {"schema": _TEXT}}}}
_VERSION = {"name": "version", "in": "path", "required": True, "schema": {**_TEXT, "enum": [VERSION]}}
_FLAG = {"type": "boolean", "description": "Whether the labels are sent as binary data behind the JSON."}
_PARAMETERS = {"type": "object", "description": "Other parameters than those listed are ignored."}
_PROMISE = {"observer": "one analyst", "epsilon": 1.0, "delta": 1e-5, "filter": "gdp", "budget": 0.0359}
_ONE = {**_PROMISE, "spent": 0.00287, "left": 0.0330, "epsilon_so_far": 0.25}
_TOGETHER = {**_ONE, "observer": "all analysts together", "epsilon": None, "budget": None, "left": None}
STATUS = {
    "records": 50000,
    "owners": 48211,
    "answers": 1200,
    "guarantee": {**_PROMISE, "words": "Whatever one analyst asks, ..."},
    "one_analyst": _ONE,
    "together": _TOGETHER,
    "spent_share_histogram": [40100, 6200, 1500, 300, 80, 20, 8, 2, 1, 0],
    "spent_share_median": 0.03,
    "exhausted": 0,
    "given_less": {"alice": 0.25},
    "forecast": {"observer": "all analysts together", "queries_left_for_median_owner": 38000},
    "answers_over_time": [{"at": "2026-01-01T12:00:00Z", "answers": 1200}],
}
_ENTRY = {"position": 7, "at": "2026-01-01T12:00:00Z", "kind": "add"}
_BODY = {"body": {"records": 3}, "text": '{"records": 3}', "hash": "9f2c..."}
AUDIT = {"entries": [{**_ENTRY, **_BODY}], "next": None, "last": 7}
ADDED = {"ids": [0, 1], "records": 2, "owners": 2, "already_here": 0, "warnings": [], "repeated": False}
REMOVED = {"removed": 1, "records": 1, "owners": 1}
_KEY = {"id": "3fe21b07", "name": "alice", "role": "analyst", "created": "2026-01-01T12:00:00Z", "owner": None}
_LIMITS = {"rate": 50.0, "max_queries": 10000, "revoked": None, "epsilon": 0.25}
KEYS = {"keys": [{**_KEY, **_LIMITS}]}
NEW_KEY = {**_KEY, **_LIMITS, "key": "indknn_..."}
_USE = {"answers": 1200, "keys": 1, "max_queries": 10000, "queries_left": 8800, "epsilon": 0.25}
ANALYSTS = {"analysts": [{"name": "alice", **_USE}], "answers": 1200}
OWNERS = {"owners": ["ann", "anna"], "more": False}
VERIFIED = {"ok": True, "problems": [], "entries": 17}
STATEMENT = {"owner": "ann", "records": 2, "one_analyst": _ONE, "together": _TOGETHER, "words": "Whatever one ..."}
RECEIPT = {"receipt": "erasure", "at": "2026-01-01T12:00:00Z", "records": 2, "owners_forgotten": 1, "owners": ["ann"]}
PURGED = {"receipt": "purge", "at": "2026-01-01T12:00:00Z", "public": "everybody who asks again can see ..."}


def example(value: Any) -> Responses:
    """The response of a route, shown by an example."""
    return {200: {"description": "Done", "content": {"application/json": {"example": value}}}}


def body(model: type[BaseModel]) -> dict[str, Any]:
    """The request body of a route that reads its body itself."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    schema.pop("$defs", None)
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def completed(generate: Callable[[], dict[str, Any]], service: Service) -> dict[str, Any]:
    """FastAPI's document, with the error shape, the keys, the prediction route and the facts of this store added."""
    document = generate()
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas["Error"] = _ERROR
    schemas["Record"] = record = Record.model_json_schema()
    width, classes = service.n_features, service.classes.tolist()
    if width is not None:
        record["properties"]["features"].update(minItems=width, maxItems=width, examples=[_example_query(width)])
        record["properties"]["label"] = {"enum": classes, "examples": classes[:1]}
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"key": []}, {}]
    for path, facts in (("/v1/session", service.session(OPEN)), ("/v2/models/{name}", service.metadata(OPEN))):
        document["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["example"] = facts
    for path, version in (("/v2/models/{name}/infer", ()), ("/v2/models/{name}/versions/{version}/infer", (_VERSION,))):
        infer = _infer(service.name, width or 2)
        if service.store.schema is not None:
            _show_rows(infer, list(service.store.schema.used))
        document["paths"][path] = {"post": {**infer, "parameters": [*infer["parameters"], *version]}}
    return document


def _show_rows(infer: dict[str, Any], columns: list[str]) -> None:
    """With a schema, queries may be objects with column names."""
    value = {"type": ["number", "string", "boolean", "null"]}
    row = {"type": "object", "required": columns, "properties": dict.fromkeys(columns, value)}
    content = infer["requestBody"]["content"]["application/json"]
    content["schema"]["properties"]["rows"] = {"type": "array", "items": row, "minItems": 1}
    content["schema"]["required"] = []
    content["example"] = {"id": "visit-17", "rows": [dict.fromkeys(columns)]}


def _example_query(width: int) -> list[float]:
    return [round(0.5 / (i + 1), 3) for i in range(width)]


def _infer(model: str, width: int) -> dict[str, Any]:
    tensor = {
        "type": "object",
        "required": ["name", "shape", "datatype", "data"],
        "properties": {
            "name": {"const": "features"},
            "shape": {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 2, "maxItems": 2},
            "datatype": {"enum": list(NUMBERS)},
            "data": {"type": "array", "items": {"anyOf": [{"type": "number"}, {"type": "array"}]}},
        },
    }
    wanted = {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"enum": [LABEL, PROBABILITIES]},
            "parameters": {**_PARAMETERS, "properties": {"binary_data": _FLAG}},
        },
    }
    schema = {
        "type": "object",
        "required": ["inputs"],
        "properties": {
            "id": {**_TEXT, "maxLength": 256, "description": "The same id with the same rows is charged once."},
            "inputs": {"type": "array", "items": tensor, "minItems": 1, "maxItems": 1},
            "outputs": {"type": "array", "items": wanted, "minItems": 1, "maxItems": 2},
            "parameters": {**_PARAMETERS, "properties": {"binary_data_output": _FLAG}},
        },
    }
    asked = {"name": "features", "shape": [1, width], "datatype": "FP32", "data": _example_query(width)}
    output = {"name": "label", "shape": [1], "datatype": "BYTES", "data": ["healthy"]}
    return {
        "tags": ["predict"],
        "summary": "Predict",
        "description": (
            "Returns the label of each row. The people near it are charged, durably. If `outputs` names "
            "`probabilities`, the probability of each class is returned too, at no further charge. The request is of "
            "the Open Inference Protocol v2, in JSON or with binary tensor data, or it is raw rows of little-endian "
            "float32. The same id with the same rows gives the same answer and is charged once."
        ),
        "parameters": [
            {"name": "name", "in": "path", "required": True, "schema": {**_TEXT, "enum": [model]}},
            {"name": "Inference-Header-Content-Length", "in": "header", "schema": {"type": "integer", "minimum": 0}},
            {"name": "X-Request-Id", "in": "header", "schema": {**_TEXT, "maxLength": 256}},
            {"name": "X-Indknn-Rows", "in": "header", "schema": {"type": "integer", "minimum": 1}},
        ],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": schema, "example": {"id": "visit-17", "inputs": [asked]}},
                "application/octet-stream": {"schema": {**_TEXT, "format": "binary"}},
            },
        },
        "responses": {
            **example({"model_name": model, "model_version": VERSION, "id": "visit-17", "outputs": [output]}),
            **PROBLEMS,
        },
    }
