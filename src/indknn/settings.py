"""The parameters of a store: each is listed once, with its default, its limits, its help and when it is fixed.

The estimator, the command line, the store and the server all take them from here. All parameters are public. The
operator chooses them when the store is made (`Parameter.fixed` names the few that can wait), and nobody changes them
later. Only `analysts` may grow: an analyst may be given less before their first answer.
"""

# ruff: noqa: RUF009 - parameter() makes a dataclass field
from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from indknn.core import accounting
from indknn.core.advice import about_bounds, tell
from indknn.core.calibrate import (
    COUNT_EVERY,
    MANY_CLASSES,
    NEAR_SHARE,
    NUMBER_SIZE,
    PLANNED_QUERIES,
    SELECTED_SHARE,
    near_share,
    sigma1_for,
    sigma2_for,
)
from indknn.core.inputs import AT_CREATION, as_center, as_classes, as_labels, check_fields, described, parameter
from indknn.core.kernels import Kernel, make_kernel
from indknn.core.mechanism import COLUMNS, MAX_SIGMA2, Plan
from indknn.core.quantise import quantise
from indknn.core.targets import Classes, Number, Target, as_bounds
from indknn.errors import InvalidInputError
from indknn.types import Accountant, FloatArray, IntArray, KernelName, Vectors

Reuse: TypeAlias = Literal["labels", "none"]
Mode: TypeAlias = Literal["model", "votes"]
TargetName: TypeAlias = Literal["class", "number"]
IndexName: TypeAlias = Literal["exact", "lsh", "sketch"]
LogForm: TypeAlias = Literal["text", "json", "none"]
Understood: TypeAlias = Literal["epsilon per period"]
UNDERSTOOD: Final = get_args(Understood)[0]

MAX_CLASSES = (1 << 16) - 1
MODEL_SHARE, SHARE_OF_MANY = 0.9, 0.98
"""The default part of the budget for the shared model, and that with many classes. With many, nearly everybody pays for
every step and the people near a query are of many classes. On five sets of some 150 classes the second gave .003 to
.011 at ε = 0.25, up to .008 at 1, and -.004 to +.003 at 8. It was chosen on these queries, so this flatters it."""
MAX_FEATURES = 4096
"""Of a store with a shared model."""
_BITS: Final = {"lsh": 8, "sketch": 512}
_EPSILON: Final[dict[str, Any]] = {"at_least": accounting.MIN_EPSILON, "below": accounting.MAX_EPSILON}


def _as_labels(classes: Any) -> tuple[Any, ...]:
    """A label set; it is empty until the first records are added to a store that was made without one."""
    if isinstance(classes, str | bytes) or not isinstance(classes, Iterable):
        raise InvalidInputError(f"classes must be one or more labels of one kind, got {classes!r}")
    labels = tuple(classes)
    if labels:
        as_classes(labels)
        labels = tuple(as_labels(labels).tolist())
    if len(labels) > MAX_CLASSES:
        raise InvalidInputError(f"classes must be at most {MAX_CLASSES} labels, got {len(labels)}")
    return labels


@dataclass(frozen=True)
class IndexOptions:
    """The parameters of the hashing indexes. A store keeps them as `Settings.index_options`."""

    n_tables: int = parameter("How many hash tables the index lsh has.", 30, at_least=1, at_most=1 << 10)
    n_bits: int | None = parameter(
        "How many bits a hash table of lsh has (1 to 16), or how many a sketch has (a multiple of 64).",
        at_least=1,
        at_most=1 << 14,
        none=f"{_BITS['lsh']} for lsh, {_BITS['sketch']} for sketch",
    )
    index_seed: int = parameter("The public seed of the random hyperplanes of lsh and sketch.", 0)

    def __post_init__(self) -> None:
        check_fields(self)

    def taken_by(self, index: str) -> dict[str, Any]:
        """The options that an index of this name takes."""
        if index not in _BITS:
            return {}
        tables = {"n_tables": self.n_tables} if index == "lsh" else {}
        return {"seed": self.index_seed, **tables, "n_bits": self.n_bits or _BITS[index]}


