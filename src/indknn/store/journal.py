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
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import product, repeat
from struct import Struct
from threading import Lock, RLock
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from indknn.answering.requests import Reply, Request
from indknn.core.quantise import as_int64, load_native
from indknn.core.releases import Release, encode
from indknn.errors import FencedError, InvalidInputError, RequestConflictError, StoreError
from indknn.ledger import MemoryLedger, Scope
from indknn.ledger.memory import Balance, Tombstone
from indknn.ledger.promises import PROMISE
from indknn.proof import Entry
from indknn.store import chain
from indknn.store.chain import Guard, StoreConnection
from indknn.store.database import answered, get_meta, read_names, read_scopes, read_tombstones, scope_id, set_meta
from indknn.types import IntArray, Vectors

Known: TypeAlias = tuple[bytes, bytes]
"""For a request with an id: the digest of what was asked, and what was answered (`_packed`)."""
Outcome: TypeAlias = Reply | InvalidInputError

_votes = load_native("indknn.core._votes")
BLOCK = 4096
"""Owners per row of balances: 32 KiB of amounts."""
FOLD_BYTES, _FOLD_LEAST = 32 << 20, 256 << 10
"""Debits are folded into balances when they reach this size, or earlier in a small store."""
_MANY, _LONG = 256 << 10, 4 << 20
_BALANCE = 12  # bytes
_DEBITS_HEAD = Struct("<BBq")
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
        result: list[int] = np.unique(self.slots // BLOCK).tolist()
        return result

    def packed(self) -> tuple[bytes, int, list[int]]:
        """As they are written down, their total and their blocks."""
        if _votes is None:
            return self.encode(), self.total, self.blocks
        body, total, blocks = _votes.pack(as_int64(self.slots), as_int64(self.units), BLOCK)
        return body, self.total if total < 0 else total, blocks

    def encode(self) -> bytes:
        """What is written down: no more bytes for each slot and each amount than the largest takes.

        First the number of bytes for each, and the smallest amount. Then, little-endian, the distance of each slot from
        the one before, and by how much each amount exceeds the smallest.

        >>> Debits.decode(Debits(np.array([3, 7]), np.array([10, 20])).encode()).units.tolist()
        [10, 20]
        """
        if not len(self.slots):
            return b""
        least = int(self.units.min())
        gaps, amounts = _narrow(np.diff(self.slots, prepend=0)), _narrow(self.units - least)
        head = _DEBITS_HEAD.pack(gaps.shape[1], amounts.shape[1], least)
        return head + gaps.tobytes() + amounts.tobytes()

    @staticmethod
    def decode(body: bytes) -> Debits:
        """What `encode` wrote."""
        if not body:
            return Debits(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
        size = _DEBITS_HEAD.size
        gaps, amounts, least = _DEBITS_HEAD.unpack_from(body) if len(body) >= size else (0, 0, 0)
        n, rest = divmod(len(body) - size, gaps + amounts or 1)
        if rest or n < 1 or not (0 < gaps <= 8 and 0 < amounts <= 8):
            raise StoreError(f"a debit blob of {len(body)} bytes is damaged")
        slots = np.cumsum(_wide(body, size, n, gaps))
        return Debits(slots, _wide(body, size + n * gaps, n, amounts) + least)

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


def _narrow(values: IntArray) -> npt.NDArray[np.uint8]:
    """The bytes of each number, as many as the largest takes."""
    width = max(int(values.max()).bit_length() + 7 >> 3, 1)
    return values.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width]


def _wide(body: bytes, start: int, n: int, width: int) -> IntArray:
    """The numbers that `_narrow` made bytes of."""
    whole = np.zeros((n, 8), dtype=np.uint8)
    whole[:, :width] = np.frombuffer(body, np.uint8, n * width, start).reshape(n, width)
    return whole.view("<i8").ravel().astype(np.int64)


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
    debits: bytes | None  # None if balances are written instead
    release: bytes | None  # what was released besides the label


@dataclass
class Pending:
    """What the next commit writes."""

    answers: list[Noted] = field(default_factory=list)
    requests: dict[str, Known] = field(default_factory=dict)
    erasures: list[Callable[[], Entry]] = field(default_factory=list)
    graves: list[tuple[int, Tombstone]] = field(default_factory=list)
    """People who are gone, and are in the balances on disk."""
    fold: tuple[list[Balance], int] | None = None
    """Balances that replace the debits up to this answer."""
    fold_blocks: set[tuple[Scope, int]] = field(default_factory=set)
    """The blocks that the fold covers."""


class StoreJournal:
    """Notes answers and writes them to a database.

    The answers of one call form a group together with the request id. A group is written completely or not at all. So a
    repeated request either finds all of its answers, or finds none and pays once. The ledger is empty at first, and is
    filled with what people have spent.
    """

    def __init__(self, db: StoreConnection, ledger: MemoryLedger, guard: Guard):
        self.db = db
        self.io = RLock()  # a connection allows only one thread at a time, and fails otherwise
        self.ledger = ledger
        self.ledger.log = {}
        self.failure: BaseException | None = None
        self.background = False
        self.owed = False  # whether a release for which nobody waits is not on disk yet
        self.tau: float | None = None
        self.touched = read_ledger(db, ledger)  # blocks with debits since the last fold
        ledger.used = answered(db)
        self.unfolded_bytes = int(db.execute("SELECT coalesce(sum(length(body)), 0) FROM debits").get)
        self._guard = guard
        self._next = int(db.execute("SELECT coalesce(max(seq), 0) + 1 FROM answers").get)
        self._known: dict[str, Known] = {
            request: (digest, labels)
            for request, digest, labels in db.execute("SELECT id, digest, labels FROM requests")
        }
        self._minute = ledger.minute = int(get_meta(db, "minute") or 0)  # the furthest time on disk
        self._sealed = self._durable = 0  # groups
        self._open: list[Noted] = []
        self._open_bytes, self._folding = 0, False
        self._may_fold = False  # with answers: not if debits are long already, as a fold may just have failed
        self._pending = Pending()
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
        """How long debits may become: many times the balances, within limits.

        Neighbours of queries are anywhere, so a fold of a large store writes nearly all balances. So debits become at
        least as long as those: otherwise 100,000,000 people would make a store write 27 MB for every query.
        """
        balances = _BALANCE * len(self.ledger.participation)
        return max(min(FOLD_BYTES, max(_FOLD_LEAST, 64 * balances)), balances)

    @property
    def is_long(self) -> bool:
        """Whether debits have become longer than that."""
        return self.unfolded_bytes > min(FOLD_BYTES, _FOLD_LEAST) and self.unfolded_bytes > self.fold_bytes

    def fold(self, owner_slots: Iterable[int] = ()) -> None:
        """Replace debits by balances, in a transaction of the caller, who has written all answers.

        The balances of these owners are written too.
        """
        self._touch(owner_slots)
        self._write_balances(self.ledger.balances(sorted(self.touched, key=str), BLOCK), self.last_noted)
        self.touched.clear()

    def _touch(self, owner_slots: Iterable[int]) -> None:
        blocks = {slot // BLOCK for slot in owner_slots}
        self.touched.update(product(self.ledger.all_scopes, blocks))

    def note(self, analyst: Scope, query: Vectors | None, label: int, release: Release | None) -> None:
        """Note a new answer or sum, with all charges since the one before. The caller holds the store's lock."""
        log = (self.ledger.log or {}).pop(analyst, [])
        if self._folding:
            body, charged = None, sum(exact_sum(units) for _, units in log)
            touched = range(min(_ends(log)) // BLOCK, max(_ends(log)) // BLOCK + 1) if log else range(0)
            self.touched.update(zip(repeat(analyst), touched))
        else:
            body, charged, blocks = Debits.merge(log).packed()
            self.touched.update(zip(repeat(analyst), blocks))
            self._open_bytes += len(body)
            self._folding = self._open_bytes > max(_MANY, 2 * len(self.touched) * BLOCK * _BALANCE)
        with self._list_lock:
            text = None if release is None else encode(release)
            self._open.append(Noted(self._next, analyst, query, label, charged, body, text))
            self._next += 1

    def seal(self, request: Request, reply: Reply) -> None:
        """Everything noted since the last call belongs to this request.

        If so many answers came together that their debits are longer than the balances of everybody concerned, those
        balances are written instead. They are taken now, when the ledger is just behind the last answer.
        """
        with self.ledger.lock, self._list_lock:
            if not self.is_long:
                self._may_fold = True
            elif self.background and self._may_fold and self._pending.fold is None:
                self._folding = True  # balances replace debits; the next commit writes them
            if request.request_id is not None:
                known = request_digest(request), _packed(reply)
                self._known[request.request_id] = self._pending.requests[request.request_id] = known
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

    def note_erasure(self, graves: dict[int, Tombstone], write: Callable[[], Entry]) -> None:
        """Let the next commit also write an erasure. `graves` are the people who are gone, by owner slot.

        What they had spent is taken off their balances on disk. With the debits that are there, that makes 0. So not
        everybody's debits must be folded now. The next fold removes the traces of the gone in both.
        """
        with self.ledger.lock, self._list_lock:
            self._touch(graves)
            self._pending.graves += graves.items()
            self._pending.erasures.append(write)
            self._close_group(True)
            self.owed = True

    def _close_group(self, anything: bool) -> None:
        self._sealed += anything
        if self._folding:
            # This fold includes an earlier fold that is not written yet, because its debits were dropped already.
            self._pending.fold_blocks |= self.touched
            balances = self.ledger.balances(sorted(self._pending.fold_blocks, key=str), BLOCK)
            self._pending.fold = balances, self.last_noted
            self.touched.clear()
            self._pending.graves = []  # these balances are without them
        self._pending.answers += self._open
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
                    work, upto = self._pending, self._sealed
                    self._pending, self.owed = Pending(), False
                self._guard.refuse_if_moved()
                entry = self._write(work)
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

    def _write(self, work: Pending) -> Entry | None:
        batch, entry, folded = work.answers, None, 0 if work.fold is None else work.fold[1]
        debits = [(a.seq, a.debits) for a in batch if a.debits is not None and a.seq > folded]
        values = [(request, *known, today()) for request, known in work.requests.items()]
        facts: dict[str, Any] = {}
        if batch:
            facts = {"first": batch[0].seq, "last": batch[-1].seq, "count": len(batch)}
            facts |= {"sums": sum(a.label < 0 for a in batch), "charged": str(sum(a.charged for a in batch))}
        with self.db:
            if self.tau is not None:
                set_meta(self.db, "tau", self.tau)
                self.tau = None
            if batch or values or work.erasures:
                self.write_time()
            if work.fold is not None:
                self._write_balances(*work.fold)
            self.unfolded_bytes += sum(len(body) for _, body in debits)
            rows = [(*_row(a, self._scope(a.scope)), str(a.charged), a.release) for a in batch]
            self.db.insert("answers", rows)
            self.db.insert("debits", debits)
            if values:
                self.db.insert("requests", values)
            if work.graves:
                self._take_off(work.graves)
            for write in work.erasures:
                entry = write()
            if batch:
                entry = chain.append(self.db, "answers", **facts)
            elif values:
                entry = chain.append(self.db, "repeats", requests=len(values))
        return entry

    def write_time(self) -> None:
        """Write the furthest time that was seen, in a transaction. A clock that is set back changes nothing."""
        if self.ledger.minute > self._minute:
            self._minute = self.ledger.minute
            set_meta(self.db, "minute", self._minute)

    def _write_balances(self, balances: list[Balance], last: int) -> None:
        """Write balances in place of all debits up to answer number `last`."""
        spent = [(self._scope(scope), block, units) for scope, block, units, _ in balances]
        queries = {block: (block, counts) for _, block, _, counts in balances}
        self.db.upsert("balances", spent)
        self.db.upsert("participation", queries.values())
        self.db.clear("debits")
        self.db.upsert("meta", [("folded", last)])
        self.unfolded_bytes = 0

    def _take_off(self, graves: list[tuple[int, Tombstone]]) -> None:
        """Take off what people who are gone had spent from the balances on disk, and how often they took part."""
        spent: dict[tuple[int, int], list[tuple[int, int]]] = {}
        queries: dict[int, list[tuple[int, int]]] = {}
        for slot, grave in graves:
            block, place = divmod(slot, BLOCK)
            queries.setdefault(block, []).append((place, grave.queries))
            for scope, units in grave.spent.items():
                spent.setdefault((self._scope(scope), block), []).append((place, units))
        for (number, block), less in spent.items():
            known = self.db.execute("SELECT spent FROM balances WHERE scope = ? AND block = ?", (number, block)).get
            self.db.upsert("balances", [(number, block, _less(known, "<i8", less))])
        for block, less in queries.items():
            known = self.db.execute("SELECT queries FROM participation WHERE block = ?", (block,)).get
            self.db.upsert("participation", [(block, _less(known, "<i4", less))])

    def _scope(self, scope: Scope) -> int:
        """The number of an analyst, in a transaction."""
        if scope not in self._scopes:
            self._scopes[scope] = scope_id(self.db, scope)
        return self._scopes[scope]


def read_ledger(db: StoreConnection, ledger: MemoryLedger) -> set[tuple[Scope, int]]:
    """Fill an empty ledger: balances, then the debits that came later. Returns the blocks that those debits touch."""
    scopes, capacity = read_scopes(db), int(db.execute("SELECT coalesce(max(slot), -1) + 1 FROM owners").get)
    size = -(-capacity // BLOCK) * BLOCK
    spent = {scope: np.zeros(size, dtype=np.int64) for scope in scopes.values()}
    queries = np.zeros(size, dtype=np.int64)
    for number, block, body in db.execute("SELECT scope, block, spent FROM balances"):
        _fill(spent[scopes[number]], block, np.frombuffer(body, "<i8"))
    for block, body in db.execute("SELECT block, queries FROM participation"):
        _fill(queries, block, np.frombuffer(body, "<i4"))
    promises = np.zeros(size, dtype=PROMISE)
    for block, body in db.execute("SELECT block, body FROM promises"):
        _fill(promises, block, np.frombuffer(body, PROMISE))
    touched: set[tuple[Scope, int]] = set()
    replay = "SELECT a.scope, d.body FROM debits d JOIN answers a USING (seq) ORDER BY d.seq"
    for number, body in db.execute(replay):
        debits = Debits.decode(body)
        spent[scopes[number]][debits.slots] += debits.units
        queries[debits.slots] += 1
        touched |= {(scopes[number], block) for block in debits.blocks}
    ledger.restore(read_names(db), spent, queries, read_tombstones(db), int(get_meta(db, "next_number")), promises)
    return touched


def _less(known: bytes | None, kind: str, less: list[tuple[int, int]]) -> bytes:
    """A block of numbers, with these taken off at these places."""
    block = np.zeros(BLOCK, dtype=kind)
    here = np.frombuffer(known or b"", kind)
    block[: len(here)] = here
    for place, number in less:
        block[place] -= number
    return block.tobytes()


def write_promise_blocks(db: StoreConnection, blocks: dict[int, bytes]) -> None:
    """Write these blocks of promises. Old bytes are overwritten."""
    lengths = dict(db.execute("SELECT block, length(body) FROM promises")) if blocks else {}
    for block, body in blocks.items():
        if any(body) or block in lengths:
            db.upsert("promises", [(block, body.ljust(lengths.get(block, 0), b"\0"))])


def _fill(column: npt.NDArray[Any], block: int, part: npt.NDArray[Any]) -> None:
    here = column[block * BLOCK : (block + 1) * BLOCK]  # shorter, or empty, if the last owners are gone
    here[: len(part)] = part[: len(here)]


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


def today() -> int:
    """The day, counted from 1970."""
    return int(time.time()) // _DAY


@dataclass(frozen=True)
class Upload:
    """An upload that may be repeated: the id that its sender gave it, and everything that was sent."""

    id: str
    body: bytes

    def _hashes(self, db: StoreConnection) -> tuple[bytes, bytes]:
        key: bytes = get_meta(db, "key")
        name, body = (
            hashlib.blake2b(part, key=key, digest_size=32, person=person).digest()
            for part, person in ((self.id.encode(), b"upload id"), (self.body, b"upload body"))
        )
        return name, body

    def numbers(self, db: StoreConnection) -> IntArray | None:
        """The numbers of the records from an earlier upload with this id. None if it is new."""
        name, body = self._hashes(db)
        known = db.execute("SELECT digest, numbers FROM additions WHERE id = ?", (name,)).fetchone()
        if known is None:
            return None
        if known[0] != body:
            raise RequestConflictError("this request id was used before for other records; use a new one")
        return np.frombuffer(known[1], "<i8").astype(np.int64)

    def note(self, db: StoreConnection, numbers: IntArray) -> None:
        """Remember it, inside the transaction that adds its records and before the entry of the audit trail."""
        db.insert("additions", [(*self._hashes(db), numbers.astype("<i8").tobytes(), today())])
