"""What a server does besides answering for a store in a database: erase old bytes, and stop after a takeover."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from indknn.errors import FencedError, StoreError
from indknn.place import Address
from indknn.server.service import Service
from indknn.store import Store

LOOK_SECONDS = 1.0
"""How often a server asks its database whether it still has the store, also while nobody asks it anything."""
_HOUR = 3600.0
_log = logging.getLogger("indknn.server")


async def stop_if_fenced(service: Service, stop: Callable[[], None]) -> None:
    """Stop if another process has taken over the store: what is in memory may have been erased since.

    A file cannot be taken over.
    """
    while isinstance(service.store.path, Address) and not service.closing:
        await asyncio.to_thread(look, service)
        if service.closing:
            stop()
        await asyncio.sleep(LOOK_SECONDS)


def look(service: Service) -> None:
    """Ask the database whether this process still has the store. If that is not known, the server is not ready."""
    for again in (True, False):
        try:
            service.store.flush()
        except FencedError:
            service.closing = True
        except StoreError:
            if again:  # the session may have been ended by whoever took over: a new one is told so
                continue
            service.reachable = False
        else:
            service.reachable = True
        return


async def rewrite_old_bytes(store: Store, hours: float) -> None:
    """Run the second stage of erasures regularly, in a separate thread. Answers go on meanwhile."""
    while True:
        await asyncio.sleep(min(hours * _HOUR, 1e9))
        try:
            await asyncio.to_thread(_rewrite_if_needed, store)
        except StoreError as error:
            _log.warning("old bytes of erased records were not written over: %s", error)


def _rewrite_if_needed(store: Store) -> None:
    with store.reading() as db:
        needed = store.home.old_bytes(db)
    if needed:
        for why in store.rewrite().get("why", ()):
            _log.warning("old bytes of erased records may still be there: %s", why)
