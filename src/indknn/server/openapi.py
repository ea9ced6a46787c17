"""The OpenAPI document: examples, the one error shape, and by hand what does without the framework."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from indknn import __version__

if TYPE_CHECKING:
    from indknn.server.service import Service

VERSION = __version__
DESCRIPTION = (
    "Private predictions from sensitive data that keeps changing. Send a key as `Authorization: Bearer KEY`. "
    'Every error has the shape `{"error": {"code": ..., "message": ...}}`.'
)
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message"],
            "properties": {"code": {"type": "string"}, "message": {"type": "string"}},
        }
    },
    "example": {"error": {"code": "invalid_input", "message": "the queries must have 64 features per row, got 3"}},
}
_TEXTS = {
    400: "Not JSON, or not HTTP",
    401: "No key, or not a valid one",
    403: "The key's role does not allow it",
    404: "No such thing",
    405: "No such method",
    408: "The request took too long to arrive",
    409: "In conflict with what is there",
    413: "The body is too long",
    415: "Another content type",
    422: "A value is not allowed",
    429: "Too many queries",
    500: "A fault of ours",
    503: "Cannot answer at the moment",
}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"description": text, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
    for status, text in _TEXTS.items()
}
TEXT: dict[int | str, dict[str, Any]] = {
    200: {"description": "Prometheus text", "content": {"text/plain": {"schema": {"type": "string"}}}}
}
SESSION = {
    "role": "analyst",
    "name": "alice",
    "model": "indknn",
    "open": False,
    "n_features": 64,
    "classes": ["healthy", "ill"],
    "can": ["session", "model", "predict"],
}
MODEL = {
    "name": "indknn",
    "versions": ["1"],
    "platform": "indknn",
    "inputs": [{"name": "features", "datatype": "FP32", "shape": [-1, 64]}],
    "outputs": [{"name": "label", "datatype": "BYTES", "shape": [-1]}],
    "parameters": {"classes": ["healthy", "ill"], "n_features": 64, "epsilon": 1.0, "delta": 1e-5, "filter": "gdp"},
}
STATUS = {
    "epsilon": 1.0,
    "delta": 1e-5,
    "filter": "gdp",
    "records": 50000,
    "owners": 48211,
    "answers": 1200,
    "spent_share_histogram": [40100, 6200, 1500, 300, 80, 20, 8, 2, 1, 0],
    "spent_share_median": 0.03,
    "exhausted": 0,
    "guarantee": {"epsilon": 1.0, "delta": 1e-5, "filter": "gdp", "words": "Whatever an analyst asks, ..."},
    "answers_over_time": [{"at": "2026-01-01T12:00:00Z", "answers": 1200}],
    "forecast": {"queries_left_for_median_owner": 38000},
}
AUDIT = {
    "entries": [
        {"position": 7, "at": "2026-01-01T12:00:00Z", "kind": "add", "body": {"records": 3}, "hash": "9f2c..."}
    ],
    "next": None,
}
ADDED = {"ids": [0, 1], "records": 2, "owners": 2}
REMOVED = {"removed": 1, "records": 1, "owners": 1}
STATEMENT = {"owner": "ann", "records": 2, "queries": 31, "rho": 0.0021, "epsilon_promised": 1.0, "epsilon_so_far": 0.2}
RECEIPT = {"receipt": "erasure", "at": "2026-01-01T12:00:00Z", "records": 2, "owners_forgotten": 1, "owners": ["ann"]}


def example(value: Any) -> dict[int | str, dict[str, Any]]:
    """A good answer, shown."""
    return {200: {"description": "Done", "content": {"application/json": {"example": value}}}}


def body(model: type[BaseModel]) -> dict[str, Any]:
    """A body that is read by ourselves."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    schema.pop("$defs", None)
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def first_fault(errors: Sequence[Any]) -> str:
    """What is wrong first, in one line: where, and what is allowed. Values are not repeated: they may be people's."""
    error = errors[0]
    where = ".".join(str(part) for part in error["loc"]) or "the body"
    return f"{where}: {error['msg']}"


def completed(document: dict[str, Any], service: Service) -> dict[str, Any]:
    """The framework's document, and what it does not know of."""
    from indknn.server.records import Record  # noqa: PLC0415 - which imports this module

    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas["Error"] = _ERROR
    schemas["Record"] = record = Record.model_json_schema()
    width, classes = service.n_features, service.classes.tolist()
    if width is not None:  # what this very store takes
        record["properties"]["features"].update(minItems=width, maxItems=width, examples=[_query(width)])
        record["properties"]["label"] = {"enum": classes, "examples": classes[:1]}
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"key": []}, {}]
    document["paths"]["/v2/models/{name}/infer"] = {"post": _infer(service)}
    return document


def _query(width: int) -> list[float]:
    return [round(0.5 / (i + 1), 3) for i in range(width)]


def _infer(service: Service) -> dict[str, Any]:
    width = service.n_features or 2
    tensor = {
        "type": "object",
        "required": ["name", "shape", "datatype", "data"],
        "properties": {
            "name": {"const": "features"},
            "shape": {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 2, "maxItems": 2},
            "datatype": {"enum": ["FP32", "FP64"]},
            "data": {"type": "array", "items": {"anyOf": [{"type": "number"}, {"type": "array"}]}},
        },
    }
    schema = {
        "type": "object",
        "required": ["inputs"],
        "properties": {
            "id": {"type": "string", "maxLength": 256, "description": "Asking again with it costs nothing."},
            "inputs": {"type": "array", "items": tensor, "minItems": 1, "maxItems": 1},
        },
    }
    query = _query(width)
    asked = {
        "id": "visit-17",
        "inputs": [{"name": "features", "shape": [1, width], "datatype": "FP32", "data": query}],
    }
    output = {"name": "label", "shape": [1], "datatype": "BYTES", "data": ["healthy"]}
    answer = {"model_name": service.options.name, "id": "visit-17", "outputs": [output]}
    return {
        "tags": ["predict"],
        "summary": "Predict",
        "description": (
            "The label of each row, durably charged to the people near it. JSON as in the Open Inference Protocol v2, "
            "or raw rows of little-endian float32. The same id with the same rows gives the same answer at one charge."
        ),
        "parameters": [
            {
                "name": "name",
                "in": "path",
                "required": True,
                "schema": {"type": "string", "enum": [service.options.name]},
            },
            {"name": "X-Request-Id", "in": "header", "schema": {"type": "string", "maxLength": 256}},
            {"name": "X-Indknn-Rows", "in": "header", "schema": {"type": "integer", "minimum": 1}},
        ],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": schema, "example": asked},
                "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
            },
        },
        "responses": {
            "200": {"description": "Labels", "content": {"application/json": {"example": answer}}},
            **{str(status): problem for status, problem in PROBLEMS.items()},
        },
    }
