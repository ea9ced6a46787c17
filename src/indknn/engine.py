"""Settings, noise, people, records and the predictor over them, all in memory.

The estimator and the durable store both use an engine. The estimator keeps it until the process ends. The store also
writes down everything that it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import isclose
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from indknn.answering.predictor import Predictor
from indknn.answering.requests import Journal, Request
from indknn.answering.trainer import Progress
from indknn.core import accounting
from indknn.core.advice import about_copies, tell
from indknn.core.inputs import as_owner_list, as_owners, as_record_ids, says_each_row
from indknn.core.noise import Noise
from indknn.core.releases import PublicRows
from indknn.core.statistics import MAX_RECORDS
from indknn.errors import InvalidInputError, PrivacyError
from indknn.ledger import SHARED, MemoryLedger, Scope, checked_analyst
from indknn.models.shared_model import distinct
from indknn.records.keys import Match
from indknn.records.protocol import AnyShard
from indknn.records.shard import Shard, new_index
from indknn.settings import Settings
from indknn.types import FloatArray, Int8Array, IntArray, OwnerId, Vectors

MakeShard: TypeAlias = Callable[[Settings, MemoryLedger], AnyShard]
"""Makes the empty shard of an engine. The shard of a cluster has its records elsewhere."""


def new_shard(settings: Settings, ledger: MemoryLedger) -> Shard:
    """An empty shard in this process."""
    return Shard(new_index(settings), ledger)


def new_ledger(settings: Settings, key: bytes | None = None) -> MemoryLedger:
    """A ledger in which nobody has spent anything."""
    behind = None if settings.global_budget is None else accounting.to_units(settings.global_budget)
    shared = accounting.to_units(settings.shared_budget) if settings.shared_budget else 0
    ledger = MemoryLedger(accounting.to_units(settings.budget), behind, shared_budget=shared, key=key)
    ledger.budgets = {name: accounting.to_units(settings.seen_by(name).budget) for name in settings.analysts}
    return ledger


def public_rows(settings: Settings, X: npt.ArrayLike, y: npt.ArrayLike | None) -> PublicRows:
    """The declared public rows that are kept, with their labels if they are known."""
    vectors, labels = (settings.quantise(X, "public"), None) if y is None else settings.prepare(X, y)
    kept = distinct(vectors.values)
    return PublicRows(False, 0, np.ascontiguousarray(vectors.values[kept]), None if labels is None else labels[kept])


class Engine:
    """Records, people and the predictor over them.

    >>> from indknn.core.noise import SecureNoise
    >>> engine = Engine(Settings(n_features=2, classes=("no", "yes"), tau=0.5), SecureNoise())
    >>> ids = engine.add([[1.0, 0.0], [0.0, 1.0]], ["no", "yes"], ["ann", "bob"])
    >>> engine.predict([[1.0, 0.1]]).shape
    (1,)
    """

    def __init__(
        self,
        settings: Settings,
        noise: Noise,
        ledger: MemoryLedger | None = None,
        journal: Journal | None = None,
        public: PublicRows | None = None,
        make_shard: MakeShard | None = None,
    ):
        self.settings = settings
        self.earlier: tuple[Settings, ...] = ()  # settings under which the same people spent something before
        self.noise = noise
        self._earlier: Int8Array | None = None  # public rows of the engine before a refit
        self.make_shard = new_shard if make_shard is None else make_shard
        self.ledger = new_ledger(settings) if ledger is None else ledger
        self.shard = self.make_shard(settings, self.ledger)
        self.predictor = Predictor(self.shard, settings, noise, journal, public)

    def limit_analyst(self, settings: Settings, analyst: str) -> None:
        """Use these settings from now on. They give less to an analyst who was told nothing yet."""
        with self.predictor.locked():
            self.settings, self.ledger.budgets = settings, new_ledger(settings).budgets
            self.predictor.begin_anew(settings, analyst)

    def add(self, X: npt.ArrayLike, y: npt.ArrayLike, owners: Any = None, record_ids: Any = None) -> IntArray:
        """Add records and return their numbers."""
        return self.put(*self.settings.prepare(X, y), owners, record_ids)

    def put(self, vectors: Vectors, labels: IntArray, owners: Any = None, record_ids: Any = None) -> IntArray:
        """Add prepared records and return their numbers. Without owners, every row is a new person.

        A row with the record id of an existing record replaces it, or changes nothing if it is equal.
        """
        given = None if owners is None or says_each_row(owners) else as_owners(owners, length=len(vectors))
        chosen = as_record_ids(record_ids, len(vectors))
        with self.shard.lock:
            names = self.ledger.new_names(len(vectors)) if given is None else given
            match = self.match(vectors, labels, names, chosen)
            match.ids[match.fresh] = self.shard.add(*match.pick(vectors, labels, names))
            if len(match.stale):
                self.shard.forget(match.stale)
        tell(about_copies(match.copies, len(vectors)))
        return match.ids

    def match(
        self, vectors: Vectors, labels: IntArray, owners: Sequence[OwnerId], record_ids: Sequence[str | None] | None
    ) -> Match:
        """Which of these rows are here already. Refuses more records than the store may hold."""
        match = self.shard.match(vectors, labels, owners, record_ids)
        if len(self.shard) + len(match.fresh) > MAX_RECORDS:
            raise InvalidInputError(f"there may be at most {MAX_RECORDS:,} records, got {len(match.fresh):,} more")
        return match

    def forget_owners(self, owners: Any) -> int:
        """Remove all records of these owners. Returns how many."""
        names = as_owner_list(owners)
        with self.shard.lock:
            slots = self.shard.slots_of_owners(names)
            self.shard.forget(slots)
        return len(slots)

    def forget_records(self, ids: Sequence[int]) -> int:
        """Remove these records. Returns how many. An owner whose last record is removed is forgotten."""
        with self.shard.lock:
            slots = self.shard.slots_of_records(ids)
            self.shard.forget(slots)
        return len(slots)

    def declare_public(self, X: npt.ArrayLike, y: npt.ArrayLike | None = None) -> None:
        """Public rows that the shared model may use, with their labels if they are known."""
        self.predictor.public = public_rows(self.settings, X, y)

    def train(self) -> Iterator[Progress]:
        """Train the shared model, or train it again if there are enough newcomers, piece by piece.

        The time of this must be public (a clock, an operator's decision). It must not depend on what is in the records.
        """
        self.start_round()
        yield from self.predictor.training()

    def start_round(self) -> None:
        """Begin a round of training, unless one is running."""
        if self.predictor.model is None:
            raise InvalidInputError("there is no shared model to train: the settings have prior='none'")
        with self.predictor.locked():
            self.predictor.start_round()

    def purge(self) -> None:
        """Delete everything that was released. This is a public event that begins a round, see `Store.purge`."""
        self.predictor.purge()
        self._finish_round()

    def _finish_round(self) -> None:
        """Run the round that an event began. Otherwise whoever asks next would decide when it is made (rule 17)."""
        for _ in self.predictor.training():
            pass

    def predict(self, Q: npt.ArrayLike, analyst: Scope = None) -> npt.NDArray[Any]:
        """The label of each query. This spends budget."""
        queries = self.settings.quantise(Q, "the queries")
        (reply,) = self.predictor.compute([Request(queries, analyst)])
        return np.asarray(self.settings.class_array[reply.labels])

    def predict_proba(self, Q: npt.ArrayLike, analyst: Scope = None) -> FloatArray:
        """The probability of each class, from what `predict` releases anyway. It spends the same as `predict`."""
        queries = self.settings.quantise(Q, "the queries")
        (reply,) = self.predictor.compute([Request(queries, analyst, likely=True)])
        assert reply.likely is not None
        return reply.likely

    def spent(self, owners: Any = None, analyst: Scope = None) -> FloatArray:
        """How much each owner has spent, as ρ, with one analyst or (None) with all together. Default: all with records.

        What every analyst sees counts for each of them.
        """
        checked_analyst(analyst)
        with self.shard.lock:
            names = self.ledger.owners() if owners is None else as_owner_list(owners)
            if analyst is None or self.ledger.house:
                return accounting.from_units(self.ledger.total_spent(names))
            scopes = (analyst,) if self.ledger.apart(analyst) else (analyst, SHARED)
            return accounting.from_units(sum(self.ledger.spent(names, scope) for scope in scopes))

    def restarted(self, settings: Settings, noise: Noise) -> Engine:
        """An empty engine with other settings for the same people. They keep what they have spent."""
        fresh = new_ledger(settings)
        if self.ledger.used:
            refuse_other_division(self.settings, settings)
        successor = Engine(settings, noise, self.ledger, make_shard=self.make_shard)  # may refuse: nothing changed yet
        if self.predictor.model is not None and self.settings.n_features == settings.n_features:
            successor._earlier = self.predictor.model.public
        with self.shard.lock:
            successor.earlier = (*self.earlier, self.settings) if self.ledger.anything_spent() else ()
            self.shard.forget(self.shard.slots())
            self.ledger.budget, self.ledger.global_budget = fresh.budget, fresh.global_budget
            self.ledger.shared_budget, self.ledger.budgets = fresh.shared_budget, fresh.budgets
        return successor

    def replace_all(self, vectors: Vectors, labels: IntArray, owners: Any, record_ids: Any = None) -> IntArray:
        """Replace all records by these and return their numbers. Without owners, people are named by row numbers."""
        nameless = owners is None or says_each_row(owners)
        names = as_owners(np.arange(len(vectors)) if nameless else owners, length=len(vectors))
        chosen = as_record_ids(record_ids, len(vectors))
        with self.predictor.locked():
            self.shard.forget(self.shard.slots())
            numbers = self.put(vectors, labels, names, chosen)
            if self.predictor.model is not None and self.ledger.used:  # then no query may begin the round (rule 17)
                self.predictor.begin_round(self._earlier)
                self._finish_round()
            return numbers


def refuse_other_division(old: Settings, new: Settings) -> None:
    """Refuse to divide budgets in another way between what all analysts see and what each is told.

    Otherwise what all see would have to depend on what single analysts were told before.
    """
    before, after = (one.shared_budget / one.budget for one in (old, new))
    if not isclose(before, after, rel_tol=1e-9):
        raise PrivacyError(
            f"people have spent budget here, of which {before:.0%} was for the shared model, and the new settings give "
            f"it {after:.0%}: keep prior and prior_share, or use a new object if these are other people"
        )
