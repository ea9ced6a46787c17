"""Mutants of storing and serving: the ledger, the transcript, the store's file and the server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from indknn.answering.predictor import Predictor
from indknn.answering.requests import Reply, Request
from indknn.ledger import MemoryLedger, Scope
from indknn.server.worker import Worker
from indknn.store import database
from indknn.store.journal import Batch, StoreJournal
from indknn.types import IntArray
from indknn_lab.audits.patches import Mutant, Replacement


def _float32_ledger() -> list[Replacement]:
    def charge(self: MemoryLedger, slots: IntArray, units: IntArray, scope: Scope, **_: Any) -> None:
        spent = self._in(scope)
        spent[slots] = (spent[slots].astype(np.float32) + units.astype(np.float32)).astype(np.int64)

    return [(MemoryLedger, "charge", charge)]


def _no_global() -> list[Replacement]:
    def remaining(self: MemoryLedger, slots: IntArray, scope: Scope) -> IntArray:
        return np.maximum(self.budget - self._in(scope)[slots], 0)

    return [(MemoryLedger, "remaining", remaining)]


def _shared_pool() -> list[Replacement]:
    original = Predictor._transcript
    return [(Predictor, "_transcript", lambda self, analyst: original(self, None))]


def _fresh_repeats() -> list[Replacement]:
    original = Predictor.compute

    def compute(self: Predictor, requests: Sequence[Request]) -> list[Reply]:
        held = self.shard.record_ids().tolist()
        if held != self.__dict__.setdefault("_held_then", held):
            self._transcripts.clear()
        self.__dict__["_held_then"] = held
        return original(self, requests)

    return [(Predictor, "compute", compute)]


def _unwritten_charges() -> list[Replacement]:
    original = StoreJournal.note

    def note(self: StoreJournal, *answer: Any) -> None:
        self.ledger.log = {}
        original(self, *answer)

    return [(StoreJournal, "note", note)]


def _server_first() -> list[Replacement]:
    original = Worker._durable
    return [(Worker, "_durable", lambda self, group: original(self, [replace(done, batch=None) for done in group]))]


def _no_balance() -> list[Replacement]:
    fold = StoreJournal.fold
    return [(StoreJournal, "fold", lambda self, owner_slots=(): fold(self) if not owner_slots else None)]


def _without(where: Any, name: str) -> Callable[[], list[Replacement]]:
    """A mutant that leaves out one step."""
    return lambda: [(where, name, lambda *_: None)]


MUTANTS = [
    Mutant("float32 ledger", "small charges are swallowed", _float32_ledger),
    Mutant("no global budget", "the common ledger is ignored", _no_global),
    Mutant("shared pool", "analysts share what was released", _shared_pool),
    Mutant("fresh repeats", "a repeat is answered anew after the records changed", _fresh_repeats),
    Mutant("refund on return", "coming back starts a new budget", _without(MemoryLedger, "_resume")),
    Mutant("no tombstone", "an erasure leaves the tombstone out of the file", _without(database, "write_tombstones")),
    Mutant("no balance", "what somebody who is back had spent is not written", _no_balance),
    Mutant("unwritten charges", "answers are written down without their debits", _unwritten_charges),
    Mutant("half erased", "the file keeps the records that were forgotten", _without(database, "clear_records")),
    Mutant("store answers first", "answers leave before they are durable", _without(Batch, "commit")),
    Mutant("server answers first", "answers leave before they are durable", _server_first),
]
