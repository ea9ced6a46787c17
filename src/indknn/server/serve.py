"""Runs the server: it listens, answers, and on SIGTERM finishes what was begun."""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import uvicorn
import uvloop
from threadpoolctl import threadpool_limits

from indknn import __version__
from indknn.core.noise import SecureNoise
from indknn.engine import Engine, MakeShard
from indknn.errors import FencedError, InvalidInputError
from indknn.place import Place
from indknn.server.app import create_app
from indknn.server.gate import Gate, key_text
from indknn.server.limits import BACKLOG, Connections, LimitedProtocol, allowed, close_overdue
from indknn.server.service import Embed, Service, rewrite_old_bytes, stop_if_fenced
from indknn.server.telemetry import ForLog, Log
from indknn.settings import LogForm, ServerOptions, Settings
from indknn.store import Store
from indknn.store.keyfile import keys_path, read_key_file
from indknn.tables.columns import Text

_READY = "/v2/health/ready"
_AGAIN = 30.0  # seconds after loading has failed
_TEXT = ["a text"]
_log = logging.getLogger("indknn.server")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host name or address.

    >>> is_loopback("127.0.0.1"), is_loopback("0.0.0.0"), is_loopback("localhost")
    (True, False, True)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def refuse_exposed(store: Place, host: str, tls: bool, behind_proxy: bool) -> None:
    """Refuse to serve other machines, or through a proxy, without keys or with keys that are sent unencrypted."""
    if is_loopback(host) and not behind_proxy:
        return
    refuse_without_keys(
        store, "--behind-proxy lets others in" if is_loopback(host) else f"--host {host} is beyond loopback"
    )
    if not (tls or behind_proxy):
        raise InvalidInputError(
            f"--host {host} is beyond loopback and keys would travel in the clear; give --tls-cert and --tls-key, "
            "or --behind-proxy if a proxy encrypts"
        )


def refuse_without_keys(store: Place, why: str) -> None:
    """Refuse a store for which no key is in use."""
    if all(key.revoked is not None for key in read_key_file(keys_path(store)).keys):
        raise InvalidInputError(f"{why} and there are no keys; make one with: indknn keys create {store}")


def serve(
    places: Sequence[Place],
    *,
    options: Sequence[ServerOptions],
    witness: Path | None = None,
    tls: tuple[Path, Path] | None = None,
    behind_proxy: bool = False,
    open_on_loopback: bool = False,
    embed: Embed | None = None,
    ready: Callable[[str], None] = print,
    make_shards: Sequence[MakeShard | None] = (None,),
) -> None:
    """Serve stores until SIGTERM or SIGINT. Everything that was charged is answered before this returns.

    Each store has its options, which differ in the name alone. With several, `witness` is a folder.
    """
    common, several = options[0], len(places) > 1
    for place in places:
        refuse_exposed(place, common.host, tls is not None, behind_proxy)
        if several:
            refuse_without_keys(place, "several stores are served, so the key must say which is meant,")
    with _logging(common.log) as log, ExitStack() as opened:
        log.event("start", version=__version__, process=os.getpid(), stores=len(places))
        # One thread for linear algebra: pieces of training are small, and several threads would wait for each other.
        opened.enter_context(threadpool_limits(1, "blas"))
        gates = []
        for place, own, make_shard in zip(places, options, make_shards, strict=True):
            seen = _witness(witness, own.name) if several else witness
            store = opened.enter_context(Store(place, witness=seen, make_shard=make_shard))
            asked: dict[str, Any] = {"options": own, "open_on_loopback": open_on_loopback, "embed": embed, "log": log}
            gates.append(create_app(store, keys=keys_path(place), **asked))
            if behind_proxy or not is_loopback(common.host):
                gates[-1].service.keys.is_open = False  # even if the file disappeared after it was read
        services = [gate.service for gate in gates]
        try:
            _run(Stores(gates, same_people=common.same_people) if several else gates[0], services, tls, ready)
        finally:
            log.event("stop")
            for service in services:
                service.close()
        for service in services:
            if service.store.fenced:
                raise FencedError(f"{service.store.path} was taken over by another process; this one has stopped")


def _witness(folder: Path | None, name: str) -> Path | None:
    """The witness of one of several stores."""
    if folder is not None and not folder.is_dir():
        raise InvalidInputError(f"with several stores --witness must be a folder, which holds one for each: {folder}")
    return None if folder is None else folder / f"{name}.witness"


@contextmanager
def _logging(form: LogForm) -> Iterator[Log]:
    """The log of this process. What others say with `logging` goes there too."""
    log = Log(form)
    handler = ForLog(log) if log.on else logging.StreamHandler()  # warnings and errors are shown in any case
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # otherwise every stray byte is a line in the log
    try:
        yield log
        log.event("stopped")
    finally:
        logging.getLogger().removeHandler(handler)
        log.close()


