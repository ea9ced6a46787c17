"""The write path: answers and their debits are written in one transaction, then the answers may leave (rule 2).

Answers are noted in order, under the lock of the store. `commit` makes all noted answers durable in one transaction.
The first caller writes for everybody who is waiting, while others go on computing. This is called group commit: many
callers share one sync of the disk.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import repeat
from threading import Lock, RLock
from typing import Any, TypeAlias

import numpy as np

from indknn.answering.requests import Reply, Request
from indknn.core.releases import Release, encode
from indknn.errors import FencedError, RequestConflictError, StoreError
from indknn.ledger import MemoryLedger, Scope
from indknn.store import chain
from indknn.store.codec import BLOCK, Debits, exact_sum
from indknn.store.database import Balance, read_scopes, scope_id, set_meta, snapshot, write_balances
from indknn.store.guard import Guard
from indknn.store.home import Connection
from indknn.store.requests import today
from indknn.types import IntArray, Vectors

Known: TypeAlias = tuple[bytes, bytes]
"""For a request with an id: the digest of what was asked, and what was answered (`_told`)."""

FOLD_BYTES, _FOLD_LEAST = 8 << 20, 256 << 10
"""Debits are folded into balances when they reach this size, or earlier in a small store."""
_MANY, _LONG = 256 << 10, 4 << 20
_BALANCE = _DEBIT = 12  # bytes


@dataclass(frozen=True)
class Noted:
    """One new answer with its charges."""

    seq: int
    scope: Scope
    query: Vectors | None  # None for a sum over records
    label: int
    charged: int
    debits: Debits | None  # None if balances are written instead
    release: bytes | None  # what was released besides the label


class StoreJournal:
    """Notes answers and writes them to a database.

    The answers of one call form a group together with the request id. A group is written completely or not at all. So a
    repeated request either finds all of its answers, or finds none and pays once.
    """

    def __init__(self, db: Connection, ledger: MemoryLedger, guard: Guard):
        self.db = db
        self.io = RLock()  # a connection allows only one thread at a time, and fails otherwise
        self.ledger = ledger
        self.ledger.log = {}
        self.failure: BaseException | None = None
        self.background = False
        self.owed = False  # whether a release for which nobody waits is not on disk yet
        self.tau: Callable[[], float | None] = lambda: None  # a threshold to write with the next answers
        self.touched: set[tuple[Scope, int]] = set()  # blocks with debits since the last fold
        self.unfolded_bytes = int(db.execute("SELECT coalesce(sum(length(body)), 0) FROM debits").get)
        self._guard = guard
        self._next = int(db.execute("SELECT coalesce(max(seq), 0) + 1 FROM answers").get)
        self._known: dict[str, Known] = {
            request: (digest, labels)
            for request, digest, labels in db.execute("SELECT id, digest, labels FROM requests")
        }
        self._sealed = self._durable = 0  # groups
        self._open: list[Noted] = []
        self._open_bytes, self._folding = 0, False
        self._may_fold = False  # with answers: not if debits are long already, as a fold may just have failed
        self._pending: list[Noted] = []
        self._requests: dict[str, Known] = {}
        self._fold_blocks: set[tuple[Scope, int]] = set()  # the blocks that the fold covers
        self._fold: tuple[list[Balance], int] | None = None  # balances that replace the debits up to this answer
        self._list_lock = Lock()
        self._tau_written = False
        self._scopes = {name: number for number, name in read_scopes(db).items()}

    @property
    def last_noted(self) -> int:
        """The number of the latest answer."""
        return self._next - 1

    def number(self) -> int:
        """The number of an answer that the caller writes itself, in a transaction of records and people."""
        self._next += 1
        return self.last_noted

    @property
    def fold_bytes(self) -> int:
        """How long debits may become: many times the balances, within limits."""
        return min(FOLD_BYTES, max(_FOLD_LEAST, 64 * _BALANCE * len(self.ledger.participation)))

    def note(self, analyst: Scope, query: Vectors | None, label: int, release: Release | None) -> None:
        """Note a new answer or sum, with all charges since the one before. The caller holds the store's lock."""
        log = (self.ledger.log or {}).pop(analyst, [])
        if self._folding:
            debits, charged = None, sum(exact_sum(units) for _, units in log)
            touched = range(min(_ends(log)) // BLOCK, max(_ends(log)) // BLOCK + 1) if log else range(0)
            self.touched.update(zip(repeat(analyst), touched))
        else:
            debits = Debits.merge(log)
            charged = debits.total
            self.touched.update(zip(repeat(analyst), debits.blocks))
            self._open_bytes += _DEBIT * len(debits.slots)
            self._folding = self._open_bytes > max(_MANY, 2 * len(self.touched) * BLOCK * _BALANCE)
        with self._list_lock:
            text = None if release is None else encode(release)
            self._open.append(Noted(self._next, analyst, query, label, charged, debits, text))
            self._next += 1

    def seal(self, request: Request, reply: Reply) -> None:
        """Everything noted since the last call belongs to this request.

        If so many answers came together that their debits are longer than the balances of everybody concerned, those
        balances are written instead. They are taken now, when the ledger is just behind the last answer.
        """
        with self.ledger.lock, self._list_lock:
            if self.unfolded_bytes <= self.fold_bytes:
                self._may_fold = True
            elif self.background and self._may_fold and self._fold is None:
                self._folding = True  # balances replace debits; the next commit writes them
            if request.request_id is not None:
                known = request_digest(request), _told(reply)
                self._known[request.request_id] = self._requests[request.request_id] = known
            self._close_group(bool(self._open) or request.request_id is not None)

    def secure(self) -> None:
        """Make what was noted durable before the answers that follow. Used for a release of the shared model.

        Everybody is charged for such a release, so debits soon become longer than balances. With `background`, the next
        commit does it: groups are written in order, so nothing that this release shaped can leave before it is on disk.
        """
        with self.ledger.lock, self._list_lock:
            self._folding = self._folding or self.unfolded_bytes > _LONG
            self._close_group(True)
            self.owed = self.background
        if not self.background:
            self.commit()

    def _close_group(self, anything: bool) -> None:
        self._sealed += anything
        if self._folding:
            # This fold includes an earlier fold that is not written yet, because its debits were dropped already.
            self._fold_blocks |= self.touched
            self._fold = (snapshot(self.ledger, sorted(self._fold_blocks, key=str)), self.last_noted)
            self.touched.clear()
        self._pending += self._open
        self._open, self._open_bytes, self._folding = [], 0, False

    def request(self, request_id: str) -> Known | None:
        """An earlier request with this id, durable or about to be."""
        return self._known.get(request_id)

    def repeated(self, request: Request) -> Reply:
        """The answer to an earlier request with this id."""
        digest, told = self._known[str(request.request_id)]
        if digest != request_digest(request):
            name = request.request_id
            raise RequestConflictError(f"request id {name!r} was used before for other queries; use a new one")
        n = len(request.queries)
        labels, likely = np.frombuffer(told[: 8 * n], "<i8"), np.frombuffer(told[8 * n :], "<f8")
        rows = likely.astype(np.float64).reshape(n, -1) if len(likely) else None
        return Reply(labels.astype(np.int64), 0, rows)

    def forget_requests(self, names: Iterable[str] | None = None) -> None:
        """Forget these requests, or all of them, because their answers were deleted.

        A repeated request is then a new one.
        """
        for name in list(self._known) if names is None else names:
            self._known.pop(name, None)

    def commit(self) -> None:
        """Return when every group so far is on disk. After a failure, nothing is written any more.

        A process that was replaced is refused, also if there is nothing to write: it must not repeat answers that may
        have been deleted since.
        """
        target = self._sealed
        with self.io:
            if self._durable >= target:
                self._refuse_if_replaced()
                return
            if self.failure is not None:
                raise StoreError(f"not answered, because writing failed: {self.failure}") from self.failure
            try:
                with self._list_lock:
                    batch, requests, fold, upto = self._pending, self._requests, self._fold, self._sealed
                    self._pending, self._requests, self._fold, self.owed = [], {}, None, False
                    self._fold_blocks = set()
                self._guard.refuse_if_moved()
                entry = self._write(batch, requests, fold)
                if entry is not None:
                    self._guard.saw(entry)  # the witness sees it before anybody else
            except BaseException as error:
                self.failure = error  # stop: only the disk knows whether it was written
                if not isinstance(error, Exception):
                    raise
                raise StoreError(f"not answered, because writing failed: {error}") from error
            self._durable = upto

    def _refuse_if_replaced(self) -> None:
        try:
            if not self._guard.still_held(self.db):
                raise FencedError("another process has taken this store over: nothing was answered")
        except StoreError as error:
            self.failure = error
            raise

    def _write(
        self, batch: list[Noted], requests: dict[str, Known], fold: tuple[list[Balance], int] | None
    ) -> chain.Entry | None:
        entry, tau, folded = None, self.tau(), 0 if fold is None else fold[1]
        told: dict[str, Any] = {}
        if batch:
            charged, sums = sum(a.charged for a in batch), sum(a.label < 0 for a in batch)
            told = {"first": batch[0].seq, "last": batch[-1].seq, "count": len(batch), "sums": sums}
            told["charged"] = str(charged)
        values = [(request, *known, today()) for request, known in requests.items()]
        paid = [a for a in batch if a.debits is not None and a.seq > folded]
        with self.db:
            for answer in batch:
                if answer.scope not in self._scopes:
                    self._scopes[answer.scope] = scope_id(self.db, answer.scope)
            rows = [(*_row(a, self._scopes[a.scope]), str(a.charged), a.release) for a in batch]
            if tau is not None and not self._tau_written:
                set_meta(self.db, "tau", tau)
                self._tau_written = True
            if fold is not None:
                write_balances(self.db, *fold)
                self.unfolded_bytes = 0
            debits = [(answer.seq, answer.debits.encode()) for answer in paid if answer.debits is not None]
            self.unfolded_bytes += sum(len(body) for _, body in debits)
            self.db.executemany("INSERT INTO debits VALUES (?, ?)", debits)
            self.db.executemany("INSERT INTO answers VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            self.db.executemany("INSERT INTO requests VALUES (?, ?, ?, ?)", values)
            if batch:
                entry = chain.append(self.db, "answers", **told)
            elif requests:
                entry = chain.append(self.db, "repeats", requests=len(requests))
        return entry


def _ends(log: list[tuple[IntArray, IntArray]]) -> list[int]:
    return [int(end) for slots, _ in log if len(slots) for end in (slots[0], slots[-1])] or [0]


def _told(reply: Reply) -> bytes:
    """The labels, followed by the probabilities of the classes if they were requested."""
    likely = b"" if reply.likely is None else reply.likely.astype("<f8").tobytes()
    return reply.labels.astype("<i8").tobytes() + likely


def _row(answer: Noted, scope: int) -> tuple[Any, ...]:
    if answer.query is None:
        return answer.seq, scope, b"", 0.0, answer.label
    return answer.seq, scope, answer.query.values.tobytes(), float(answer.query.scale[0]), answer.label


def request_digest(request: Request) -> bytes:
    """A digest that is the same for equal requests."""
    queries = request.queries
    body = repr(request.analyst).encode() + queries.values.tobytes() + queries.scale.tobytes()
    return hashlib.blake2b(body, digest_size=32).digest()
