"""The application: routes on one store. `create_app` is all that others need."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from indknn import __version__
from indknn.errors import IndKNNError
from indknn.server import curator, openapi, public
from indknn.server.access import needed
from indknn.server.front import Front, report
from indknn.server.options import Options
from indknn.server.problems import Problem, as_problem
from indknn.server.service import Service
from indknn.store import Store


def create_app(store: Store, *, keys: str | Path | None = None, options: Options | None = None) -> Front:
    """An ASGI application over an open store.

    `keys` is the file of API keys; without one everything is allowed, which is for loopback only. The caller closes
    `app.service` and then the store.
    """
    service = Service(store, None if keys is None else Path(keys), options or Options())
    app = FastAPI(
        title="indknn",
        version=__version__,
        description=openapi.DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        responses=openapi.PROBLEMS,
        redirect_slashes=False,
        dependencies=[Depends(_as_granted)],
    )
    app.include_router(public.routes(service))
    app.include_router(curator.routes(service))
    app.add_exception_handler(Problem, _problem)
    app.add_exception_handler(IndKNNError, _problem)
    app.add_exception_handler(Exception, _problem)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _validation)
    build = app.openapi

    def documented() -> dict[str, Any]:
        return openapi.completed(build(), service)

    app.openapi = documented  # type: ignore[method-assign]
    return Front(app, service)


async def _as_granted(request: Request) -> None:
    """The front decides by the path, the router by its patterns: where they do not mean the same, nothing is done."""
    if needed(request.method, request.scope["route"].path) != request.state.granted:
        raise Problem(404, "there is nothing at this path")


def answer(problem: Problem) -> Response:
    """A problem as a response."""
    response = Response(problem.body, problem.status, media_type="application/json")
    response.raw_headers.extend(problem.headers)
    return response


async def _problem(request: Request, error: Exception) -> Response:
    problem = as_problem(error)
    if isinstance(error, IndKNNError) and problem.status >= 500:
        report(error)  # the unexpected is reported in front
    return answer(problem)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    texts = {404: f"there is nothing at {request.url.path}", 405: f"{request.method} is not allowed here"}
    headers = tuple((k.lower().encode(), v.encode()) for k, v in (error.headers or {}).items())
    return answer(Problem(error.status_code, texts.get(error.status_code, str(error.detail)), headers=headers))


async def _validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return answer(Problem(422, first_fault(error.errors())))


first_fault: Callable[..., str] = openapi.first_fault
