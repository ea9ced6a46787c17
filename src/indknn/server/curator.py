"""Routes for those who look after the data, for owners, and for auditors."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from indknn.server import openapi
from indknn.server.access import Visitor
from indknn.server.body import read_body
from indknn.server.problems import Problem
from indknn.server.records import Deletion, Upload, parsed, remove, upsert
from indknn.server.service import Service
from indknn.settings import Derived
from indknn.store.naming import find_owner
from indknn.store.reports import statement

_LAST = (1 << 63) - 1


def routes(service: Service) -> APIRouter:
    """Over one service."""
    router = APIRouter()
    store, run = service.store, service.run

    @router.get("/v1/status", tags=["curator"], responses=openapi.example(openapi.STATUS))
    async def status() -> dict[str, Any]:
        """How much people have spent. For the curator's side: it depends on individual budgets."""
        return await run(service.reports.status)

    @router.get("/v1/audit", tags=["curator"], responses=openapi.example(openapi.AUDIT))
    async def audit(
        after: Annotated[int, Query(ge=0, le=_LAST - 1, description="The last position seen.")] = 0,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> dict[str, Any]:
        """The audit trail from a position on: what was done and when, without personal data."""
        return await run(lambda: service.reports.audit(after, limit))

    @router.get("/metrics", tags=["curator"], response_class=Response, responses=openapi.TEXT)
    async def metrics() -> Response:
        """Counters for Prometheus. Nothing in them depends on individual budgets."""
        body = service.metrics.text(service.worker.waiting)
        return Response(body, media_type="text/plain; version=0.0.4; charset=utf-8")

    @router.post(
        "/v1/records", tags=["curator"], openapi_extra=openapi.body(Upload), responses=openapi.example(openapi.ADDED)
    )
    async def add_records(request: Request) -> dict[str, Any]:
        """Add records, all or none. An item with the `id` of a record that is held replaces that record."""
        upload = parsed(Upload, await _body(service, request), service.options)
        return await run(lambda: upsert(store, upload))

    @router.delete(
        "/v1/records",
        tags=["curator"],
        openapi_extra=openapi.body(Deletion),
        responses=openapi.example(openapi.REMOVED),
    )
    async def delete_records(request: Request) -> dict[str, Any]:
        """Remove records, all or none. An owner whose last record goes is forgotten."""
        deletion = parsed(Deletion, await _body(service, request), service.options)
        return await run(lambda: remove(store, deletion))

    @router.get("/v1/owners/{id:path}", tags=["owner"], responses=openapi.example(openapi.STATEMENT))
    async def owner_statement(id: str, request: Request) -> dict[str, Any]:  # noqa: A002
        """A person's own statement: what was spent, and on how many queries."""
        _refuse_others(request.state.visitor, id)
        return await run(lambda: statement(store, find_owner(store, id)))

    @router.delete("/v1/owners/{id:path}", tags=["owner"], responses=openapi.example(openapi.RECEIPT))
    async def forget_owner(id: str, request: Request, derived: Derived = "keep") -> dict[str, Any]:  # noqa: A002
        """Forget a person: every record goes, what was spent stays on the books. Gives a receipt.

        What was released while they were here is kept, or purged and made anew from those who remain, who pay again:
        that is for curators to decide.
        """
        who = request.state.visitor
        _refuse_others(who, id)
        if derived == "purge" and who.key is not None and who.key.role == "owner":
            raise Problem(403, "derived=purge is for curators: those who remain would pay again")
        return await run(lambda: store.forget([find_owner(store, id)], derived=derived))

    return router


def _refuse_others(who: Visitor, owner: str) -> None:
    """An owner's key opens that owner's page alone, and does not tell who else there is."""
    if who.key is not None and who.key.role == "owner" and owner != who.key.owner:
        raise Problem(403, f"this key is for the owner {who.key.owner!r} alone")


async def _body(service: Service, request: Request) -> bytes:
    return await read_body(request.receive, dict(request.headers.raw), service.options.max_body)  # type: ignore[arg-type]
