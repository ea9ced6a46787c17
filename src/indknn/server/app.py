"""The application: `create_app` puts the routes on a store and the gateway around them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from indknn import __version__
from indknn.errors import IndKNNError
from indknn.server import administration, openapi
from indknn.server.gateway import Gateway
from indknn.server.options import Options
from indknn.server.problems import Problem, as_problem, first_fault, log_error, shown
from indknn.server.routes import router
from indknn.server.service import Embed, Service
from indknn.store import Store


def create_app(
    store: Store,
    *,
    keys: str | Path | None = None,
    options: Options | None = None,
    open_on_loopback: bool = False,
    embed: Embed | None = None,
) -> Gateway:
    """An ASGI application over an open store.

    `keys` is the file of API keys. Without one everything is allowed, so use that on loopback only. A store that had
    keys is refused without them, unless `open_on_loopback`. `embed` turns texts into rows of features; with it, texts
    may be asked as tensors of BYTES. The caller closes `app.service` and then the store.
    """
    service = Service(store, None if keys is None else Path(keys), options or Options(), open_on_loopback, embed)
    app = FastAPI(
        title="indknn",
        version=__version__,
        description=openapi.DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        responses=openapi.PROBLEMS,
        redirect_slashes=False,
        exception_handlers=dict.fromkeys(
            (Problem, IndKNNError, HTTPException, RequestValidationError, Exception), _on_error
        ),
    )
    app.state.service = service
    app.include_router(router)
    app.include_router(administration.router)
    app.openapi = partial(openapi.completed, app.openapi, service)  # type: ignore[method-assign]
    return Gateway(app, service)


async def _on_error(request: Request, error: Exception) -> Response:
    """Any error of a route, in the one shape."""
    if isinstance(error, HTTPException):
        texts = {404: f"there is nothing at {shown(request.url.path)}", 405: f"{request.method} is not allowed here"}
        headers = tuple((k.lower().encode(), v.encode()) for k, v in (error.headers or {}).items())
        problem = Problem(error.status_code, texts.get(error.status_code, str(error.detail)), headers=headers)
    elif isinstance(error, RequestValidationError):
        problem = Problem(422, first_fault(error.errors()))
    else:
        problem = as_problem(error)
        if isinstance(error, IndKNNError) and problem.status >= 500:
            log_error(error)  # other errors reach the gateway, which logs them
    response = Response(problem.body, problem.status, media_type="application/json")
    response.raw_headers.extend(problem.headers)
    return response
