"""Routes for those who run a service: keys, analysts and their use, owners by name, a check of the whole store."""

from __future__ import annotations

import asyncio
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from indknn.ledger.figures import guarantee
from indknn.server import schemas
from indknn.server.gate import RequestBody, Served
from indknn.server.keys import OPEN, needs
from indknn.server.problems import Problem
from indknn.server.service import Service
from indknn.settings import Settings
from indknn.store import keyfile, verify
from indknn.store.keyfile import Key

_MOST_PROBLEMS = 100
router = APIRouter(responses=schemas.PROBLEMS)


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
    if epsilon is not None:  # first, because a key must not exist if its limit could not be written
        keyfile.check_may_ask(wanted["role"])
        await service.worker.run(lambda: service.store.limit_analyst(wanted["name"], epsilon))
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


@router.get("/v1/analysts", tags=["curator"], response_model=schemas.Analysts)
@needs("status")
async def analysts(service: Served) -> dict[str, Any]:
    """How many answers each analyst was given, and how many queries their keys still allow."""
    path = service.keys.path
    file = keyfile.KeyFile() if path is None else await asyncio.to_thread(keyfile.read_key_file, path)
    answers = await service.told(service.worker.counted)
    asking = [key for key in file.keys if key.role in keyfile.ASKING and key.revoked is None]
    names = sorted({key.name for key in asking} | {name for name in answers if name is not None})
    everybody: list[str | None] = [*([None] if None in answers else []), *names]
    settings = service.store.settings
    rows = [_use(settings, name, answers.get(name, 0), [k for k in asking if k.name == name]) for name in everybody]
    return {"analysts": rows, "answers": sum(answers.values())}


@router.get("/v1/owners", tags=["curator"], response_model=schemas.Owners)
@needs("curate")
async def search_owners(
    service: Served,
    search: Annotated[str, Query(min_length=1, max_length=128, description="A part of the name.")],
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> dict[str, Any]:
    """The people with records whose names contain a text, ignoring case.

    For curators, because names are personal data.
    """
    wanted = search.casefold()
    store = service.store
    everybody = await service.told(lambda: list(store.engine.ledger.owners()))  # it may be read anew before
    found = (name for name in everybody if wanted in name.casefold())
    names = await asyncio.to_thread(lambda: list(islice(found, limit + 1)))
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


def _use(settings: Settings, name: str | None, answers: int, keys: list[Key]) -> dict[str, Any]:
    """What one analyst has used. Keys of one name share its answers, and the most generous key counts."""
    limits = [key.max_queries for key in keys]
    most = None if name is None or None in limits else max((limit for limit in limits if limit is not None), default=0)
    left = None if most is None else max(most - answers, 0)
    facts = {"name": name, "answers": answers, "keys": len(keys), "max_queries": most, "queries_left": left}
    return {**facts, "epsilon": guarantee(settings, name)["epsilon"]}