@dataclass(frozen=True)
class Settings:
    """The public parameters of a store, checked, and what follows from them.

    >>> Settings(n_features=2, classes=("no", "yes"), tau=7)
    Traceback (most recent call last):
    ...
    indknn.errors.InvalidInputError: tau must be above 0 and at most 1, got 7
    """

    n_features: int = parameter(
        "How many features a record has.", required=True, at_least=1, fixed="by the first records"
    )
    classes: tuple[Any, ...] = parameter(
        "The list of labels. It is public. Give it yourself if a rare label could give somebody away.",
        required=True,
        none="the labels of the first records",
        fixed=f"{AT_CREATION}, or by the first records",
    )
    epsilon: float = parameter(
        "The privacy guarantee for every person, over all answers to one analyst. If global_epsilon is given, that is "
        "the guarantee, and epsilon only limits what a person may spend with each analyst.",
        1.0,
        **_EPSILON,
    )
    delta: float = parameter(
        "The probability with which the guarantee may fail.", 1e-5, at_least=accounting.MIN_DELTA, below=1
    )
    max_queries: int | None = parameter(
        "How many queries the noise is planned for. If you ask more, the guarantee still holds and accuracy falls.",
        at_least=1,
        none="no limit is planned; the noise grows slowly with the number of queries",
    )
    kernel: KernelName = parameter(
        "How similarity is measured. cosine: the cosine of the angle. rbf: exp(-|x - q|²/bandwidth²).", "cosine"
    )
    tau: float | None = parameter(
        "How similar a record must be to the query to take part. Choose it without looking at the private data.",
        above=0,
        at_most=1,
        none="it is chosen from the first queries",
        fixed=f"{AT_CREATION}, or by the first queries",
    )
    sigma2: float | None = parameter(
        "The noise on the votes. Its scale is sigma2·sqrt(K) for about K neighbours. More noise costs less budget.",
        above=0,
        at_most=MAX_SIGMA2,
        none="it follows from the budget and max_queries",
    )
    bandwidth: float | None = parameter(
        "The width of the rbf kernel.", at_least=1e-6, at_most=1e6, none="e^0.75, as in the paper"
    )
    accountant: Accountant = parameter(
        "How epsilon and delta become a budget. rdp: as in the paper. gdp: exact, and about 18% more budget.", "gdp"
    )
    index: IndexName = parameter(
        "How neighbours are found. exact: finds all of them. lsh: the paper's hashing. sketch: faster for single "
        "queries on hundreds of thousands of records, and misses about one neighbour in a hundred.",
        "exact",
    )
    index_options: dict[str, Any] = field(default_factory=dict)
    reuse: Reuse = parameter(
        "What released answers are used for. labels: they vote on later queries, as in the paper. none: for nothing. "
        "If you give either, and not mode='model', the paper's Algorithm 3 answers.",
        none="none, with the shared model",
    )
    center: tuple[float, ...] | None = parameter(
        "A public vector that is subtracted from records and queries. Never use the mean of the private data.",
        none="nothing is subtracted",
    )
    normalize: bool = parameter(
        "Whether only directions are compared. If False, the rbf kernel also compares lengths.", True
    )
    max_records_per_query: int | None = parameter(
        "How many of one person's records may take part in a query. The nearest ones are taken.",
        at_least=1,
        none="all",
    )
    max_records_per_round: int = parameter(
        "How many of one person's records may take part in training the shared model. Which ones is decided by a hash "
        "of the records. The others still vote.",
        256,
        at_least=1,
    )
    free_repeats: bool = parameter(
        "Whether an analyst who repeats a query gets the same answer again, free of charge.", True
    )
    global_epsilon: float | None = parameter(
        "The privacy guarantee for every person, over the answers to all analysts together.",
        none="there is no such guarantee; each analyst has a separate budget",
        **_EPSILON,
    )
    mode: Mode = parameter(
        "model: a model is trained on all records, once for all analysts. Where it is right often enough, it answers "
        "alone. Elsewhere its answer is combined with the votes of the people nearby. votes: no model, people vote on "
        "every query, as in the paper.",
        none="model, unless reuse is given",
    )
    model_share: float | None = parameter(
        "The share of each person's budget that is for the shared model. The rest is for votes, with each analyst.",
        above=0,
        below=1,
        none=f"{MODEL_SHARE:g}; {SHARE_OF_MANY:g} if at least {MANY_CLASSES} classes are given",
    )
    expected_records: int | None = parameter(
        "About how many records the store will hold, if that is public. From a million on, an automatic tau aims at a "
        "number of neighbours instead of a share of the records.",
        at_least=1,
        none="a noisy count is used; without the shared model there is none, and tau aims at a share",
    )
    target: TargetName = parameter(
        "What records say. class: one of some labels. number: a number between public bounds.", "class"
    )
    bounds: tuple[float, float] | None = parameter(
        "The lowest and the highest number that a record may say, if the target is a number. They are public. Choose "
        "them without looking at the private data. Numbers outside are cut to them.",
        none="there are none, because records say classes",
    )
    keep_days: int | None = parameter(
        "How many days a record takes part after it was added. Then it is erased, as if it had been forgotten.",
        at_least=1,
        at_most=36_500,
        none="as long as nobody removes it, or until its own date",
    )
    pace_days: int | None = parameter(
        "Over how many days the budget for votes becomes available, evenly. After a tenth of them, votes with one "
        "analyst may have used at most a tenth. The shared model's part is there at once.",
        at_least=1,
        at_most=36_500,
        none="all of it is there at once",
    )
    renew_days: int | None = parameter(
        "After how many days everybody's budget starts anew. The guarantee is then for each such period. Over n "
        "periods, n times the budget may be spent. You must say that you understand this.",
        at_least=1,
        at_most=36_500,
        none="never: epsilon is for all time",
    )
    i_understand: Understood = parameter(
        "With renew_days: a confirmation that the guarantee is for each period, not for all time.",
        none="nothing is renewed",
    )
    schema: dict[str, Any] | None = None
    """The schema of tables, in the plain form of `indknn.tables`. None if records are vectors."""
    analysts: dict[str, float] = field(default_factory=dict)
    """The ε of analysts who were given less than `epsilon`, by name."""

    def __post_init__(self) -> None:
        """Check every value, and refuse values that do not go together."""
        check_fields(self)
        object.__setattr__(self, "classes", _as_labels(self.classes))
        object.__setattr__(self, "center", as_center(self.center))
        self._check_target()
        if self.mode is None:
            object.__setattr__(self, "mode", "model" if self.reuse is None else "votes")
        if self.reuse is None:
            object.__setattr__(self, "reuse", "none")
        if self.model_share is None:
            many = len(self.classes) >= MANY_CLASSES
            object.__setattr__(self, "model_share", SHARE_OF_MANY if many else MODEL_SHARE)
        if self.mode == "model" and self.reuse == "labels":
            raise InvalidInputError("mode='model' needs reuse='none', got reuse='labels'")
        if self.advised and self.n_features > MAX_FEATURES:
            raise InvalidInputError(
                f"the shared model takes at most {MAX_FEATURES} features, got {self.n_features}; use mode='votes'"
            )
        self._check_analysts()
        if (self.renew_days is None) != (self.i_understand is None):
            text = "renew_days, a guarantee for each period and not for all time, and"
            raise InvalidInputError(f"{text} i_understand={UNDERSTOOD!r} (--i-understand) go together")
        if self.pace_days is not None and self.renew_days is not None and self.pace_days > self.renew_days:
            raise InvalidInputError(f"pace_days must be at most renew_days, {self.renew_days}, got {self.pace_days}")

    def _check_target(self) -> None:
        if self.target == "class":
            if self.bounds is not None:
                raise InvalidInputError("bounds are for target='number', and the target is a class")
            return
        if self.bounds is None:
            raise InvalidInputError(
                "target='number' needs bounds: the lowest and highest number, bounds=(0, 120) or --bounds 0 120"
            )
        object.__setattr__(self, "bounds", as_bounds(self.bounds))
        if self.classes:
            raise InvalidInputError(f"target='number' has no classes, got {list(self.classes)}")

    def _check_analysts(self) -> None:
        if self.analysts and self.global_epsilon is not None:
            raise InvalidInputError(
                f"global_epsilon = {self.global_epsilon:g} is the guarantee for all analysts, so none of them can be "
                "given less"
            )
        for name, epsilon in self.analysts.items():
            PARAMETERS["epsilon"].check("epsilon", epsilon)
            if not (name and name.isprintable()):  # as `checked_analyst`
                raise InvalidInputError(f"no analyst can be called {name!r}")
            if epsilon > self.epsilon:
                raise InvalidInputError(
                    f"epsilon of analyst {name!r} must be at most the store's, {self.epsilon:g}, got {epsilon!r}"
                )

    def seen_by(self, analyst: str | None) -> Settings:
        """The settings for one analyst. An analyst who was given less has a smaller ε and the same shared part.

        If their budget is not above the shared part, they must not see the shared model. Then only votes answer them,
        and votes may use all of their smaller budget.

        >>> settings = Settings(2, ("no", "yes"), reuse="none", analysts={"alice": 0.25})
        >>> settings.seen_by("alice").epsilon, settings.seen_by("bob").epsilon
        (0.25, 1.0)
        """
        return self if analyst is None else self._views.get(analyst, self)

    @cached_property
    def _views(self) -> dict[str, Settings]:
        views, shared = {}, accounting.to_units(self.shared_budget) if self.advised else 0
        for name, epsilon in self.analysts.items():
            view = replace(self, epsilon=epsilon, analysts={})
            if accounting.to_units(view.budget) <= shared:
                view = replace(view, mode="votes")
            elif self.advised:
                view = replace(view, model_share=self.shared_budget / view.budget)
            views[name] = view
        return views

    @classmethod
    def of(cls, n_features: int, classes: Any, **values: Any) -> Settings:
        """Settings from values by the names in `PARAMETERS`. This includes the options of the index.

        >>> Settings.of(2, ("no", "yes"), index="lsh", n_bits=10).index_options
        {'seed': 0, 'n_tables': 30, 'n_bits': 10}
        """
        options = IndexOptions(**{name: values.pop(name) for name in described(IndexOptions) if name in values})
        index = PARAMETERS["index"].check("index", values.get("index", PARAMETERS["index"].default))
        return cls(n_features, classes, **values, index_options=options.taken_by(index))

    @classmethod
    def from_stored(cls, stored: Mapping[str, Any]) -> Settings:
        """The settings that `stored` wrote.

        If `n_features` is None, the store is a draft: it has never held records. Then the number is set to 1.
        """
        differing = sorted(stored.keys() ^ {f.name for f in fields(cls)})
        if differing:
            raise InvalidInputError(f"settings {', '.join(differing)} are unknown or missing: made by another indknn?")
        return cls(**{**stored, "n_features": stored["n_features"] or 1})

    def stored(self, *, draft: bool = False) -> dict[str, Any]:
        """The settings for a store file, as values that JSON can hold. A draft has no number of features yet."""
        return {**asdict(self), "n_features": None if draft else self.n_features}

    @property
    def advised(self) -> bool:
        """Whether there is a shared model."""
        return self.mode == "model"

    @cached_property
    def budget(self) -> float:
        """B: how much each person may spend with one analyst."""
        return accounting.budget(self.epsilon, self.delta, self.accountant)

    @property
    def shared_budget(self) -> float:
        """The part of B that is for the shared model."""
        return (self.model_share or MODEL_SHARE) * self.budget if self.advised else 0.0

    @cached_property
    def global_budget(self) -> float | None:
        """How much each person may spend with all analysts together. None if there is no global_epsilon."""
        if self.global_epsilon is None:
            return None
        return accounting.budget(self.global_epsilon, self.delta, self.accountant)

    @property
    def sigma1_(self) -> float:
        """The noise on the count."""
        planned = self.max_queries or PLANNED_QUERIES
        if not self.advised:
            return sigma1_for(self.budget, planned)
        return sigma1_for(self.budget - self.shared_budget, max(planned // COUNT_EVERY, 100))

    @property
    def sigma2_(self) -> float:
        """The noise on the votes, given or derived."""
        usual = NUMBER_SIZE if self.numeric else 1.0  # how large a vote is
        return self.sigma2 or usual * sigma2_for(self.budget, self.max_queries or PLANNED_QUERIES)

    @property
    def near_share(self) -> float:
        """The share of records that an automatic τ aims at, from what is known before the first query."""
        return near_share(NEAR_SHARE if self.advised else SELECTED_SHARE, self.expected_records)

    @cached_property
    def class_array(self) -> npt.NDArray[Any]:
        """The labels, sorted."""
        return np.unique(np.array(self.classes))

    @cached_property
    def target_(self) -> Target:
        """What records say."""
        return Classes(self.class_array) if self.bounds is None else Number(*self.bounds)

    @property
    def numeric(self) -> bool:
        """Whether the target is a number."""
        return self.target == "number"

    @cached_property
    def kernel_(self) -> Kernel:
        """The kernel."""
        return make_kernel(self.kernel, self.bandwidth, normalize=self.normalize)

    @cached_property
    def center_(self) -> FloatArray | None:
        """The center as an array."""
        return None if self.center is None else np.array(self.center, dtype=np.float64)

    def plan(self, tau: float) -> Plan:
        """The plan for a threshold."""
        noise, most = (self.sigma1_, self.sigma2_), self.max_records_per_query
        if self.numeric:
            return Plan(tau, *noise, COLUMNS["number"], most, ballot="number")
        classes = max(len(self.class_array), 1)  # none are known before the first records of a draft
        return Plan(tau, *noise, classes, most, contrast=self.advised)

    def quantise(self, X: npt.ArrayLike, what: str, see: Callable[[FloatArray], None] | None = None) -> Vectors:
        """Raw rows as integer vectors. `see` is called with each block of raw rows."""
        vectors = quantise(X, self.center_, what=what, see=see)
        if vectors.values.shape[1] != self.n_features:
            width = vectors.values.shape[1]
            raise InvalidInputError(f"{what} must have {self.n_features} features per row, got {width}")
        return vectors

    def prepare(
        self, X: npt.ArrayLike, y: npt.ArrayLike, see: Callable[[FloatArray], None] | None = None
    ) -> tuple[Vectors, IntArray]:
        """Raw records as the store keeps them, or an error that names what is wrong."""
        vectors, (labels, cut) = self.quantise(X, "X", see), self.target_.encode(y)
        rows = len(vectors.values)
        if len(labels) != rows:
            raise InvalidInputError(f"y must have one label per row: {rows} rows, got {len(labels)}")
        if cut and self.bounds is not None:
            tell(about_bounds(cut, len(labels), self.bounds))
        return replace(vectors, spare=True), labels


_option: Final = partial(parameter, fixed="when the server starts")


@dataclass(frozen=True)
class ServerOptions:
    """How a store is served: where, by which name, and within which limits."""

    name: str = _option("The model's name in /v2/models/NAME.", "indknn")
    host: str = _option("The address to listen on. Beyond loopback you need keys.", "127.0.0.1")
    port: int = _option("The port to listen on. 0: any free port.", 8080, at_least=0, at_most=(1 << 16) - 1)
    tick: float | None = _option(
        "Send answers only at multiples of this many seconds per query.",
        above=0,
        below=math.inf,
        none="they are sent as soon as they are charged",
    )
    train_every: float = _option(
        "Hours between two checks whether the shared model should learn from newcomers. inf: never.", 24.0, above=0
    )
    rewrite_every: float = _option(
        "With PostgreSQL: hours between two rewrites of the old bytes of forgotten people. inf: never.", 24.0, above=0
    )
    max_batch: int = _option("At most this many rows per prediction request.", 1024, at_least=1)
    max_body: int = _option("At most this many bytes per request.", 32 << 20, at_least=1)
    max_records: int = _option("At most this many records per upload.", 10_000, at_least=1)
    max_waiting: int = _option("At most this many queries that wait.", 8192, at_least=1)
    max_bodies: int = _option("At most this many bytes of bodies at once.", 128 << 20, at_least=1)
    max_connections: int = _option("At most this many connections at once.", 1000, at_least=1)
    log: LogForm = _option("How requests and events are logged on stderr: one line each, without names.", "text")
    backups: str | None = _option(
        "A folder of the server into which `POST /v1/backup` copies the store.", none="nobody can ask for backups"
    )
    same_people: bool = _option(
        "With several stores: whether a name means the same person in all of them. Then statements add up.", False
    )
    keep_requests: int = _option("For how many days a request id gets the same answer again.", 30, at_least=1)

    def __post_init__(self) -> None:
        check_fields(self)
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", self.name):
            raise InvalidInputError(f"name must consist of letters, digits, '_', '.' and '-', got {self.name!r}")


SERVER: Final = described(ServerOptions)
"""Everything that the operator of a server can choose."""
PARAMETERS: Final = {
    name: p for name, p in {**described(Settings), **described(IndexOptions)}.items() if name != "n_features"
}
"""Everything that a user can choose. The number of features follows from the data."""
