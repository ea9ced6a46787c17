"""The application: all routes, each with the permission that it needs, and `create_app`, which puts them on a store.

Predictions are in `infer.py`.
"""

from __future__ import annotations

import asyncio
import re
from heapq import nsmallest
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import orjson
from fastapi import APIRouter, Depends, FastAPI, Header, Query, Request, Response
from fastapi import Path as FromPath
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse
from starlette.routing import Route

from indknn import __version__
from indknn.errors import PrivacyError, StoreError
from indknn.server import schemas
from indknn.server.gate import OPEN, Bytes, Gate, key_text, needs
from indknn.server.infer import EXTENSIONS, check_model, checked_id, infer, metadata, scoped_id
from indknn.server.problems import Problem, first_fault, shown
from indknn.server.schemas import Batch, read_deletion, read_upload
from indknn.server.service import Embed, Service
from indknn.server.telemetry import CONTENT_TYPE, Log
from indknn.settings import ServerOptions
from indknn.store import Store, chain, keyfile, verify
from indknn.store.backup import backup
from indknn.store.journal import Upload as Once
from indknn.store.keyfile import Key
from indknn.store.reports import analysts_in_use

_CONSOLE = Path(__file__).parent / "console"
_CONSOLE_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")  # nothing like a path
_LAST_POSITION = (1 << 63) - 2
_MOST_PROBLEMS = 100
_DESCRIPTION = (
    "Private predictions from sensitive data that keeps changing. Send a key as `Authorization: Bearer KEY`. "
    'Every error has the shape `{"error": "text", "code": "snake_case"}`.'
)


async def _service(request: Request) -> Any:
    return request.app.state.service


async def _key(request: Request) -> Any:
    return request.state.key


async def _body(request: Request) -> Any:
    return await request.state.body(request.app.state.service.options.max_body)


Served: TypeAlias = Annotated[Service, Depends(_service)]
Caller: TypeAlias = Annotated[Key, Depends(_key)]
RequestBody: TypeAlias = Annotated[Bytes, Depends(_body)]
OwnerName: TypeAlias = Annotated[str, FromPath(alias="id")]
router = APIRouter(responses=schemas.PROBLEMS)


def create_app(
    store: Store,
    *,
    keys: str | Path | None = None,
    options: ServerOptions | None = None,
    open_on_loopback: bool = False,
    embed: Embed | None = None,
    log: Log | None = None,
) -> Gate:
    """An ASGI application over an open store.

    `keys` is the file of API keys. Without one everything is allowed, so use that on loopback only. A store that had
    keys is refused without them, unless `open_on_loopback`. `embed` turns texts into rows of features; with it, texts
    may be asked as tensors of BYTES. `log` gets a line for each request and event. The caller closes `app.service` and
    then the store.
    """
    file, chosen = None if keys is None else Path(keys), options or ServerOptions()
    service = Service(store, file, chosen, open_on_loopback, embed, log)
    paths = ("/v2/models/{name}/infer", "/v2/models/{name}/versions/{version}/infer")
    app = FastAPI(
        title="indknn",
        version=__version__,
        description=_DESCRIPTION,
        openapi_url=None,  # it is a route with a permission
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        routes=[*(Route(p, infer, methods=["POST"]) for p in paths), *router.routes],
        exception_handlers={RequestValidationError: _refuse},
    )
    app.state.service = service
    return Gate(app, service, infer)


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
    """Whether queries can be answered: the store has, or once had, records, and all models are loaded."""
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
    moment = service.told(lambda: service.reports.moment(service.worker.counted()))
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
    service.metrics.ready.set(service.ready)
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
    """Remove records by `ids` (the server's numbers), `record_ids` (your own) or `owners`, all or none.

    An owner whose last record is removed is forgotten.
    """
    wanted = await service.reader.read(read_deletion, body, service.record_bounds, service.options.max_records)
    return await service.worker.run(lambda: _remove(service.store, wanted))


@router.post("/v1/train", tags=["curator"])
@needs("curate")
async def train(service: Served) -> dict[str, bool]:
    """Begin to train the shared model now, or to train it again if there are enough newcomers.

    The time of a training is public. So train on a schedule or when you decide to, and never because of what is in the
    records. Newcomers are counted first, and people pay for that count too. The model is trained when nobody waits.
    """
    await service.worker.train()
    return {"training": True}


