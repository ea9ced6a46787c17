"""Runs the server: it listens, answers, and on SIGTERM finishes what was begun."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn
import uvloop
from threadpoolctl import threadpool_limits

from indknn.engine import MakeShard
from indknn.errors import FencedError, InvalidInputError
from indknn.place import Place
from indknn.server.app import create_app
from indknn.server.gate import Gate
from indknn.server.limits import BACKLOG, Connections, allowed
from indknn.server.protocol import LimitedProtocol, close_overdue
from indknn.server.service import Embed, rewrite_old_bytes, stop_if_fenced
from indknn.settings import ServerOptions
from indknn.store import Store
from indknn.store.keyfile import keys_path, read_key_file


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
    if all(key.revoked is not None for key in read_key_file(keys_path(store)).keys):
        why = "--behind-proxy lets others in" if is_loopback(host) else f"--host {host} is beyond loopback"
        raise InvalidInputError(f"{why} and there are no keys; make one with: indknn keys create {store}")
    if not (tls or behind_proxy):
        raise InvalidInputError(
            f"--host {host} is beyond loopback and keys would travel in the clear; give --tls-cert and --tls-key, "
            "or --behind-proxy if a proxy encrypts"
        )


def serve(
    path: Place,
    *,
    options: ServerOptions,
    witness: Path | None = None,
    tls: tuple[Path, Path] | None = None,
    behind_proxy: bool = False,
    open_on_loopback: bool = False,
    embed: Embed | None = None,
    ready: Callable[[str], None] = print,
    make_shard: MakeShard | None = None,
) -> None:
    """Serve a store until SIGTERM or SIGINT. Everything that was charged is answered before this returns."""
    refuse_exposed(path, options.host, tls is not None, behind_proxy)
    # One thread for linear algebra: pieces of training are small, and several threads would wait for each other.
    with threadpool_limits(1, "blas"), Store(path, witness=witness, make_shard=make_shard) as store:
        app = create_app(store, keys=keys_path(path), options=options, open_on_loopback=open_on_loopback, embed=embed)
        if behind_proxy or not is_loopback(options.host):
            app.service.keys.is_open = False  # even if the file disappeared after it was read
        try:
            _run(app, tls, ready)
        finally:
            app.service.close()
        if store.fenced:
            raise FencedError(f"{store.path} was taken over by another process; this one has stopped")


def _run(app: Gate, tls: tuple[Path, Path] | None, ready: Callable[[str], None]) -> None:
    options = app.service.options
    everybody = Connections(allowed(options.max_connections))
    listening = _listen(options.host, options.port)
    cert, key = (None, None) if tls is None else map(str, tls)
    app.service.connections = everybody.__len__
    config = uvicorn.Config(
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
    logging.basicConfig(format="%(levelname)s %(name)s %(message)s", level=logging.WARNING)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # otherwise every stray byte is a line in the log
    server = uvicorn.Server(config)
    address = listening.getsockname()
    where = f"[{address[0]}]" if ":" in address[0] else address[0]

    def stop() -> None:
        server.should_exit = True

    async def main() -> None:
        store = app.service.store
        beside = [close_overdue(server.server_state.connections), app.service.prune_requests()]
        beside += [stop_if_fenced(app.service, stop), rewrite_old_bytes(store, options.rewrite_every)]
        running = [asyncio.ensure_future(task) for task in beside]
        asyncio.get_running_loop().call_soon(ready, f"{'http' if tls is None else 'https'}://{where}:{address[1]}")
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


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        return socket.create_server(address, family=family, backlog=BACKLOG, dualstack_ipv6=both)
    except (OSError, OverflowError) as error:
        raise InvalidInputError(f"cannot listen on {host} port {port}: {error}") from None
