"""Routes for everybody: the console's files, health, the session, the model's public facts."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from indknn.server import openapi
from indknn.server.problems import Problem
from indknn.server.service import Service
from indknn.server.static import static_file


def routes(service: Service) -> APIRouter:
    """Over one service."""
    router = APIRouter()

    @router.get("/", include_in_schema=False)
    async def page() -> Response:
        body, kind = static_file("index.html")
        return Response(body, media_type=kind)

    @router.get("/console/{name}", include_in_schema=False)
    async def console_file(name: str) -> Response:
        body, kind = static_file(name)
        return Response(body, media_type=kind, headers={"cache-control": "no-cache"})

    @router.get("/v2/health/live", tags=["health"])
    async def live() -> dict[str, bool]:
        """Whether the process answers."""
        return {"live": True}

    @router.get("/v2/health/ready", tags=["health"])
    async def ready() -> dict[str, bool]:
        """Whether queries can be answered: there are, or were, records."""
        if service.closing or service.n_features is None:
            raise Problem(503, "there are no records yet, or the server is closing", "not_ready")
        return {"ready": True}

    @router.get("/v2", tags=["health"])
    async def server() -> dict[str, Any]:
        """Which server this is."""
        return {"name": "indknn", "version": openapi.VERSION, "extensions": []}

    @router.get("/v1/session", tags=["access"], responses=openapi.example(openapi.SESSION))
    async def session(request: Request) -> dict[str, Any]:
        """Who the caller is, and what they may do."""
        return service.session(request.state.visitor)

    @router.get("/v2/models/{name}", tags=["predict"], responses=openapi.example(openapi.MODEL))
    async def model(name: str) -> dict[str, Any]:
        """The public facts about the model."""
        _known(service, name)
        return service.metadata()

    @router.get("/v2/models/{name}/ready", tags=["predict"])
    async def model_ready(name: str) -> dict[str, Any]:
        """Whether the model can be asked."""
        _known(service, name)
        return {"name": name, "ready": service.n_features is not None}

    return router


def _known(service: Service, name: str) -> None:
    if name != service.options.name:
        raise Problem(404, f"there is no model {name!r}; this server has {service.options.name!r}")