@router.post("/v1/purge", tags=["curator"], response_model=schemas.Receipt)
@needs("curate")
async def purge(service: Served) -> dict[str, Any]:
    """Delete all answers and the shared model, for all analysts. People pay again for new ones.

    Everybody who asks again can see the purge. So purge on a schedule, and never because one person was
    forgotten: that would show that somebody left.
    """
    return await service.worker.run(service.store.purge)


@router.get("/v1/owners/{id:path}", tags=["owner"], response_model=schemas.Statement, response_model_exclude_unset=True)
@needs("statement")
async def owner_statement(
    owner: OwnerName, service: Served, key: Caller, x_other_keys: Annotated[str, Header(max_length=8192)] = ""
) -> dict[str, Any]:
    """The statement of one person. Spending is rounded up to 1/50 of B, for every role.

    If the server has several stores about the same people, the person is also told the sum over those stores whose keys
    they show: their own keys of the other stores, with commas, in `X-Other-Keys`. So who is in another store is told to
    nobody who has only a key of this one, also not to its admins, who can make keys.
    """
    _refuse_other_owners(key, owner)
    others = [text.strip() for text in x_other_keys.split(",") if text.strip()]
    return await service.statement(owner, others if key.role == "owner" else None)


@router.patch(
    "/v1/owners/{id:path}",
    tags=["owner"],
    openapi_extra=schemas.body_of(schemas.Lowered),
    response_model=schemas.Receipt,
)
@needs("lower")
async def lower_owner(owner: OwnerName, service: Served, key: Caller, body: RequestBody) -> dict[str, Any]:
    """Promise a person less than the store's epsilon, from now on. It is never raised again. Returns a receipt.

    If they have spent more already, the promise is what they have spent, and nothing further is learned.
    """
    _refuse_other_owners(key, owner)
    asked = schemas.parsed(schemas.Lowered, body)
    return await service.worker.run(lambda: service.store.lower(owner, asked.epsilon))


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


@router.get("/v1/holds", tags=["curator"], response_model=schemas.Holds)
@needs("curate")
async def list_holds(service: Served) -> dict[str, Any]:
    """The people under a legal hold."""
    return {"owners": await service.told(lambda: service.store.holds)}


@router.post(
    "/v1/holds", tags=["curator"], openapi_extra=schemas.body_of(schemas.Holding), response_model=schemas.Holds
)
@needs("curate")
async def hold(service: Served, body: RequestBody) -> dict[str, Any]:
    """Put people under a legal hold: their records take no part, and nothing erases them until the hold ends."""
    owners = schemas.parsed(schemas.Holding, body).owners
    await service.worker.run(lambda: service.store.hold(owners))
    return {"owners": await service.told(lambda: service.store.holds)}


@router.delete(
    "/v1/holds", tags=["curator"], openapi_extra=schemas.body_of(schemas.Holding), response_model=schemas.Receipt
)
@needs("curate")
async def release_hold(service: Served, body: RequestBody) -> dict[str, Any]:
    """End the hold of people. What was due meanwhile is erased now. Returns the receipt."""
    owners = schemas.parsed(schemas.Holding, body).owners
    return await service.worker.run(lambda: service.store.release_hold(owners))


def _upsert(store: Store, batch: Batch, once: Once | None) -> dict[str, Any]:
    """Add and replace records, all or none. An upload that was done `once` is not done again."""
    if once is not None:
        with store.reading() as db:
            known = once.numbers(db)
        if known is not None:
            nothing = {"added": 0, "replaced": 0, "unchanged": len(known), "expired": 0, "already_here": 0}
            return {"ids": known.tolist(), **_counts(store), **nothing, "warnings": [], "repeated": True}
    given = batch.given
    if isinstance(given.X, list):
        if store.schema is None:
            raise Problem(422, "this store has no schema, so a record must have features instead of values")
        given = given._replace(X=store.schema.encode(given.X))
    try:
        added = store.upsert(given, batch.numbers, each_row=batch.each_row, once=once)
    except PrivacyError as error:
        raise Problem(409, str(error), "who_is_who") from None
    done = {"added": added.added, "replaced": added.replaced, "unchanged": added.unchanged}
    done["expired"] = added.expired
    outcome = {"already_here": added.copies, "warnings": [str(warning) for warning in added.advice], "repeated": False}
    return {"ids": added.numbers.tolist(), **_counts(store), **done, **outcome}


