"""Everything behind one face, in memory: settings, noise, people, records and the predictor over them.

The estimator and the durable store are both an engine: the one forgets at the end of the process, the other
writes down what this one does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from indknn import accounting
from indknn.advice import Adviser, RidgeStudent, Student, density
from indknn.advice.adviser import Terms
from indknn.calibrate import DEFAULT_TAU, ENDLESS, plan_from_queries, sigma1_for, sigma2_for, tau_from_queries
from indknn.errors import InvalidInputError, PrivacyError
from indknn.indexes import Index, make_index
from indknn.inputs import as_owner_list, encode_labels
from indknn.kernels import Kernel, make_kernel
from indknn.ledgers import MemoryLedger, Scope
from indknn.modes import Derived, Prior, Reuse, as_derived, as_reuse, check_modes
from indknn.noise import Noise
from indknn.predictor import Journal, Predictor
from indknn.quantise import quantise
from indknn.shard import Shard
from indknn.types import Accountant, FloatArray, IntArray, KernelName, OwnerId, Plan, Vectors, Vote

MAX_CLASSES = (1 << 16) - 1


@dataclass(frozen=True)
class Settings:
    """What is public and fixed about a store. See `IndKNNClassifier` for what each means."""

    n_features: int
    classes: tuple[Any, ...]
    epsilon: float = 1.0
    delta: float = 1e-5
    max_queries: int | None = 1000
    kernel: KernelName = "cosine"
    tau: float | None = None
    sigma2: float | None = None
    bandwidth: float | None = None
    accountant: Accountant = "gdp"
    index: str = "exact"
    index_options: dict[str, Any] = field(default_factory=dict)
    reuse: Reuse = "none"
    center: tuple[float, ...] | None = None
    normalize: bool = True
    max_records_per_query: int | None = None
    free_repeats: bool = True
    global_epsilon: float | None = None
    vote: Vote = "gaussian"
    prior: Prior = "none"
    prior_share: float = 0.5

    def __post_init__(self) -> None:
        """Refuse what does not go together; True and False were the names of two kinds of reuse."""
        object.__setattr__(self, "reuse", as_reuse(self.reuse))
        if len(self.classes) > MAX_CLASSES:
            raise InvalidInputError(f"there may be at most {MAX_CLASSES} classes, got {len(self.classes)}")
        check_modes(self.reuse, self.vote, self.prior, self.prior_share, self.accountant, self.n_features)

    @property
    def advised(self) -> bool:
        """Whether releases answer as well: a student, a prior or both."""
        return self.reuse == "student" or self.prior != "none"

    @cached_property
    def budget(self) -> float:
        """B, what every person may spend with one analyst."""
        return accounting.budget(self.epsilon, self.delta, self.accountant)

    @cached_property
    def global_budget(self) -> float | None:
        """What every person may spend with all analysts together, if that is bounded."""
        if self.global_epsilon is None:
            return None
        return accounting.budget(self.global_epsilon, self.delta, self.accountant)

    @property
    def sigma1_(self) -> float:
        """The noise on the count."""
        planned = self.max_queries or ENDLESS
        return sigma1_for(self.budget, max(planned // density.EVERY, 100) if self.advised else planned)

    @property
    def sigma2_(self) -> float:
        """The noise on the votes, given or derived."""
        if self.sigma2 is not None:
            return float(self.sigma2)
        gaussian = sigma2_for(self.budget, self.max_queries or ENDLESS)
        return gaussian / 2.0 if self.vote == "exponential" else gaussian  # the same charges, less noise

    @cached_property
    def class_array(self) -> npt.NDArray[Any]:
        """The labels, sorted."""
        return np.unique(np.array(self.classes))

    @cached_property
    def kernel_(self) -> Kernel:
        """The kernel."""
        return make_kernel(self.kernel, self.bandwidth, normalize=self.normalize)

    def plan(self, tau: float) -> Plan:
        """The plan for a threshold."""
        classes = max(len(self.class_array), 1)  # none are known before the first records of a draft
        contrast = self.advised or self.reuse == "votes"
        return Plan(tau, self.sigma1_, self.sigma2_, classes, self.max_records_per_query, contrast, self.vote)

    def new_adviser(self, student: Callable[[], Student]) -> Adviser:
        """What answers from releases, before anything was released."""
        terms = Terms(
            self.n_features,
            max(len(self.class_array), 1),
            self.budget,
            self.max_queries,
            self.prior_share if self.prior == "statistics" else None,
            self.sigma2,
            self.tau,
        )
        pool = make_index("exact", self.kernel_, self.n_features)
        choose = partial(tau_from_queries, kernel=self.kernel_, share=density.SHARE)
        return Adviser(terms, pool, student() if self.reuse == "student" else None, choose)

    def new_index(self) -> Index:
        """An empty index."""
        return make_index(self.index, self.kernel_, self.n_features, **self.index_options)

    def new_ledger(self, key: bytes | None = None) -> MemoryLedger:
        """A ledger in which nobody has spent anything."""
        behind = None if self.global_budget is None else accounting.to_units(self.global_budget)
        return MemoryLedger(accounting.to_units(self.budget), behind, key=key)

    def quantise(self, X: npt.ArrayLike, what: str) -> Vectors:
        """Raw rows as the store sees them."""
        center = None if self.center is None else np.array(self.center, dtype=np.float64)
        vectors = quantise(X, center, what=what)
        if vectors.values.shape[1] != self.n_features:
            width = vectors.values.shape[1]
            raise InvalidInputError(f"{what} must have {self.n_features} features per row, got {width}")
        return vectors

    def prepare(self, X: npt.ArrayLike, y: npt.ArrayLike) -> tuple[Vectors, IntArray]:
        """Raw records as the store keeps them, or an error that names what is wrong."""
        vectors, labels = self.quantise(X, "X"), encode_labels(np.asarray(y), self.class_array)
        if len(labels) != len(vectors):
            raise InvalidInputError(f"y must have one label per row: {len(vectors)} rows, got {len(labels)}")
        return vectors, labels


def index_options(index: str, n_tables: int = 30, n_bits: int | None = None, seed: int = 0) -> dict[str, Any]:
    """What an index of this name is told of these; the rest does not concern it.

    >>> index_options("lsh"), index_options("exact")
    ({'seed': 0, 'n_tables': 30, 'n_bits': 8}, {})
    """
    if index == "lsh":
        return {"seed": int(seed), "n_tables": int(n_tables), "n_bits": int(8 if n_bits is None else n_bits)}
    if index == "sketch":
        return {"seed": int(seed), "n_bits": int(512 if n_bits is None else n_bits)}
    return {}


class Engine:
    """Records, people and the predictor over them.

    >>> from indknn.noise import SecureNoise
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
        student: Callable[[], Student] = RidgeStudent,
    ):
        self.settings = settings
        self.noise = noise
        self.ledger = settings.new_ledger() if ledger is None else ledger
        self.shard = Shard(settings.new_index(), self.ledger)
        self.predictor = Predictor(
            [self.shard],
            partial(plan_from_queries, settings.kernel_, settings.plan)
            if settings.tau is None and not settings.advised
            else settings.plan(settings.tau or DEFAULT_TAU),
            noise,
            reuse_pool=settings.new_index if settings.reuse in {"labels", "votes"} else None,
            keep_votes=settings.reuse == "votes",
            make_adviser=partial(settings.new_adviser, student) if settings.advised else None,
            free_repeats=settings.free_repeats,
            journal=journal,
        )

    def add(self, X: npt.ArrayLike, y: npt.ArrayLike, owners: Sequence[OwnerId] | None = None) -> IntArray:
        """Add records; their ids."""
        return self.put(*self.settings.prepare(X, y), owners)

    def put(self, vectors: Vectors, labels: IntArray, owners: Sequence[OwnerId] | None) -> IntArray:
        """Add prepared records; their ids. Rows without owners get numbers that were nobody's."""
        names = None if owners is None else as_owner_list(owners)
        with self.shard.lock:
            if names is None:
                first = self.ledger.next_number
                names = list(range(first, first + len(vectors)))
            if len(names) != len(vectors):
                raise InvalidInputError(f"owners must name one owner per row: {len(vectors)}, got {len(names)}")
            return self.shard.add(vectors, labels, names)

    def forget_owners(self, owners: list[OwnerId], derived: Derived = "keep") -> int:
        """Remove every record of these owners; how many. `derived` as in `Store.forget`."""
        purge = as_derived(derived) == "purge"
        with self.predictor.lock, self.shard.lock:
            count = self.shard.forget_owners(owners)
            if purge:
                self.predictor.purge()
        return count

    def forget_records(self, ids: list[int]) -> int:
        """Remove these records; how many."""
        return self.shard.forget_records(ids)

    def predict(self, Q: npt.ArrayLike, analyst: Scope = None) -> npt.NDArray[Any]:
        """The label of each query. Spends."""
        queries = self.settings.quantise(Q, "the queries")
        return np.asarray(self.settings.class_array[self.predictor.predict(queries, analyst)])

    def spent(self, owners: Sequence[OwnerId] | None = None, analyst: Scope = None) -> FloatArray:
        """ρ of each owner (of all who have records), with one analyst or, for None, with all together."""
        if not (analyst is None or isinstance(analyst, str)):
            raise InvalidInputError(f"analyst must be a str or None, got {analyst!r}")
        with self.shard.lock:
            names = self.ledger.owners() if owners is None else owners
            units = self.ledger.total_spent(names) if analyst is None else self.ledger.spent(names, analyst)
            return accounting.from_units(units)

    def restarted(self, settings: Settings, noise: Noise, student: Callable[[], Student] = RidgeStudent) -> Engine:
        """An empty engine under other settings for the same people, who keep what they have spent."""
        self.ledger.ranged |= self.settings.vote == "exponential"
        if self.ledger.ranged and settings.accountant == "gdp":
            raise PrivacyError(
                "these people may have answered by the exponential vote, which the gdp filter cannot add up; "
                "keep accountant='rdp'"
            )
        fresh = settings.new_ledger()
        successor = Engine(settings, noise, self.ledger, student=student)  # may refuse: nothing changed yet
        with self.shard.lock:
            self.shard.forget_owners(self.ledger.owners())
            self.ledger.budget, self.ledger.global_budget = fresh.budget, fresh.global_budget
        return successor

    def replace_all(self, vectors: Vectors, labels: IntArray, owners: Sequence[OwnerId]) -> IntArray:
        """Put these records in the place of all that are here; their ids."""
        with self.shard.lock:
            self.shard.forget_owners(self.ledger.owners())
            return self.put(vectors, labels, owners)
