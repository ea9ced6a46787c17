"""The write path: answers and their debits are written in one transaction, then the answers may leave (rule 2).

Answers are noted in order, under the lock of the store. `commit` makes all noted answers durable in one transaction.
The first caller writes for everybody who is waiting, while others go on computing. This is called group commit: many
callers share one sync of the disk.

Predictions and uploads may be sent again, by their ids, which are kept for some days. The id of a prediction belongs to
its analyst. The id and the rows of an upload may say something about people, so only keyed hashes of them are kept, and
the numbers of the records.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from threading import Lock, RLock
from typing import Any, TypeAlias

import numpy as np

from indknn.answering.predictor import Predictor
from indknn.answering.requests import Reply, Request
from indknn.core.releases import Release, encode
from indknn.errors import FencedError, InvalidInputError, RequestConflictError, StoreError
from indknn.ledger import MemoryLedger, Scope
from indknn.store import chain
from indknn.store.chain import Guard
from indknn.store.connection import Connection
from indknn.store.database import get_meta, read_names, read_scopes, read_tombstones, scope_id, set_meta
from indknn.types import IntArray, Vectors

Known: TypeAlias = tuple[bytes, bytes]
"""For a request with an id: the digest of what was asked, and what was answered (`_packed`)."""
Outcome: TypeAlias = Reply | InvalidInputError
Balance: TypeAlias = tuple[Scope, int, bytes, bytes]
"""What the owners of one block had spent in a scope, and in how many queries they had taken part."""

BLOCK = 4096
"""Owners per row of balances: 32 KiB of amounts."""
FOLD_BYTES, _FOLD_LEAST = 8 << 20, 256 << 10
"""Debits are folded into balances when they reach this size, or earlier in a small store."""
_MANY, _LONG = 256 << 10, 4 << 20
_BALANCE = _DEBIT = 12  # bytes
_DAY = 86_400  # seconds


@dataclass(frozen=True)
class Debits:
    """Who paid how much for one answer: distinct owner slots in ascending order, and ledger units."""

    slots: IntArray
    units: IntArray

    @property
    def total(self) -> int:
        """The sum of all."""
        return exact_sum(self.units)

    @property
    def blocks(self) -> list[int]:
        """The blocks of balances that contain these owners."""
        if not len(self.slots):
            return []
        first = int(self.slots[0]) // BLOCK
        result: list[int] = (np.flatnonzero(np.bincount(self.slots // BLOCK - first)) + first).tolist()
        return result

    def encode(self) -> bytes:
        """Slots as uint32, then units as int64, little-endian.

        >>> Debits.decode(Debits(np.array([3, 7]), np.array([10, 20])).encode()).units.tolist()
        [10, 20]
        """
        return self.slots.astype("<u4").tobytes() + self.units.astype("<i8").tobytes()

    @staticmethod
    def decode(body: bytes) -> Debits:
        """What `encode` wrote."""
        n, rest = divmod(len(body), 12)
        if rest:
            raise StoreError(f"a debit blob has {len(body)} bytes, which is no multiple of 12")
        slots = np.frombuffer(body, "<u4", n).astype(np.int64)
        return Debits(slots, np.frombuffer(body, "<i8", n, offset=4 * n).astype(np.int64))

    @staticmethod
    def merge(parts: list[tuple[IntArray, IntArray]]) -> Debits:
        """One debit per owner, from charges that were made in several steps."""
        if not parts:
            return Debits(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
        first = parts[0][0]
        if all(s is first for s, _ in parts):  # usually the same people in every step
            return Debits(first, sum((u for _, u in parts[1:]), start=parts[0][1]))
        slots, where = np.unique(np.concatenate([s for s, _ in parts]), return_inverse=True)
        units = np.zeros(len(slots), dtype=np.int64)
        np.add.at(units, where, np.concatenate([u for _, u in parts]))
        return Debits(slots, units)


def exact_sum(units: IntArray) -> int:
    """The sum as a Python integer: over many people it may exceed 63 bits.

    >>> exact_sum(np.array([1 << 62, 1 << 62, 1])) == (1 << 63) + 1
    True
    """
    if float(units.sum(dtype=np.float64)) < 2.0**62:
        return int(units.sum())
    return sum(units.tolist())


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
    repeated request either finds all of its answers, or finds none and pays once. The ledger is empty at first, and is
    filled with what people have spent.
    """

    def __init__(self, db: Connection, ledger: MemoryLedger, guard: Guard):
        self.db = db
        self.io = RLock()  # a connection allows only one thread at a time, and fails otherwise
        self.ledger = ledger
        self.ledger.log = {}
        self.failure: BaseException | None = None
        self.background = False
        self.owed = False  # whether a release for which nobody waits is not on disk yet
        self.tau: float | None = None
        self.touched = read_ledger(db, ledger)  # blocks with debits since the last fold
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

    @property
    def is_long(self) -> bool:
        """Whether debits have become longer than that."""
        return self.unfolded_bytes > min(FOLD_BYTES, _FOLD_LEAST) and self.unfolded_bytes > self.fold_bytes

    def fold(self, owner_slots: Iterable[int] = ()) -> None:
        """Replace debits by balances, in a transaction of the caller, who has written all answers.

        The balances of these owners are written too.
        """
        blocks = {slot // BLOCK for slot in owner_slots}
        self.touched |= {(scope, block) for scope in self.ledger.scopes for block in blocks}
        self._write_balances(snapshot(self.ledger, sorted(self.touched, key=str)), self.last_noted)
        self.touched.clear()

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
            if not self.is_long:
                self._may_fold = True
            elif self.background and self._may_fold and self._fold is None:
                self._folding = True  # balances replace debits; the next commit writes them
            if request.request_id is not None:
                known = request_digest(request), _packed(reply)
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
        digest, answer = self._known[str(request.request_id)]
        if digest != request_digest(request):
            name = request.request_id
            raise RequestConflictError(f"request id {name!r} was used before for other queries; use a new one")
        n = len(request.queries)
        labels, likely = np.frombuffer(answer[: 8 * n], "<i8"), np.frombuffer(answer[8 * n :], "<f8")
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
        entry, folded = None, 0 if fold is None else fold[1]
        debits = [(a.seq, a.debits.encode()) for a in batch if a.debits is not None and a.seq > folded]
        values = [(request, *known, today()) for request, known in requests.items()]
        facts: dict[str, Any] = {}
        if batch:
            facts = {"first": batch[0].seq, "last": batch[-1].seq, "count": len(batch)}
            facts |= {"sums": sum(a.label < 0 for a in batch), "charged": str(sum(a.charged for a in batch))}
        with self.db:
            if self.tau is not None:
                set_meta(self.db, "tau", self.tau)
                self.tau = None
            if fold is not None:
                self._write_balances(*fold)
            self.unfolded_bytes += sum(len(body) for _, body in debits)
            rows = [(*_row(a, self._scope(a.scope)), str(a.charged), a.release) for a in batch]
            self.db.insert("answers", rows)
            self.db.insert("debits", debits)
            if values:
                self.db.insert("requests", values)
            if batch:
                entry = chain.append(self.db, "answers", **facts)
            elif values:
                entry = chain.append(self.db, "repeats", requests=len(values))
        return entry

    def _write_balances(self, balances: list[Balance], last: int) -> None:
        """Write balances in place of all debits up to answer number `last`."""
        spent = [(self._scope(scope), block, units) for scope, block, units, _ in balances]
        queries = {block: (block, counts) for _, block, _, counts in balances}
        self.db.upsert("balances", spent)
        self.db.upsert("participation", queries.values())
        self.db.clear("debits")
        self.db.upsert("meta", [("folded", last)])
        self.unfolded_bytes = 0

    def _scope(self, scope: Scope) -> int:
        """The number of an analyst, in a transaction."""
        if scope not in self._scopes:
            self._scopes[scope] = scope_id(self.db, scope)
        return self._scopes[scope]


def read_ledger(db: Connection, ledger: MemoryLedger) -> set[tuple[Scope, int]]:
    """Fill an empty ledger: balances, then the debits that came later. Returns the blocks that those debits touch."""
    scopes, capacity = read_scopes(db), int(db.execute("SELECT coalesce(max(slot), -1) + 1 FROM owners").get)
    size = -(-capacity // BLOCK) * BLOCK
    spent = {scope: np.zeros(size, dtype=np.int64) for scope in scopes.values()}
    queries = np.zeros(size, dtype=np.int64)
    for number, block, body in db.execute("SELECT scope, block, spent FROM balances"):
        _fill(spent[scopes[number]], block, np.frombuffer(body, "<i8"))
    for block, body in db.execute("SELECT block, queries FROM participation"):
        _fill(queries, block, np.frombuffer(body, "<i4"))
    touched: set[tuple[Scope, int]] = set()
    replay = "SELECT a.scope, d.body FROM debits d JOIN answers a USING (seq) ORDER BY d.seq"
    for number, body in db.execute(replay):
        debits = Debits.decode(body)
        spent[scopes[number]][debits.slots] += debits.units
        queries[debits.slots] += 1
        touched |= {(scopes[number], block) for block in debits.blocks}
    ledger.restore(read_names(db), spent, queries, read_tombstones(db), int(get_meta(db, "next_number")))
    return touched


def _fill(column: IntArray, block: int, part: IntArray) -> None:
    here = column[block * BLOCK : (block + 1) * BLOCK]  # shorter, or empty, if the last owners are gone
    here[: len(part)] = part[: len(here)]


def snapshot(ledger: MemoryLedger, blocks: Iterable[tuple[Scope, int]]) -> list[Balance]:
    """The balances of these blocks as they are now."""
    found, queries = [], ledger.participation
    for scope, block in blocks:
        part = slice(block * BLOCK, (block + 1) * BLOCK)
        spent = ledger.column(scope)[part].astype("<i8").tobytes()
        found.append((scope, block, spent, queries[part].astype("<i4").tobytes()))
    return found


def _ends(log: list[tuple[IntArray, IntArray]]) -> list[int]:
    return [int(end) for slots, _ in log if len(slots) for end in (slots[0], slots[-1])] or [0]


def _packed(reply: Reply) -> bytes:
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


@dataclass(frozen=True)
class Batch:
    """The result of each request: an answer, or an error. Nothing may leave before `commit`."""

    journal: StoreJournal
    outcomes: list[Outcome]

    def commit(self) -> None:
        """Return when everything is on disk."""
        self.journal.commit()


def answered(requests: Sequence[Request], predictor: Predictor, journal: StoreJournal) -> Batch:
    """Answer new requests and repeat known ones. A request id that was used for other queries is an error."""
    new, names = [], set()
    for i, request in enumerate(requests):
        name = request.request_id
        if name is None or (journal.request(name) is None and name not in names):
            new.append(i)  # of several requests with one id, the first does the work
            names.add(name)
    replies = predictor.compute([requests[i] for i in new]) if new else []
    fresh = dict(zip(new, replies, strict=True))
    return Batch(journal, [fresh[i] if i in fresh else _known(r, predictor, journal) for i, r in enumerate(requests)])


def _known(request: Request, predictor: Predictor, journal: StoreJournal) -> Outcome:
    try:
        reply = journal.repeated(request)
    except RequestConflictError as error:
        return error
    if request.likely and reply.likely is None:  # the first request with this id did not ask for them
        return replace(reply, likely=predictor.probabilities(request.queries, request.analyst))
    return reply


def today() -> int:
    """The day, counted from 1970."""
    return int(time.time()) // _DAY


@dataclass(frozen=True)
class Upload:
    """An upload that may be repeated: the id that its sender gave it, and everything that was sent."""

    id: str
    body: bytes

    def _hashes(self, db: Connection) -> tuple[bytes, bytes]:
        key: bytes = get_meta(db, "key")
        name, body = (
            hashlib.blake2b(part, key=key, digest_size=32, person=person).digest()
            for part, person in ((self.id.encode(), b"upload id"), (self.body, b"upload body"))
        )
        return name, body

    def numbers(self, db: Connection) -> IntArray | None:
        """The numbers of the records from an earlier upload with this id. None if it is new."""
        name, body = self._hashes(db)
        known = db.execute("SELECT digest, numbers FROM additions WHERE id = ?", (name,)).fetchone()
        if known is None:
            return None
        if known[0] != body:
            raise RequestConflictError("this request id was used before for other records; use a new one")
        return np.frombuffer(known[1], "<i8").astype(np.int64)

    def note(self, db: Connection, numbers: IntArray) -> None:
        """Remember it, inside the transaction that adds its records and before the entry of the audit trail."""
        db.insert("additions", [(*self._hashes(db), numbers.astype("<i8").tobytes(), today())])