def _remove(store: Store, wanted: schemas.Deletion) -> dict[str, Any]:
    """Remove records, all or none."""
    receipt = store.forget(wanted.owners, records=wanted.ids, record_ids=wanted.record_ids)
    return {"removed": receipt["records"], **_counts(store), "receipt": receipt}


def _counts(store: Store) -> dict[str, int]:
    return {"records": len(store.engine.shard), "owners": store.engine.ledger.n_owners}


def _refuse_if_not_ready(service: Service) -> None:
    if not service.ready:
        text = "there are no records yet, models are being loaded, the database cannot be reached, or it is closing"
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


# For those who run a service: keys, analysts and their use, owners by name, a check of the whole store


@router.get("/v1/keys", tags=["admin"], response_model=schemas.KeyList)
@needs("keys")
async def list_keys(service: Served) -> dict[str, Any]:
    """All keys that were ever made, without their texts. Only the holder of a key knows its text."""
    file = await asyncio.to_thread(keyfile.read_key_file, _key_file(service))
    return {"keys": [_facts(service, key) for key in file.keys]}


@router.post("/v1/keys", tags=["admin"], openapi_extra=schemas.body_of(schemas.NewKey), response_model=schemas.KeyMade)
@needs("keys")
async def create_key(request: Request, service: Served, body: RequestBody) -> dict[str, Any]:
    """Make a key. Its text is only in this answer. The first key closes an open server."""
    wanted = schemas.parsed(schemas.NewKey, body).model_dump()
    if service.keys.is_open:
        if wanted["role"] != "admin":
            raise Problem(422, "the first key must be of role admin: from then on, only an admin can make others here")
        request.state.ends = OPEN.id  # a caller without a key gets this answer and no other
    epsilon, path = wanted.pop("epsilon"), _key_file(service)
    if epsilon is not None:
        keyfile.check_may_ask(wanted["role"])
    keyfile.check_key(**wanted)
    if wanted["role"] in keyfile.ASKING:  # first, because a key must not exist if its limit could not be written
        await service.worker.run(lambda: service.store.add_analyst(wanted["name"], epsilon))
    return _made(service, *await asyncio.to_thread(lambda: keyfile.create(path, **wanted)))


@router.post("/v1/keys/{id}/rotate", tags=["admin"], response_model=schemas.KeyMade)
@needs("keys")
async def rotate_key(request: Request, service: Served, id: str) -> dict[str, Any]:  # noqa: A002
    """Replace this key by a new one for the same holder, with the same limits. The old key is revoked."""
    path = await _known(service, id)
    request.state.ends = id
    return _made(service, *await asyncio.to_thread(keyfile.rotate, path, id))


@router.delete("/v1/keys/{id}", tags=["admin"], response_model=schemas.KeyFacts)
@needs("keys")
async def revoke_key(request: Request, service: Served, id: str) -> dict[str, Any]:  # noqa: A002
    """Revoke a key. It is refused from now on, also in the middle of a request."""
    path = await _known(service, id)
    request.state.ends = id
    (gone,) = await asyncio.to_thread(keyfile.revoke, path, id)
    service.keys.refresh(force=True)
    return _facts(service, gone)


@router.get("/v1/signing-key", tags=["access"], response_model=schemas.SigningKeys)
@needs(None)
async def signing_key(request: Request, service: Served) -> dict[str, Any]:
    """The public keys with which everybody can check receipts and audit trails of this store.

    If a server has several stores, a key of one of them says which is meant.
    """
    if not service.alone and service.keys.find(key_text(dict(request.scope["headers"]))) is None:
        raise Problem(401, "send a key, which says which store is meant")
    return service.signing_keys


@router.get("/v1/model", tags=["curator"], response_model=schemas.Published)
@needs("curate")
async def published_model(
    service: Served,
    with_queries: Annotated[
        bool, Query(description="Whether it may hold queries, if no public rows were declared.")
    ] = False,
) -> Response:
    """The shared model with its ε and δ, as `indknn export model` writes it. It may be published."""
    try:
        made = await service.worker.run(lambda: service.store.publish(with_queries=with_queries))
    except PrivacyError as error:
        raise Problem(409, str(error), "not_for_all") from None
    return Response(await asyncio.to_thread(orjson.dumps, made), media_type="application/json")


