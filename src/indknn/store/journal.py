"""The write path: answers and their debits in one transaction, then the answers may leave (rule 2).

Answers are noted in order, under the lock of the store. `flush` makes all that were noted durable, in one
transaction: whoever comes first writes for everybody who is waiting, while others go on computing. That is
group commit: many callers share one sync of the disk.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any

import apsw
import numpy as np

from indknn.errors import StoreError
from indknn.ledgers import MemoryLedger, Scope
from indknn.store import chain
from indknn.store.codec import BLOCK, Debits
from indknn.store.database import scope_id, set_meta
from indknn.types import IntArray, Vectors


@dataclass(frozen=True)
class Answer:
    """One fresh answer with what it was charged."""

    seq: int
    scope: Scope
    query: Vectors
    label: int
    debits: Debits


class StoreJournal:
    """Notes answers and writes them to a database."""

    def __init__(self, db: apsw.Connection, ledger: MemoryLedger, on_commit: Callable[[chain.Entry], None]):
        self.db = db
        self.ledger = ledger
        self.ledger.log = []
        self.failure: BaseException | None = None
        self.tau: Callable[[], float | None] = lambda: None  # a threshold to be written with the next answers
        self.touched: set[tuple[Scope, int]] = set()  # blocks with debits since the last fold
        self.unfolded_bytes = 0
        self._on_commit = on_commit
        self._next = int(db.execute("SELECT coalesce(max(seq), 0) + 1 FROM answers").get)
        self._noted = self._durable = self._next - 1
        self._pending: list[Answer] = []
        self._requests: dict[str, tuple[bytes, bytes]] = {}
        self._list_lock, self._commit_lock = Lock(), Lock()

    @property
    def last_noted(self) -> int:
        """The number of the latest answer or request."""
        return self._noted

    def note(self, analyst: Scope, query: Vectors, key: bytes, label: int) -> None:
        """A fresh answer, with all charges since the one before. The store's lock is held."""
        log, self.ledger.log = self.ledger.log, []
        debits = Debits.merge(log or [])
        with self._list_lock:
            self._pending.append(Answer(self._next, analyst, query, label, debits))
            self._noted = self._next
            self._next += 1
        self.touched |= {(analyst, block) for block in np.unique(debits.slots // BLOCK).tolist()}

    def note_request(self, request: str, digest: bytes, labels: IntArray) -> None:
        """The answers to a request that may come again, to be written with them."""
        with self._list_lock:
            self._requests[request] = (digest, labels.astype("<i8").tobytes())
            self._noted = self._next
            self._next += 1  # a number of its own, so that a request without fresh answers is waited for too

    def request(self, request: str) -> tuple[bytes, IntArray] | None:
        """The digest and the labels of an earlier request with this id, durable or about to be."""
        with self._list_lock:
            found = self._requests.get(request)
        if found is None:
            found = self.db.execute("SELECT digest, labels FROM requests WHERE id = ?", (request,)).fetchone()
        return None if found is None else (found[0], np.frombuffer(found[1], "<i8").astype(np.int64))

    def flush(self) -> None:
        """Return when everything noted so far is on disk. After a failure nothing is written any more."""
        target = self._noted
        with self._commit_lock:
            if self.failure is not None:
                raise StoreError(f"not answered, because writing failed: {self.failure}") from self.failure
            if self._durable >= target:
                return
            with self._list_lock:
                batch, requests, upto = self._pending, dict(self._requests), self._noted
                self._pending = []
            try:
                entry = self._write(batch, requests)
            except BaseException as error:
                self.failure = error  # fail-stop: whether it was written is known only to the disk
                raise StoreError(f"not answered, because writing failed: {error}") from error
            self._durable = upto
            with self._list_lock:
                for request in requests:
                    del self._requests[request]
            if entry is not None:
                self._on_commit(entry)

    def _write(self, batch: list[Answer], requests: dict[str, tuple[bytes, bytes]]) -> chain.Entry | None:
        entry = None
        with self.db:
            tau = self.tau()
            if tau is not None:
                set_meta(self.db, "tau", tau)
            rows = [(*_row(a, scope_id(self.db, a.scope)), str(a.debits.total)) for a in batch]
            self.db.executemany("INSERT INTO answers VALUES (?, ?, ?, ?, ?, ?)", rows)
            bodies = [(a.seq, a.debits.encode()) for a in batch]
            self.db.executemany("INSERT INTO debits VALUES (?, ?)", bodies)
            values = [(request, digest, labels) for request, (digest, labels) in requests.items()]
            self.db.executemany("INSERT INTO requests VALUES (?, ?, ?)", values)
            if batch:
                entry = chain.append(
                    self.db,
                    "answers",
                    first=batch[0].seq,
                    last=batch[-1].seq,
                    count=len(batch),
                    digest=answers_digest(rows),
                    charged=str(sum(a.debits.total for a in batch)),
                )
        self.unfolded_bytes += sum(len(body) for _, body in bodies)
        return entry


def _row(answer: Answer, scope: int) -> tuple[Any, ...]:
    query = answer.query
    return answer.seq, scope, query.values.tobytes(), float(query.scale[0]), answer.label


def answers_digest(rows: list[tuple[Any, ...]]) -> str:
    """What the audit trail keeps of a batch of rows of the table of answers."""
    digest = hashlib.blake2b(digest_size=32)
    for row in rows:
        digest.update(repr(row).encode())
    return digest.hexdigest()
