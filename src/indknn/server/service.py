"""What all routes share: the store behind its worker, the keys, the limits, the counters."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from indknn.errors import FencedError, StoreError, UnknownOwnerError
from indknn.ledger.figures import added_up, guarantee, statement
from indknn.place import Address
from indknn.server.gate import OPEN, PERMISSIONS, BodyBudget, Keyring, may
from indknn.server.limits import Pace, RateLimiter
from indknn.server.telemetry import Log, Metrics
from indknn.server.wire import SMALL, Bounds, Reader
from indknn.server.worker import Worker
from indknn.settings import ServerOptions
from indknn.store import Store
from indknn.store.chain import entries, last, published, signed_head
from indknn.store.journal import today
from indknn.store.keyfile import Key, is_keyed, keys_path, mark_keyed
from indknn.store.reports import Figures
from indknn.types import FloatArray, Scope

_HOUR = 3600.0
_NUMBER = 64  # bytes of a number in JSON, indented
_MORE = 256  # lists, objects and commas of a request besides its numbers; and commas in the names of a record
_POINTS = 500
_ENTRIES = 5000  # of the audit trail, read at a time
_KEPT = 50 * _POINTS
_SINCE = "SELECT at, body FROM audit WHERE kind = 'answers' AND position > ? AND position <= ? ORDER BY position"
LOOK_SECONDS = 1.0
"""How often a server asks its database whether it still has the store, also while nobody asks it anything."""
UNSURE_SECONDS = 10.0
"""If that is not answered for so long, the server is not ready: the database is cut off, or the store is being read."""
_log = logging.getLogger("indknn.server")
T = TypeVar("T")
Embed: TypeAlias = Callable[[list[str]], FloatArray]


def steady_days(clock: Callable[[], float] = time.monotonic) -> Callable[[], int]:
    """A function that tells the day. If the system's clock is set forward, it goes on as if that had not happened.

    Otherwise all requests would be forgotten at once, and whoever repeats one would pay again.
    """
    first, since = today(), clock()
    return lambda: min(today(), first + 1 + int(clock() - since) // (24 * int(_HOUR)))


class Service:
    """One store that is served. `close` finishes what was begun, and leaves the store open."""

    def __init__(
        self,
        store: Store,
        keys: Path | None,
        options: ServerOptions,
        open_on_loopback: bool,
        embed: Embed | None = None,
        log: Log | None = None,
    ):
        self.store = store
        self.log = log or Log()
        self.options = options
        self.name = options.name
        self.embed = embed
        self.look()
        self.keys = Keyring(keys, self._log_keys)
        with store.reading() as db:
            self.keyed = is_keyed(db)
            self.signing_keys = published(db)  # nobody can change them while this process has the store
        if self.keys.is_open and self.keyed and not open_on_loopback:
            raise StoreError(
                f"{store.path} had keys, but {keys_path(store.path).name} is lost or empty: restore that file, make "
                "new keys with indknn keys create, or let everybody on this machine in with --open-on-loopback"
            )
        self.rate_limiter = RateLimiter()
        self.pace = Pace()
        self.bodies = BodyBudget(options.max_bodies, options.max_body)
        self.reader = Reader()
        self.metrics = Metrics()
        self.reports = Reports(store)
        self.backing_up = asyncio.Lock()
        self.alone = True  # on this server
        self.same_people: tuple[Service, ...] = ()  # the services in which a name means the same person, this one too
        self.closing = False  # then nothing is told any more
        self.reachable = True  # the database of the store
        self.warm = True  # whether everything is loaded that answers need; `serve` begins without
        self.connections: Callable[[], int] = lambda: 0  # how many are open; `serve` sets this
        if not self.keys.is_open:
            self._mark_keyed()

    def _log_keys(self, keys: list[Key]) -> None:
        by_role = Counter(key.role for key in keys)
        self.log.event("keys", in_use=len(keys), **{role: by_role[role] for role in sorted(by_role)})

    async def remember_keys(self) -> None:
        """Let the store remember that it has keys, after the first was made."""
        await self.worker.run(self._mark_keyed)

    def _mark_keyed(self) -> None:
        with suppress(StoreError):  # a full disk: the next request tries again
            with self.store.changing() as change:
                mark_keyed(change.state.db)
            self.keyed = True

    async def told(self, work: Callable[[], T]) -> T:
        """The result of some work that tells what is in the store.

        Before that, everything is made durable, because a crash must not undo what was told (rule 2). A store in a
        database is also asked whether it was taken over, because people may have been erased from it since.
        """

        def now() -> T:
            self.store.flush()
            return work()

        return await self.worker.run(now)

    @cached_property
    def worker(self) -> Worker:
        """The threads that work on the store. They start when they are first needed."""
        return Worker(self.store, self.metrics, self.look, 3600.0 * self.options.train_every, self.log)

    def close(self) -> None:
        """Return when everything that was begun is finished."""
        self.closing = True
        self.reader.close()
        if "worker" in self.__dict__:
            self.worker.close()

    async def prune_requests(self) -> None:
        """Delete the ids of old requests at the beginning of each day, until it is cancelled."""
        last, day = 0, steady_days()
        while True:
            if last != (last := day()):
                await self.worker.run(partial(self._prune, last))
            await asyncio.sleep(_HOUR)

    def _prune(self, day: int) -> None:
        with suppress(StoreError), self.store.changing() as change:  # a full disk: tomorrow it is tried again
            change.prune(self.options.keep_requests, day)

    def look(self) -> None:
        """Remember what every request needs to know, because reading it from the store may have to reload the store."""
        settings = self.store.settings
        self.n_features: int | None = None if self.store.draft else settings.n_features  # None before the first records
        self.schema, self.classes, self.target = self.store.schema, settings.class_array, settings.target_
        # How long a body with queries may be, and how much structure it may have: the most that rows in JSON can need.
        options, numbers = self.options, self.options.max_batch * (self.n_features or 1)
        most, bounds = min(options.max_body, _NUMBER * numbers + SMALL), (options.max_batch + _MORE, numbers + _MORE)
        if self.embed is not None or self.schema is not None:  # texts are of any length, and full of commas
            most, bounds = options.max_body, (options.max_body, options.max_body)
        self.query_bounds = most, Bounds(*bounds)

    @property
    def record_bounds(self) -> Bounds:
        """How much structure an upload of records may have."""
        records = self.options.max_records
        width = None if self.schema is not None else self.n_features  # values of tables may be full of commas
        commas = self.options.max_body if width is None else records * (width + _MORE)
        return Bounds(3 * records + _MORE, commas)  # a record, and its features or values

    async def statement(self, owner: str, other_keys: Sequence[str] | None = None) -> dict[str, Any]:
        """The statement of one person.

        With `other_keys` it has the sum over this store and those that are about the same people, if one of these keys
        is that person's own in them. Whoever runs one store can make keys for it, and learns nothing of another.
        """
        own = await self.told(lambda: statement(self.store.engine, owner))
        if other_keys is None or not self.same_people:
            return own
        found = {self.name: own}
        for other in self.same_people:
            shown = [other.keys.find(text) for text in other_keys[: len(self.same_people)]]
            if any(key is not None and key.owner == owner for key in shown):
                with suppress(UnknownOwnerError):
                    found[other.name] = await other.statement(owner)
        return {**own, "everywhere": added_up(found)}

    @property
    def ready(self) -> bool:
        """Whether queries can be answered without waiting for a model to be loaded."""
        sound = self.reachable and not self.store.failed  # else the store reads itself anew, with all of its shards
        return sound and self.warm and not self.closing and self.n_features is not None

    def session(self, key: Key) -> dict[str, Any]:
        """Who the caller is, and what they may do."""
        return {
            "role": key.role,
            "name": None if key is OPEN else key.name,
            "model": self.name,
            "open": key is OPEN,
            "n_features": self.n_features,
            "classes": self.classes.tolist(),
            "can": [permission for permission in PERMISSIONS if may(key, permission)],
            "owner": key.owner,
            "guarantee": guarantee(
                self.store.settings,
                None if key is OPEN else key.name,
                periods=self.store.periods,
            ),
            "time": self.store.over_time,
        }


# Reports


class Reports:
    """Reports about one store. It remembers what it read of the audit trail, so each entry is read once."""

    def __init__(self, store: Store):
        self.store = store
        self._read = 0
        self._answers: list[tuple[str, int]] = []  # by second, ascending

    def moment(self, answers: dict[Scope, int]) -> Callable[[], dict[str, Any]]:
        """A function that returns the status of the store as it is now, with the answers over time read so far.

        The store may go on before the function is called.
        """
        now, over_time = Figures(self.store, answers), self.answers_over_time()

        def status() -> dict[str, Any]:
            facts = {name: fact for name, fact in now.status().items() if name != "store"}
            return {**facts, "answers_over_time": over_time}

        return status

    def read_some(self) -> bool:
        """Read some more of the audit trail. Returns whether there is more to read."""
        with self.store.reading() as db:
            newest = last(db).position
            upto = min(self._read + _ENTRIES, newest)
            rows: list[Any] = db.execute(_SINCE, (self._read, upto)).fetchall()
            self._read = upto
        for at, body in rows:
            facts = json.loads(body)
            count = facts["count"] - facts.get("sums", 0)
            if self._answers and self._answers[-1][0] == at:
                count += self._answers.pop()[1]
            self._answers.append((at, count))
        while len(self._answers) > _KEPT:  # merge neighbours, so that memory stays limited
            pairs = zip(self._answers[::2], [*self._answers[1::2], ("", 0)], strict=False)
            self._answers = [(max(a, b), n + m) for (a, n), (b, m) in pairs]
        return upto < newest

    def answers_over_time(self) -> list[dict[str, Any]]:
        """How many answers were given, in at most 500 steps, the oldest first."""
        step = -(-len(self._answers) // _POINTS) or 1
        groups = [self._answers[i : i + step] for i in range(0, len(self._answers), step)]
        return [{"at": group[-1][0], "answers": sum(n for _, n in group)} for group in groups]

    def audit(self, after: int, limit: int) -> dict[str, Any]:
        """A page of the audit trail. The last page has the signed head."""
        with self.store.reading() as db:
            newest = last(db)
            page = [entry.shown() for entry in islice(entries(db, after + 1), limit)]
            more = bool(page) and page[-1]["position"] < newest.position
            head = None if more else signed_head(db, self.store.signer, newest)
        return {"entries": page, "next": page[-1]["position"] if more else None, "last": newest.position, "head": head}


# Beside the answers, for a store in a database


async def stop_if_fenced(service: Service, stop: Callable[[], None]) -> None:
    """Stop if another process has taken over the store: what is in memory may have been erased since.

    A file cannot be taken over.
    """
    while isinstance(service.store.path, Address) and not service.closing:
        looking = asyncio.ensure_future(asyncio.to_thread(look, service))
        if not (await asyncio.wait({looking}, timeout=UNSURE_SECONDS))[0]:
            service.reachable = False  # until it is answered
        await looking
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
