"""Mutants beside the usual road: rounds and changes, purges, clusters, paid schemas, analysts who were given less."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from indknn.answering.predictor import Predictor
from indknn.cluster.host import Host, Limits, PackedDebits, QueryBatch, Sums
from indknn.engine import Engine
from indknn.ledger import MemoryLedger, Scope
from indknn.models.adviser import Adviser
from indknn.records.derived import Derived
from indknn.store import Store, table_counts
from indknn.types import IntArray
from indknn_lab.audits.patches import Mutant, Replacement, patched


def _stale_rows() -> list[Replacement]:
    """A slot that is used again keeps the values of the record that was there before."""
    original = Derived._missing

    def missing(self: Derived, slots: IntArray) -> IntArray:
        found = original(self, slots)
        return found[self._known[found] < 0]

    return [(Derived, "_missing", missing)]


def _forgetful() -> list[Replacement]:
    """After a purge, only the transcript says who was told something, and it is empty."""
    original = Predictor._alone

    def alone(self: Predictor) -> bool:
        with patched([(MemoryLedger, "scopes", property(lambda ledger: [None]))]):
            return original(self)

    return [(Predictor, "_alone", alone)]


def _all_advised() -> list[Replacement]:
    original = Predictor.adviser

    def adviser(self: Predictor, analyst: Scope = None) -> Adviser | None:
        made = original(self, analyst)
        if made is not None and self.model is not None:
            made.model = self.model
        return made

    return [(Predictor, "adviser", adviser)]


def _counted_free() -> list[Replacement]:
    """The hosts of a cluster tell the coordinator of the charges for votes, not of those for counts."""
    original = Host.count

    def count(self: Host, terms: Limits, batch: QueryBatch) -> Sums:
        told = original(self, terms, batch)
        paid = [told.debits[i] for i in range(len(batch.questions))]
        return Sums(told.rows, PackedDebits.of([(slots, np.zeros_like(units)) for slots, units in paid]))

    return [(Host, "count", count)]


def _free_schema() -> list[Replacement]:
    original = table_counts._released

    def released(*arguments: Any) -> Any:
        with patched([(MemoryLedger, "charge", lambda *_, **__: None)]):
            return original(*arguments)

    return [(table_counts, "_released", released)]


def _adds_begin() -> list[Replacement]:
    """Whoever comes makes a round begin."""

    def beginning(original: Callable[..., Any]) -> Callable[..., Any]:
        def add(self: Engine | Store, *arguments: Any, **more: Any) -> Any:
            made = original(self, *arguments, **more)
            if self.settings.advised:
                for _ in self.train():
                    pass
            return made

        return add

    return [(where, "add", beginning(where.add)) for where in (Engine, Store)]


MUTANTS = [
    Mutant("stale rows", "a slot that is used again keeps what followed from the record before", _stale_rows),
    Mutant("forgetful", "after a purge nobody remembers who was told something", _forgetful),
    Mutant("less sees all", "an analyst who was given less sees the shared model", _all_advised),
    Mutant("counts free in a cluster", "the coordinator books votes, and no counts", _counted_free),
    Mutant("free schema", "nobody is charged for the counts that made a schema", _free_schema),
    Mutant("adds begin rounds", "whoever comes makes a round of training begin", _adds_begin),
]
