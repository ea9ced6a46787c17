"""Mutants of storing and serving: ledgers, transcripts, files, the server, what comes and goes, dates, promises to
single people, and stores whose records say numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from indknn.answering.predictor import Predictor
from indknn.answering.requests import Reply, Request
from indknn.cluster.host import Host, Limits, PackedDebits, QueryBatch, Sums
from indknn.core import clock, mechanism
from indknn.core.mechanism import Group, Plan, Settlement
from indknn.core.targets import MIDDLE, TOP, Number, as_numbers
from indknn.engine import Engine
from indknn.ledger import SHARED, MemoryLedger, Scope
from indknn.ledger.memory import is_earlier
from indknn.ledger.promises import Wanted
from indknn.models.adviser import Adviser
from indknn.models.rules import ResidualRule
from indknn.models.shown_numbers import ShownNumbers
from indknn.records import shard
from indknn.records.by_slot import Dates
from indknn.records.derived import Derived
from indknn.records.shard import Shard
from indknn.server.worker import Worker
from indknn.store import Store, database, store, table_counts
from indknn.store.change import Erased
from indknn.store.journal import Batch, StoreJournal
from indknn.types import GRID, BoolArray, FloatArray, Int8Array, IntArray
from indknn_lab.audits.patches import mutant, patched


@mutant("float32 ledger", "small charges are swallowed", (MemoryLedger, "charge"))
def _float32_ledger(_: Any, self: MemoryLedger, slots: IntArray, units: IntArray, scope: Scope, **options: Any) -> None:
    spent = self._in(scope)
    spent[slots] = (spent[slots].astype(np.float32) + units.astype(np.float32)).astype(np.int64)


mutant("no global budget", "the common ledger is ignored", (MemoryLedger, "remaining"))(
    lambda _, self, slots, scope: np.maximum(self.budget - self._in(scope)[slots], 0)
)
mutant("shared pool", "analysts share what was released", (Predictor, "_transcript"))(
    lambda transcript, self, analyst: transcript(self, None)
)


@mutant("fresh repeats", "a repeat is answered anew after the records changed", (Predictor, "compute"))
def _fresh_repeats(original: Any, self: Predictor, requests: Sequence[Request]) -> list[Reply]:
    held = self.shard.record_ids().tolist()
    if held != self.__dict__.setdefault("_held_then", held):
        self._transcripts.clear()
    self.__dict__["_held_then"] = held
    replies: list[Reply] = original(self, requests)
    return replies


def _left_out(*_: Any) -> None:
    """A step that is left out."""


mutant("refund on return", "coming back starts a new budget", (MemoryLedger, "_resume"))(_left_out)
mutant("no tombstone", "an erasure leaves the tombstone out of the file", (database, "write_tombstones"))(_left_out)
mutant("no balance", "what somebody who is back had spent is not written", (StoreJournal, "fold"))(
    lambda fold, self, owner_slots=(): fold(self) if not owner_slots else None
)


@mutant("unwritten charges", "answers are written down without their debits", (StoreJournal, "note"))
def _unwritten_charges(original: Any, self: StoreJournal, *answer: Any) -> None:
    self.ledger.log = {}
    original(self, *answer)


mutant("half erased", "the file keeps the records that were forgotten", (database, "clear_records"))(_left_out)
mutant("store answers first", "answers leave before they are durable", (Batch, "commit"))(_left_out)
mutant("server answers first", "answers leave before they are durable", (Worker, "_durable"))(
    lambda durable, self, group: durable(self, [replace(done, batch=None) for done in group])
)


@mutant("stale rows", "a slot that is used again keeps what followed from the record before", (Derived, "_missing"))
def _stale_rows(original: Any, self: Derived, slots: IntArray) -> Any:
    found = original(self, slots)
    return found[self._known[found] < 0]


@mutant("forgetful", "after a purge nobody remembers who was told something", (Predictor, "_alone"))
def _forgetful(original: Any, self: Predictor) -> Any:
    """Only the transcript says who was told something, and it is empty."""
    with patched([(MemoryLedger, "scopes", property(lambda ledger: [None]))]):
        return original(self)


@mutant("less sees all", "an analyst who was given less sees the shared model", (Predictor, "adviser"))
def _all_advised(original: Any, self: Predictor, analyst: Scope = None) -> Adviser | None:
    made: Adviser | None = original(self, analyst)
    if made is not None and self.model is not None:
        made.model = self.model
    return made


@mutant("counts free in a cluster", "the coordinator books votes, and no counts", (Host, "count"))
def _counted_free(original: Any, self: Host, terms: Limits, batch: QueryBatch) -> Sums:
    told = original(self, terms, batch)
    paid = [told.debits[i] for i in range(len(batch.questions))]
    return Sums(told.rows, PackedDebits.of([(slots, np.zeros_like(units)) for slots, units in paid]))


@mutant("free schema", "nobody is charged for the counts that made a schema", (table_counts, "_released"))
def _free_schema(original: Any, *arguments: Any) -> Any:
    with patched([(MemoryLedger, "charge", lambda *_, **__: None)]):
        return original(*arguments)


@mutant("adds begin rounds", "whoever comes makes a round of training begin", (Engine, "add"), (Store, "add"))
def _adds_begin(original: Any, self: Engine | Store, *arguments: Any, **more: Any) -> Any:
    made = original(self, *arguments, **more)
    if self.settings.advised:
        for _ in self.train():
            pass
    return made


mutant("expired votes", "a record takes part after its date", (Dates, "taking_part"), also=((shard, "_votes", None),))(
    lambda _, self, slots, hour: np.ones(len(slots), dtype=bool)
)


@mutant("held votes", "a record under a hold takes part", (Dates, "taking_part"), also=((shard, "_votes", None),))
def _held_take_part(_: Any, self: Dates, slots: IntArray, hour: int) -> BoolArray:
    return self.of(slots) > hour


@mutant("back in time", "a clock that is set back revives what has expired", (MemoryLedger, "tick"))
def _back_in_time(_: Any, self: MemoryLedger) -> int:
    self.minute = clock.minute()
    return self.minute


@mutant("expiry refunds", "what somebody spent goes with their last record", (Erased, "from_memory"))
def _refund(original: Any, state: Any, slots: IntArray, why: str) -> Erased:
    erased: Erased = original(state, slots, why)
    if why == "expire":
        empty = {digest: replace(grave, spent={}, queries=0) for digest, grave in erased.tombstones.items()}
        state.engine.ledger.tombstones.update(empty)
    return erased


@mutant("expiry begins rounds", "a round of training begins when a record expires", (store, "expire"))
def _shown(original: Any, state: Any, most: int) -> int:
    gone: int = original(state, most)
    if gone and state.engine.settings.advised:
        state.engine.start_round()
    return gone


_EVERYWHERE = ((MemoryLedger, "_in_one_pass", lambda *_: False),)


@mutant(
    "promise ignored",
    "somebody was promised less, and pays as much as everybody",
    (MemoryLedger, "bounds"),
    also=_EVERYWHERE,
)
def _same_for_all(original: Any, self: MemoryLedger, slots: IntArray, scope: Scope, **options: Any) -> Any:
    """It is written down and printed, and limits nothing."""
    with patched([(self, "_promises", self._promises[:0])]):
        return original(self, slots, scope, **options)


@mutant("promise untrained", "training uses more than somebody was promised", (Shard, "gradient"))
def _same_in_training(original: Any, self: Shard, *arguments: Any) -> Any:
    """A promise limits votes, counts and cards."""
    with patched([(self.ledger, "_promises", self.ledger._promises[:0])]):
        return original(self, *arguments)


@mutant("lowering tells all", "what all see depends on what one analyst was told", (MemoryLedger, "lower"))
def _what_is_left(original: Any, self: MemoryLedger, wanted: Wanted) -> IntArray:
    """Whoever lowers their promise leaves to all analysts what one analyst did not use."""
    slots: IntArray = original(self, wanted)
    told = np.max([self._spent[s][slots] for s in self.scopes if s != SHARED], axis=0, initial=0)
    part = np.minimum(wanted.units, self.budget) - told
    self._promises["part"][slots] = np.maximum(part, self._promises["part"][slots])
    return slots


@mutant("pace ignored", "votes use their part before its time", (MemoryLedger, "tick"))
def _all_at_once(original: Any, self: MemoryLedger) -> Any:
    now = original(self)
    self.fraction = 1, 1
    return now


@mutant("periods forgotten", "what was spent in earlier periods does not count", (MemoryLedger, "close_period"))
def _clean_slate(original: Any, self: MemoryLedger, periods: int = 1) -> None:
    original(self, periods)
    for scope in self.all_scopes:
        if is_earlier(scope):
            self._spent[scope][:] = 0


_UNCUT = "a record votes with all that the model gets wrong about it"


@mutant("residual uncut", _UNCUT, (ResidualRule, "__call__"))
def _uncut_residual(original: Any, self: ResidualRule, values: Int8Array, labels: IntArray) -> Any:
    if self.ends is not None:
        return original(self, values, labels)
    return np.asarray(labels - MIDDLE - np.rint(self.said(values) * GRID), dtype=np.int64)


@mutant("residual charged as cut", "residuals are charged as cut and voted whole", (mechanism, "settle"))
def _charged_as_cut(original: Any, group: Group, remaining: IntArray, K: int, plan: Plan) -> Settlement:
    voted: Settlement = original(group, remaining, K, plan)
    if plan.ballot != "residual":
        return voted
    cut = replace(group, entry_vote=np.clip(group.entry_vote, -GRID // 8, GRID // 8))
    return replace(voted, charges=original(cut, remaining, K, plan).charges)


_UNBOUNDED = ((shard, "about_centre", lambda labels, centre: labels - MIDDLE - centre),)


@mutant("bounds ignored", "numbers beyond the bounds count as they are", (Number, "encode"), also=_UNBOUNDED)
def _no_bounds(_: Any, self: Number, y: Any) -> tuple[IntArray, int]:
    return np.rint((as_numbers(y) - self.low) / (self.high - self.low) * TOP).astype(np.int64), 0


@mutant("unpaid interval", "intervals come from counts that nobody paid for", (Engine, "intervals"))
def _unpaid_interval(_: Any, self: Engine, answers: Any, coverage: float, analyst: Scope = None) -> FloatArray:
    """They come from the records' own residuals, without noise."""
    (low, high), shown = self.refuse_coverage(coverage), self.shown_to(analyst)
    assert isinstance(shown, ShownNumbers)
    assert isinstance(self.shard, Shard)
    slots = self.shard.slots()
    above = shown.rule(self.shard.values_of(slots), self.shard.labels_of(slots)) / GRID
    offsets = np.quantile(above, [(1.0 - coverage) / 2.0, (1.0 + coverage) / 2.0])
    return np.asarray(np.clip(answers[:, None] + 0.5 * (high - low) * offsets, low, high), dtype=np.float64)