@router.get("/v1/analysts", tags=["curator"], response_model=schemas.Analysts)
@needs("status")
async def analysts(service: Served) -> dict[str, Any]:
    """How many answers each analyst was given, and how many queries their keys still allow."""
    path = service.keys.path
    file = keyfile.KeyFile() if path is None else await asyncio.to_thread(keyfile.read_key_file, path)
    answers = await service.told(service.worker.counted)
    declared = await service.told(lambda: service.store.analysts)
    rows = analysts_in_use(service.store.settings, answers, file.keys, declared)
    return {"analysts": rows, "answers": sum(answers.values())}


@router.get("/v1/owners", tags=["curator"], response_model=schemas.Owners)
@needs("curate")
async def search_owners(
    service: Served,
    search: Annotated[str, Query(min_length=1, max_length=128, description="A part of the name.")],
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> dict[str, Any]:
    """The people with records whose names contain a text, ignoring case. The shortest names come first.

    For curators, because names are personal data.
    """
    wanted = search.casefold()
    store = service.store
    everybody = await service.told(lambda: list(store.engine.ledger.owners()))  # it may be read anew before
    found = (name for name in everybody if wanted in name.casefold())
    names = await asyncio.to_thread(nsmallest, limit + 1, found, lambda name: (len(name), name))
    return {"owners": names[:limit], "more": len(names) > limit}


@router.post("/v1/verify", tags=["curator"], response_model=schemas.Verified)
@needs("verify")
async def verify_store(service: Served) -> dict[str, Any]:
    """Check the whole store as `indknn verify` does: the trail, the answers, the budgets, and memory against disk.

    It checks a copy in memory, which is made in pieces. Queries are answered meanwhile.
    """
    snapshot = await service.worker.run(lambda: verify.Snapshot(service.store))
    while not await service.worker.run(snapshot.copy_some):
        pass
    found, entries = await asyncio.to_thread(snapshot.problems)
    return {"ok": not found, "problems": found[:_MOST_PROBLEMS], "entries": entries}


@router.post(
    "/v1/backup", tags=["admin"], openapi_extra=schemas.body_of(schemas.BackupName), response_model=schemas.BackupMade
)
@needs("backup")
async def back_up(service: Served, body: RequestBody) -> dict[str, Any]:
    """Copy the store and its keys into the server's folder of backups, and check the copy.

    Queries are answered meanwhile. The copy holds people who are forgotten later, so delete it in time.
    """
    if service.options.backups is None:
        raise Problem(409, "this server has no folder for backups: start it with --backups FOLDER", "no_backups")
    wanted = schemas.parsed(schemas.BackupName, body or b"{}").name
    name = wanted or f"{service.name}-{chain.now().replace(':', '')}.store"
    target = Path(service.options.backups) / name
    if service.backing_up.locked():
        raise Problem(409, "a backup is being made already", "busy")
    async with service.backing_up:
        if target.exists():
            raise Problem(409, "there is a backup of this name already; nothing is overwritten", "exists")
        service.log.event("backup", outcome="begun")
        try:
            made = await asyncio.to_thread(backup, service.store, target)
        except StoreError as error:
            service.log.event("backup", outcome="failed", error=type(error).__name__)
            raise Problem(503, f"the backup was not made: {error}", "backup_failed") from None
    service.log.event("backup", outcome="done", entries=made["audit_entries"])
    service.metrics.backed_up.set_to_current_time()
    return {**made, "backup": name, "keys": made["keys"] is not None}


def _key_file(service: Service) -> Path:
    if service.keys.path is None:
        raise Problem(409, "this server was started without a file of keys", "no_keys")
    return service.keys.path


async def _known(service: Service, number: str) -> Path:
    """The key file, if a key in use has this id."""
    path = _key_file(service)
    file = await asyncio.to_thread(keyfile.read_key_file, path)
    if not any(key.id == number and key.revoked is None for key in file.keys):
        raise Problem(404, "no key in use has this id", "unknown_key")
    return path


def _made(service: Service, key: Key, text: str) -> dict[str, Any]:
    service.keys.refresh(force=True)
    return {**_facts(service, key), "key": text}


def _facts(service: Service, key: Key) -> dict[str, Any]:
    known = {name: value for name, value in vars(key).items() if name != "digest"}
    return {**known, "epsilon": service.store.settings.analysts.get(key.name) if key.role in keyfile.ASKING else None}
