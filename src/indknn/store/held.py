"""An open store and its copy in memory: one owner at a time, whole transactions, read again after a failure.

Everything is computed in memory, by the same engine as everywhere, and written in one transaction before an answer
leaves. After a disk error, memory may be ahead of the file. Then it is discarded and read again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import RLock
from typing import Self

import apsw

from indknn.core.noise import Noise, SecureNoise
from indknn.engine import Engine, MakeShard
from indknn.errors import FencedError, PrivacyError, StoreError
from indknn.place import Place
from indknn.settings import Settings
from indknn.store import chain
from indknn.store.books import Books
from indknn.store.change import Change
from indknn.store.guard import Guard
from indknn.store.home import Connection, home_of
from indknn.store.opening import State, load


class HeldStore:
    """A store that this process holds. With `read_only`, nothing can be changed or answered.

    `make_shard` makes the shard into which records are read. The shard of a cluster has them in other processes.
    """

    _state: State

    def __init__(
        self,
        path: str | Place,
        *,
        witness: str | Path | None = None,
        new_witness: bool = False,
        noise: Noise | None = None,
        synchronous: str = "FULL",
        vfs: str | None = None,
        read_only: bool = False,
        make_shard: MakeShard | None = None,
    ):
        if noise is not None and not noise.secure:
            raise PrivacyError("a store serves people's data and refuses seeded noise; use an estimator in memory")
        self.home = home_of(path)
        self.path = self.home.place
        self.noise = SecureNoise() if noise is None else noise
        self.generation = 0
        self._options = {"synchronous": synchronous, "vfs": vfs, "read_only": read_only}
        self._make_shard = make_shard
        self._lock, self._closed, self._background = RLock(), False, False
        self._process = os.getpid()  # a forked process inherits the lock and must not write
        self.home.hold(read_only=read_only)
        self._guard = Guard(self.home, None if witness is None else Path(witness), new_witness)
        try:
            self._load()
        except BaseException:
            self.home.release()
            raise
        if not read_only:
            self.home.keep_room(self._state.engine, self._fold_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Fold debits into balances, and release the store."""
        with self._lock:
            if self._closed:
                return
            try:
                if self._state.journal.failure is None:
                    with suppress(StoreError):  # everything that was answered is on disk, and folding can wait
                        self.fold()
            finally:
                self._closed = True
                with self._state.journal.io:
                    self.home.close(self._state.db)
                self.home.release()

    # To look at

    @property
    def settings(self) -> Settings:
        """The public parameters in use."""
        return self._state.engine.settings

    @property
    def draft(self) -> bool:
        """Whether the number of features and the classes are still open."""
        self._reload_if_failed()
        return self._state.draft

    @property
    def engine(self) -> Engine:
        """The engine in memory. Only for reading: changes made directly to it would not be written."""
        self._reload_if_failed()
        return self._state.engine

    @property
    def db(self) -> Connection:
        """The open file. Only for reading, while no other thread uses the store. Otherwise use `reading`."""
        self._reload_if_failed()
        return self._state.db

    @property
    def fenced(self) -> bool:
        """Whether another process is known to have taken over the store."""
        return isinstance(self._state.journal.failure, FencedError)

    def recover(self) -> None:
        """After a failure, read everything again now instead of at the next use."""
        self._reload_if_failed()

    @property
    def books(self) -> Books:
        """The sums over all rows of the file, for checks."""
        return self._state.books

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """The open file for reading, while other threads wait."""
        with self._exclusive():
            yield self._state.db

    @contextmanager
    def changing(self) -> Iterator[Change]:
        """A transaction that changes the open file."""
        with self._exclusive(), self._transaction() as change:
            yield change

    # To compute with

    @contextmanager
    def computing(self) -> Iterator[State]:
        """The state in memory, for computing while others wait.

        After an error it may have charges that are never written.
        """
        with self._lock:
            self._reload_if_failed()
            try:
                yield self._state
            except BaseException as error:
                self._state.journal.failure = error
                raise

    def fold_if_long(self) -> None:
        """Fold debits if they have grown. The answers are paid for by then, so a failure can wait."""
        if self._state.journal.failure is None and self._state.journal.unfolded_bytes > self._fold_bytes:
            with suppress(StoreError):
                self.fold()

    def fold(self) -> None:
        """Replace debits by balances. The file becomes smaller and opens faster."""
        with self._exclusive():
            self._state.journal.commit()
            if self._state.journal.touched:
                with self._transaction() as change:
                    change.fold()
                    chain.append(self._state.db, "fold")

    def flush(self) -> None:
        """Return when everything that was computed is on disk."""
        with self._exclusive():
            self._state.journal.commit()

    def _empty_log(self, erased: int) -> None:
        """Empty the log, which still holds what was erased."""
        if erased and self.home.empty_log(self._state.db):
            self.home.keep_room(self._state.engine, self._fold_bytes)

    # Writing and opening

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Nobody else computes or writes. What is read in here is still true in a transaction that follows."""
        with self._lock:
            self._reload_if_failed()
            with self._state.journal.io:
                self._reload_if_failed()  # writing may have failed while this thread waited
                yield

    @contextmanager
    def _transaction(self) -> Iterator[Change]:
        """A change of records or people, within `_exclusive`. After a failure, memory is discarded."""
        journal = self._state.journal
        journal.commit()
        try:
            self._guard.refuse_if_moved()
            try:
                with self._state.db:
                    yield Change(self._state, self.noise)
            except (apsw.Error, OSError) as error:
                raise StoreError(f"nothing was changed, because writing failed: {error}") from error
            self._guard.saw(chain.last(self._state.db))
        except BaseException as error:
            journal.failure = error
            raise

    @property
    def _fold_bytes(self) -> int:
        return self._state.journal.fold_bytes

    def _reload_if_failed(self) -> None:
        if self._closed:
            raise StoreError(f"{self.path} is closed")
        if os.getpid() != self._process:
            raise PrivacyError(f"{self.path} was opened by the process that this one was forked from; open it here")
        if self._state.journal.failure is not None:
            with self._lock:
                if self._state.journal.failure is not None:
                    with self._state.journal.io:
                        self.home.close(self._state.db)
                    try:
                        self._load()
                    except FencedError as error:
                        self._state.journal.failure = error
                        raise

    def _load(self) -> None:
        self._guard.refuse_if_moved()
        self._state = load(self.home, self.noise, self._guard, self._make_shard, **self._options)
        self._state.journal.background = self._background
        self.schema = self._state.schema  # the schema of tables, if queries and records may be tables
        self.generation += 1
