"""Settings, noise, people, records and the predictor over them, all in memory.

The estimator and the durable store both use an engine. The estimator keeps it until the process ends. The store also
writes down everything that it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isclose
from numbers import Real
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from indknn.answering.predictor import Predictor
from indknn.answering.requests import Journal, Reply, Request, checked_analyst
from indknn.answering.trainer import Progress
from indknn.core import accounting
from indknn.core.advice import about_copies, tell
from indknn.core.clock import DAY, HOUR
from indknn.core.inputs import as_epsilons, as_hours, as_owner_list, as_owners, as_record_ids, says_each_row
from indknn.core.noise import Noise
from indknn.core.releases import PublicRows
from indknn.core.statistics import MAX_RECORDS
from indknn.errors import InvalidInputError, PrivacyError
from indknn.ledger import SHARED, MemoryLedger, Scope
from indknn.ledger.promises import Wanted, keep_promises, wanted
from indknn.models.explanation import Explanation, average_row, explained
from indknn.models.probabilities import Decision
from indknn.models.shared_model import ShownModel, distinct
from indknn.models.shown_numbers import ShownNumbers
from indknn.records.any_shard import AnyShard, Match, NewRecords
from indknn.records.shard import Shard, new_index
from indknn.settings import PARAMETERS, Settings
from indknn.types import FloatArray, Given, Int8Array, IntArray, OwnerId

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
    ledger.pace, ledger.renewal = ((days or 0) * DAY * HOUR for days in (settings.pace_days, settings.renew_days))
    ledger.born = ledger.tick()
    ledger.tick()
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

    def add(
        self,
        X: npt.ArrayLike,
        y: npt.ArrayLike,
        owners: Any = None,
        record_ids: Any = None,
        expires: Any = None,
        epsilons: Any = None,
    ) -> IntArray:
        """Add records and return their numbers."""
        return self.put(Given(*self.settings.prepare(X, y), owners, record_ids, expires, epsilons))

    def put(self, prepared: Given) -> IntArray:
        """Add prepared records and return their numbers. Without owners, every row is a new person.

        A row with the record id of an existing record replaces it, or changes nothing if it is equal. A row that has
        expired is not added and has the number -1. Records that have expired are removed.
        """
        vectors, labels, owners, record_ids, expires, epsilons = prepared
        given = None if owners is None or says_each_row(owners) else as_owners(owners, length=len(vectors))
        chosen, less = as_record_ids(record_ids, len(vectors)), as_epsilons(epsilons, len(vectors))
        until = as_hours(expires, len(vectors))
        self.renew_if_due()  # so that no query decides whether its round is about these records
        with self.shard.lock:
            self.expire()
            names = self.ledger.new_names(len(vectors)) if given is None else given
            asked = wanted(self.settings, self.ledger, names, less)
            new = NewRecords(vectors, labels, names, chosen, until)
            match = self.match(new)
            fresh = match.fresh[match.until[match.fresh] > self.shard.hour]
            match.ids[fresh] = self.shard.add(*match.pick(fresh, new))
            if asked is not None:
                self.shard.lower(asked)
            if len(match.stale):
                self.shard.forget(match.stale)
        tell(about_copies(match.copies, len(vectors)))
        return match.ids

    def expire(self) -> int:
        """Remove the records that have expired. Returns how many. Whoever has none left is forgotten."""
        with self.shard.lock:
            self.ledger.tick()
            slots = self.shard.dates.due(self.shard.hour, MAX_RECORDS)
            self.shard.forget(slots)
        return len(slots)

    def match(self, new: NewRecords) -> Match:
        """Which of these rows are here already. Refuses more records than the store may hold."""
        keep = self.settings.keep_days
        self.ledger.tick()
        if keep is not None:
            new = new._replace(until=np.minimum(new.until, self.shard.hour + keep * DAY))
        match = self.shard.match(new, earliest=keep is not None)
        if len(self.shard) + len(match.fresh) > MAX_RECORDS:
            raise InvalidInputError(f"there may be at most {MAX_RECORDS:,} records, got {len(match.fresh):,} more")
        return match

    def lower(self, owner: OwnerId, epsilon: float) -> None:
        """Promise a person who has records a smaller ε, from now on."""
        self.renew_if_due()
        with self.shard.lock:
            self.shard.lower(self.less_for(owner, epsilon))

    def less_for(self, owner: OwnerId, epsilon: float) -> Wanted:
        """The smaller promise for a person who has records. An error if it is larger, or nobody has that name."""
        self.ledger.tick()
        if not self.shard.unexpired(self.shard.slots_of_owners([owner])).any():  # whether or not they are erased
            raise InvalidInputError(f"owner {owner!r} has no records here")
        PARAMETERS["epsilon"].check("epsilon", epsilon)
        asked = wanted(self.settings, self.ledger, [owner], np.array([epsilon], dtype=np.float64), repr(owner))
        assert asked is not None
        return asked

    def forget_owners(self, owners: Any) -> int:
        """Remove all records of these owners. Returns how many."""
        names = as_owner_list(owners)
        with self.shard.lock:
            self.expire()
            slots = self.shard.slots_of_owners(names)
            self.shard.forget(slots)
        return len(slots)

    def forget_records(self, ids: Sequence[int], record_ids: Any = ()) -> int:
        """Remove the records with these numbers, and those with these ids of your own. Returns how many.

        An owner whose last record is removed is forgotten.
        """
        chosen = as_owner_list(record_ids, what="record id")
        with self.shard.lock:
            self.expire()
            slots = np.union1d(self.shard.slots_of_records(ids), self.shard.slots_of_ids(chosen))
            self.shard.forget(slots)
        return len(slots)

    def declare_public(self, X: npt.ArrayLike, y: npt.ArrayLike | None = None) -> None:
        """Public rows that the shared model may use, with their labels if they are known."""
        self.predictor.public = public_rows(self.settings, X, y)

    def train(self) -> Iterator[Progress]:
        """Train the shared model, or train it again if there are enough newcomers, piece by piece.

        The time of this must be public (a clock, an operator's decision). It must not depend on what is in the records.
        """
        self.renew_if_due()
        self.start_round()
        yield from self.predictor.training()

    def start_round(self) -> None:
        """Begin a round of training, unless one is running."""
        if self.predictor.model is None:
            raise InvalidInputError("there is no shared model to train: the settings have mode='votes'")
        with self.predictor.locked():
            self.predictor.start_round()

    def renew_if_due(self) -> None:
        """Begin a new period if one has ended: everybody's budget starts anew, and a round of training begins.

        It is not run here. `Store.renew_if_due` says why.
        """
        if not self.ledger.renewal:
            return  # as in `MemoryLedger.periods_due`, without the locks
        with self.predictor.locked():
            if not self.ledger.periods_due:
                return
            self.shard.renew()
            self.predictor.renew()
            if self.predictor.model is not None and self.predictor.model.started:
                self.predictor.begin_round()

    def purge(self) -> None:
        """Delete everything that was released. This is a public event that begins a round, see `Store.purge`."""
        self.renew_if_due()
        self.predictor.purge()
        self._finish_round()

    def _finish_round(self) -> None:
        """Run the round that an event began. Otherwise whoever asks next would decide when it is made (rule 17)."""
        for _ in self.predictor.training():
            pass

    def predict(self, Q: npt.ArrayLike, analyst: Scope = None) -> npt.NDArray[Any]:
        """The label of each query. This spends budget."""
        return self.settings.target_.decode(self._answered(Q, analyst).labels)

    def predict_both(self, Q: npt.ArrayLike, analyst: Scope = None) -> tuple[npt.NDArray[Any], FloatArray]:
        """The label of each query and the probability of each class. It spends the same as `predict`."""
        self.refuse_numbers("predict_proba")
        reply = self._answered(Q, analyst, likely=True)
        assert reply.likely is not None
        return self.settings.target_.decode(reply.labels), reply.likely

    def _answered(self, Q: npt.ArrayLike, analyst: Scope, *, likely: bool = False) -> Reply:
        queries = self.settings.quantise(Q, "the queries")
        self.renew_if_due()
        (reply,) = self.predictor.compute([Request(queries, analyst, likely=likely)])
        return reply

    def intervals(self, answers: npt.NDArray[Any], coverage: float, analyst: Scope = None) -> FloatArray:
        """The ends of an interval around each answer, by the report card of the shared model. It spends nothing."""
        low, high = self.refuse_coverage(coverage)
        shown = self.shown_to(analyst)
        assert isinstance(shown, ShownNumbers)
        assert shown.card is not None
        ends = [answers + 0.5 * (high - low) * offset for offset in shown.card.offsets(coverage)]
        return np.clip(np.stack(ends, axis=1), low, high)

    def refuse_coverage(self, coverage: Any) -> tuple[float, float]:
        """The bounds of the numbers that records say. An error if there can be no intervals, or not for this share."""
        if self.settings.bounds is None:
            raise InvalidInputError("intervals are for numbers, and the target is a class")
        number = isinstance(coverage, Real) and not isinstance(coverage, bool)
        if not (number and 0.0 < coverage < 1.0):
            raise InvalidInputError(f"coverage must be above 0 and below 1, got {coverage!r}")
        return self.settings.bounds

    def refuse_numbers(self, what: str) -> None:
        """Refuse what is about classes if records say numbers."""
        if self.settings.numeric:
            raise InvalidInputError(f"{what}: the target is a number, so there are no classes")

    def shown_to(self, analyst: Scope = None) -> ShownModel | ShownNumbers:
        """The shared model that this analyst may see. An error if there is none."""
        with self.predictor.locked():
            adviser = self.predictor.adviser(analyst)
            shown = None if adviser is None else adviser.model.shown
        if shown is None:
            why = "mode='votes' has none" if adviser is None else "it is not trained yet, or not for this analyst"
            raise InvalidInputError(f"this needs the shared model, and {why}")
        return shown

    def refuse_unfit(self, decision: Decision, analyst: Scope = None) -> None:
        """Refuse a decision that cannot be made for this analyst, before anybody is charged."""
        decision.refuse_unfit(self.settings.class_array, self.settings.seen_by(analyst).advised)

    def decide(
        self, decision: Decision, labels: npt.NDArray[Any], likely: FloatArray, analyst: Scope = None
    ) -> tuple[npt.NDArray[Any], FloatArray]:
        """Labels and probabilities as this decision has them, from those that were released to an analyst."""
        shown = self.shown_to(analyst) if decision.balanced else None
        shares = shown.shares if isinstance(shown, ShownModel) else None
        classes = self.settings.class_array
        return decision.labels(labels, likely, classes, shares), decision.weighed(likely, classes, shares)

    def explain(self, rows: FloatArray, analyst: Scope, parts: Mapping[str, Any] | None) -> list[Explanation]:
        """Which columns moved the shared model's answer about these vectors. It spends nothing.

        `parts` are the coordinates of each column, if the vectors are of a table. Then 0 is the average of a column.
        """
        shown, settings, found = self.shown_to(analyst), self.settings, []
        settings.quantise(rows, "the queries")  # refuses what is no query
        for row in np.asarray(rows, dtype=np.float64):
            here = row if settings.center_ is None else row - settings.center_
            base = average_row(shown.public, here)
            if parts is not None:
                base = here.copy()
                for part in parts.values():
                    base[part] = 0.0
            named = {str(i): i for i in range(len(row))} if parts is None else parts
            found.append(explained(shown, here, base, named, settings.target_))
        return found

    def spent(self, owners: Any = None, analyst: Scope = None) -> FloatArray:
        """How much each owner has spent, as ρ, with one analyst or (None) with all together. Default: all with records.

        What every analyst sees counts for each of them.
        """
        checked_analyst(analyst)
        with self.shard.lock:
            names = self.ledger.owners() if owners is None else as_owner_list(owners)
            if analyst is None or self.ledger.joint:
                return accounting.from_units(self.ledger.total_spent(names))
            scopes = (analyst,) if self.ledger.apart(analyst) else (analyst, SHARED)
            return accounting.from_units(sum(self.ledger.spent(names, scope) for scope in scopes))

    def restarted(self, settings: Settings, noise: Noise) -> Engine:
        """An empty engine with other settings for the same people. They keep what they have spent."""
        self.renew_if_due()
        fresh = new_ledger(settings)
        if self.ledger.used:
            refuse_other_division(self.settings, settings)
            self._refuse_other_analysts(settings)
        successor = Engine(settings, noise, self.ledger, make_shard=self.make_shard)  # may refuse: nothing changed yet
        if self.predictor.model is not None and self.settings.n_features == settings.n_features:
            successor._earlier = self.predictor.model.public
        successor.shard.epoch = self.shard.epoch  # so that its first round is not taken for the first of all
        with self.shard.lock:
            successor.earlier = (*self.earlier, self.settings) if self.ledger.anything_spent() else ()
            self.shard.forget(self.shard.slots())
            self.ledger.budget, self.ledger.global_budget = fresh.budget, fresh.global_budget
            self.ledger.shared_budget, self.ledger.budgets = fresh.shared_budget, fresh.budgets
            self.ledger.pace, self.ledger.renewal, self.ledger.fraction = fresh.pace, fresh.renewal, fresh.fraction
            keep_promises(settings, self.ledger)
        return successor

    def _refuse_other_analysts(self, settings: Settings) -> None:
        """Refuse settings under which somebody would learn more than they may, because of what was told before.

        An analyst for whom the shared model costs too much may spend a whole budget on votes. So nobody who was
        answered may begin or cease to see the model. With one ledger for all, the model follows from queries that were
        answered within the full budget, so nobody can be given less from then on.
        """
        for name in self.predictor.told:
            if self.settings.seen_by(name).advised != settings.seen_by(name).advised:
                raise PrivacyError(
                    f"analyst {name!r} was answered {'with' if self.settings.seen_by(name).advised else 'without'} the "
                    "shared model, so that must stay: keep what the analyst was given, or use a new name"
                )
        for name in settings.analysts:
            if settings.seen_by(name).budget <= self.ledger.published:
                raise PrivacyError(
                    f"analyst {name!r} cannot be promised so little: the shared model was published, so this analyst "
                    "may see it, and it may cost more"
                )
        if self.ledger.joint and settings.analysts:
            raise PrivacyError("no analyst can be given less: queries without a name trained the model for everybody")

    def replace_all(self, prepared: Given) -> IntArray:
        """Replace all records by these and return their numbers. Without owners, people are named by row numbers."""
        self.renew_if_due()
        n, nameless = len(prepared.X), prepared.owners is None or says_each_row(prepared.owners)
        names = as_owners(np.arange(n) if nameless else prepared.owners, length=n)
        chosen = as_record_ids(prepared.record_ids, n)
        with self.predictor.locked():
            wanted(self.settings, self.ledger, names, as_epsilons(prepared.epsilons, n))  # or nothing is changed
            self.shard.forget(self.shard.slots())
            numbers = self.put(prepared._replace(owners=names, record_ids=chosen))
            if self.predictor.model is not None and self.ledger.used:  # then no query may begin the round (rule 17)
                self.predictor.begin_round(self._earlier)
                self._finish_round()
            return numbers


def refuse_other_division(old: Settings, new: Settings) -> None:
    """Refuse to divide budgets in another way between what all analysts see and what each is told.

    Otherwise what all see would have to depend on what single analysts were told before.
    """
    if old.renew_days != new.renew_days:
        raise PrivacyError("people have spent budget here, so renew_days must stay as it was")
    before, after = (one.shared_budget / one.budget for one in (old, new))
    if not isclose(before, after, rel_tol=1e-9):
        raise PrivacyError(
            f"people have spent budget here, of which {before:.0%} was for the shared model, and the new settings give "
            f"it {after:.0%}: keep mode and model_share, or use a new object if these are other people"
        )
