"""The application: all routes, each with the permission that it needs, and `create_app`, which puts them on a store.

Predictions are in `infer.py`, and the routes for those who run a service in `administration.py`.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Header, Query, Request, Response
from fastapi import Path as FromPath
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse
from starlette.routing import Route

from indknn import __version__
from indknn.errors import PrivacyError
from indknn.ledger.figures import statement
from indknn.server import administration, schemas
from indknn.server.gate import Caller, Gate, RequestBody, Served
from indknn.server.infer import EXTENSIONS, check_model, checked_id, infer, metadata, scoped_id
from indknn.server.keys import OPEN, needs
from indknn.server.metrics import CONTENT_TYPE
from indknn.server.problems import Problem, first_fault, shown
from indknn.server.schemas import Batch, read_deletion, read_upload, record_vectors
from indknn.server.service import Embed, Service
from indknn.settings import ServerOptions
from indknn.store import Store
from indknn.store.journal import Upload as Once
from indknn.store.keyfile import Key

_CONSOLE = Path(__file__).parent / "console"
_CONSOLE_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")  # nothing like a path
_LAST_POSITION = (1 << 63) - 2
_DESCRIPTION = (
    "Private predictions from sensitive data that keeps changing. Send a key as `Authorization: Bearer KEY`. "
    'Every error has the shape `{"error": "text", "code": "snake_case"}`.'
)
OwnerName = Annotated[str, FromPath(alias="id")]
router = APIRouter(responses=schemas.PROBLEMS)


def create_app(
    store: Store,
    *,
    keys: str | Path | None = None,
    options: ServerOptions | None = None,
    open_on_loopback: bool = False,
    embed: Embed | None = None,
) -> Gate:
    """An ASGI application over an open store.

    `keys` is the file of API keys. Without one everything is allowed, so use that on loopback only. A store that had
    keys is refused without them, unless `open_on_loopback`. `embed` turns texts into rows of features; with it, texts
    may be asked as tensors of BYTES. The caller closes `app.service` and then the store.
    """
    service = Service(store, None if keys is None else Path(keys), options or ServerOptions(), open_on_loopback, embed)
    paths = ("/v2/models/{name}/infer", "/v2/models/{name}/versions/{version}/infer")
    app = FastAPI(
        title="indknn",
        version=__version__,
        description=_DESCRIPTION,
        openapi_url=None,  # it is a route with a permission
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        routes=[*(Route(p, infer, methods=["POST"]) for p in paths), *router.routes, *administration.router.routes],
        exception_handlers={RequestValidationError: _refuse},
    )
    app.state.service = service
    return Gate(app, service)


async def _refuse(_: Request, error: Any) -> Response:
    raise Problem(422, first_fault(error.errors()))


@router.get("/openapi.json", include_in_schema=False)
@needs("session")
async def openapi(request: Request, service: Served) -> dict[str, Any]:
    """What this server offers, for programs."""
    return schemas.completed(request.app.openapi(), service)


@router.get("/", include_in_schema=False)
@needs(None)
async def console_page() -> Response:
    """The page of the console."""
    return _console_file("index.html")


@router.get("/console/{name}", include_in_schema=False)
@needs(None)
async def console_file(name: str) -> Response:
    """A script, a style or an image of the console."""
    return _console_file(name, {"cache-control": "no-cache"})


@router.get("/v2/health/live", tags=["health"])
@needs(None)
async def live() -> dict[str, bool]:
    """Whether the process is running."""
    return {"live": True}


@router.get("/v2/health/ready", tags=["health"])
@needs(None)
async def ready(service: Served) -> dict[str, bool]:
    """Whether queries can be answered. They can if the store has, or once had, records."""
    _refuse_if_not_ready(service)
    return {"ready": True}


@router.get("/v2", tags=["health"], response_model=schemas.Server)
@needs(None)
async def server() -> dict[str, Any]:
    """The name and the version of the server."""
    return {"name": "indknn", "version": __version__, "extensions": EXTENSIONS}


@router.get("/v1/sign-in", tags=["access"])
@needs(None)
async def sign_in(service: Served) -> dict[str, bool]:
    """Whether a key is needed. The console asks this before anything else."""
    service.keys.refresh()
    return {"needs_key": not service.keys.is_open}


@router.get("/v1/session", tags=["access"], response_model=schemas.Session)
@needs("session")
async def session(service: Served, key: Caller) -> dict[str, Any]:
    """Who the caller is, and what they may do."""
    return service.session(key)


@router.get("/v2/models/{name}", tags=["predict"], response_model=schemas.Model)
@router.get("/v2/models/{name}/versions/{version}", tags=["predict"], response_model=schemas.Model)
@needs("model")
async def model(service: Served, key: Caller, name: str, version: str | None = None) -> dict[str, Any]:
    """The public facts about the model."""
    check_model(service, name, version)
    return metadata(service, key)


@router.get("/v2/models/{name}/ready", tags=["predict"], response_model=schemas.ModelReady)
@router.get("/v2/models/{name}/versions/{version}/ready", tags=["predict"], response_model=schemas.ModelReady)
@needs("model")
async def model_ready(service: Served, name: str, version: str | None = None) -> dict[str, Any]:
    """Whether the model is ready to answer. As in the protocol, status 200 means yes."""
    check_model(service, name, version)
    _refuse_if_not_ready(service)
    return {"name": name, "ready": True}


@router.get("/v1/status", tags=["curator"], response_model=schemas.Status)
@needs("status")
async def status(service: Served) -> dict[str, Any]:
    """How much people have spent. It depends on individual budgets, so analysts have no access."""
    while await service.worker.run(service.reports.read_some):
        pass
    moment = service.told(lambda: service.reports.moment(sum(service.worker.counted().values())))
    return await asyncio.to_thread(await moment)


@router.get("/v1/audit", tags=["curator"], response_model=schemas.Trail)
@needs("audit")
async def audit(
    service: Served,
    after: Annotated[int, Query(ge=0, le=_LAST_POSITION, description="The last position seen.")] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> dict[str, Any]:
    """The entries of the audit trail after a position: what was done and when, without personal data."""
    return await service.told(lambda: service.reports.audit(after, limit))


@router.get("/metrics", tags=["curator"], response_class=PlainTextResponse)
@needs("metrics")
async def metrics(service: Served) -> Response:
    """Counters for Prometheus. Nothing in them depends on individual budgets."""
    service.metrics.waiting.set(service.worker.waiting)
    service.metrics.body_bytes.set(service.bodies.held)
    service.metrics.connections.set(service.connections())
    return Response(service.metrics.text(), media_type=CONTENT_TYPE)


@router.post(
    "/v1/records", tags=["curator"], openapi_extra=schemas.body_of(schemas.Upload), response_model=schemas.Added
)
@needs("curate")
async def add_records(
    service: Served, key: Caller, body: RequestBody, x_request_id: Annotated[str, Header(max_length=256)] = ""
) -> dict[str, Any]:
    """Add records, all or none. A record with the `id` or `record_id` of an existing record replaces it.

    With an `X-Request-Id` you can send the same upload again. It is done once, and you get the same numbers.
    """
    batch = await service.reader.read(read_upload, body, service.record_bounds, service.options.max_records)
    name = checked_id(x_request_id)
    once = None if name is None else Once(scoped_id(None if key is OPEN else key.name, name), bytes(body))
    return await service.worker.run(lambda: _upsert(service.store, batch, once))


@router.delete(
    "/v1/records", tags=["curator"], openapi_extra=schemas.body_of(schemas.Deletion), response_model=schemas.Removed
)
@needs("curate")
async def delete_records(service: Served, body: RequestBody) -> dict[str, Any]:
    """Remove records, all or none. An owner whose last record is removed is forgotten."""
    ids = await service.reader.read(read_deletion, body, service.record_bounds, service.options.max_records)
    return await service.worker.run(lambda: _remove(service.store, ids))


@router.post("/v1/purge", tags=["curator"], response_model=schemas.Receipt)
@needs("curate")
async def purge(service: Served) -> dict[str, Any]:
    """Delete all answers and the shared model, for all analysts. People pay again for new ones.

    Everybody who asks again can see the purge. So purge on a schedule, and never because one person was
    forgotten: that would show that somebody left.
    """
    return await service.worker.run(service.store.purge)


@router.get("/v1/owners/{id:path}", tags=["owner"], response_model=schemas.Statement)
@needs("statement")
async def owner_statement(owner: OwnerName, service: Served, key: Caller) -> dict[str, Any]:
    """The statement of one person. Spending is rounded up to 1/50 of B, for every role."""
    _refuse_other_owners(key, owner)
    return await service.told(lambda: statement(service.store.engine, owner))


@router.delete("/v1/owners/{id:path}", tags=["owner"], response_model=schemas.Receipt)
@needs("forget")
async def forget_owner(request: Request, owner: OwnerName, service: Served, key: Caller) -> dict[str, Any]:
    """Forget a person. All their records are erased, and their spending is kept. Returns a receipt.

    Answers and the model that were released before are differentially private and are kept.
    """
    _refuse_other_owners(key, owner)
    if key.role == "owner":
        request.state.ends = key.id
    return await service.worker.run(lambda: service.store.forget([owner]))


def _upsert(store: Store, batch: Batch, once: Once | None) -> dict[str, Any]:
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
    outcome = {"already_here": added.copies, "warnings": [str(warning) for warning in added.advice], "repeated": False}
    return {"ids": added.numbers.tolist(), **_counts(store), **outcome}


def _remove(store: Store, ids: list[int]) -> dict[str, Any]:
    """Remove records, all or none."""
    return {"removed": store.forget(records=ids)["records"], **_counts(store)}


def _counts(store: Store) -> dict[str, int]:
    return {"records": len(store.engine.shard), "owners": store.engine.ledger.n_owners}


def _refuse_if_not_ready(service: Service) -> None:
    if service.closing or not service.reachable or service.n_features is None:
        text = "there are no records yet, the database cannot be reached, or the server is closing"
        raise Problem(503, text, "not_ready")


def _refuse_other_owners(key: Key, owner: str) -> None:
    """An owner's key gives access to that owner alone, and does not tell who else is in the store."""
    if key.role == "owner" and owner != key.owner:
        raise Problem(403, f"this key is for the owner {shown(key.owner)} alone")


def _console_file(name: str, headers: dict[str, str] | None = None) -> Response:
    kind, file = _CONSOLE_TYPES.get(Path(name).suffix), _CONSOLE / name
    if kind is None or not _FILE_NAME.fullmatch(name) or not file.is_file():
        raise Problem(404, f"there is no file {shown(name)}")
    return Response(file.read_bytes(), media_type=f"{kind}; charset=utf-8", headers=headers)