def _run(
    app: Gate | Stores, services: Sequence[Service], tls: tuple[Path, Path] | None, ready: Callable[[str], None]
) -> None:
    options = services[0].options
    everybody = Connections(allowed(options.max_connections))
    listening = _listen(options.host, options.port)
    for service in services:
        service.connections, service.warm = everybody.__len__, False
    server = uvicorn.Server(_config(app, tls, everybody))
    address = listening.getsockname()
    where = f"[{address[0]}]" if ":" in address[0] else address[0]

    def stop() -> None:
        server.should_exit = True

    async def main() -> None:
        beside = [close_overdue(server.server_state.connections)]
        for service in services:
            beside += [service.prune_requests(), stop_if_fenced(service, stop), become_ready(service)]
            beside += [rewrite_old_bytes(service.store, options.rewrite_every)]
        running = [asyncio.ensure_future(task) for task in beside]
        url = f"{'http' if tls is None else 'https'}://{where}:{address[1]}"
        services[0].log.event("listening", url=url)
        asyncio.get_running_loop().call_soon(ready, url)
        try:
            await server.serve(sockets=[listening])
        finally:
            for task in running:
                task.cancel()

    # uvicorn raises the signal again when it is done. Then there is nothing left to do but return.
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _config(app: Gate | Stores, tls: tuple[Path, Path] | None, everybody: Connections) -> uvicorn.Config:
    cert, key = (None, None) if tls is None else map(str, tls)
    return uvicorn.Config(
        app,
        loop="uvloop",
        http=type("ServedProtocol", (LimitedProtocol,), {"everybody": everybody}),
        backlog=BACKLOG,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        ssl_certfile=cert,
        ssl_keyfile=key,
        ssl_ciphers="ECDHE+AESGCM:ECDHE+CHACHA20",  # for TLS 1.2; some versions of uvicorn allow CBC and NULL
    )


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        return socket.create_server(address, family=family, backlog=BACKLOG, dualstack_ipv6=both)
    except (OSError, OverflowError) as error:
        raise InvalidInputError(f"cannot listen on {host} port {port}: {error}") from None


# Several stores behind one address


class Stores:
    """An ASGI application that gives each request to the application of its store, each with its own keys and worker.

    The key of a request says which store is meant. A key opens one store, so nobody learns from another key, or from
    none, which other stores there are.
    """

    def __init__(self, gates: Sequence[Gate], *, same_people: bool = False):
        self.gates = list(gates)
        services = [gate.service for gate in gates]
        names = [service.name for service in services]
        if len(set(names)) < len(names):
            raise InvalidInputError(f"each store needs a name of its own, got {', '.join(names)}: rename a file")
        for service in services:
            service.alone = service.keys.is_open = False  # without a key nobody knows which store is meant
            service.pace, service.bodies = services[0].pace, services[0].bodies  # the limits are for all together
            if same_people:
                service.same_people = tuple(services)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        await self._meant(scope)(scope, receive, send)

    def _meant(self, scope: Any) -> Gate:
        """The application whose key was shown. Others are told by the first one that they need a key."""
        if scope["type"] == "http":
            text = key_text(dict(scope["headers"]))
            for gate in self.gates if text else ():
                if gate.service.keys.find(text) is not None:
                    return gate
            if scope["path"] == _READY:
                return next((gate for gate in self.gates if not gate.service.ready), self.gates[0])
        return self.gates[0]


# Before the server says that it is ready, it loads what the first query would otherwise wait for


async def become_ready(service: Service) -> None:
    """Warm up in a thread while requests are answered already. If it fails, the server is not ready, and tries again.

    The error is logged in full: it is about public models, before anything private is used.
    """
    while not service.warm:
        try:
            await asyncio.to_thread(warm_up, service)
        except Exception as error:
            _log.error("the models cannot be loaded, so this server is not ready: %s", error)
            await asyncio.sleep(_AGAIN)
        else:
            gc.collect()
            gc.freeze()  # what is loaded by now stays; to look through it again would hold up everybody for 50 ms
            service.warm = True
            service.log.event("ready")


def warm_up(service: Service) -> None:
    """Load the extractors of texts, and run the native code once, on made-up records in memory."""
    if service.embed is not None:
        service.embed(_TEXT)
    schema = service.schema
    for column in () if schema is None else schema.used.values():
        if isinstance(column, Text):
            column.write(list(_TEXT), np.empty((1, len(column.places))))
    if not service.store.draft:
        rehearse(service.store.settings)


def rehearse(settings: Settings) -> npt.NDArray[Any]:
    """Train and ask a small store of made-up people in memory, with the settings of the real one."""
    rows = np.random.default_rng(0).normal(size=(32, settings.n_features))
    engine = Engine(settings, SecureNoise())
    said = np.resize(settings.class_array if settings.bounds is None else settings.bounds, len(rows))
    engine.add(rows, said, [str(i) for i in range(len(rows))])
    return engine.predict(rows[:2])
