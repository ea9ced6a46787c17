"""What a server does besides answering for a store in a database: erase old bytes, and stop after a takeover."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from indknn.errors import StoreError
from indknn.place import Address
from indknn.store import Store

_HOUR, _LOOK = 3600.0, 1.0
_log = logging.getLogger("indknn.server")


async def stop_if_fenced(store: Store, stop: Callable[[], None]) -> None:
    """Stop if another process has taken over the store, because nothing could be answered any more.

    After a failure, only opening the store again shows this. A file cannot be taken over.
    """
    if isinstance(store.path, Address):
        while not await asyncio.to_thread(_fenced, store):
            await asyncio.sleep(_LOOK)
        stop()


def _fenced(store: Store) -> bool:
    with suppress(StoreError):  # the server is not back yet
        store.recover()
    return store.fenced


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
