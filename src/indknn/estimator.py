"""Ind-KNN as a scikit-learn classifier."""

from __future__ import annotations

from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, check_X_y, validate_data

from indknn.cluster import shard_maker
from indknn.core import inputs
from indknn.core.advice import Profile, about_answers, about_delta, about_labels, about_seed, tell
from indknn.core.noise import Noise, noise_from
from indknn.core.parameters import numpydoc
from indknn.engine import Engine
from indknn.errors import InvalidInputError, PrivacyError
from indknn.ledger.figures import guarantee, statement
from indknn.place import Place, unchanged_place
from indknn.settings import PARAMETERS, Settings
from indknn.tables.infer import about_queries
from indknn.tables.schema import Schema, read_schema, records_of, to_plain, vectors_of
from indknn.types import FloatArray, IntArray

if TYPE_CHECKING:
    from indknn.store import Store


_NUMBERS = [np.dtype(kind) for kind in ("f8", "f4", "f2", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")]
"""Types of numbers that are used without conversion. Any other type is converted to the first."""


class IndKNNClassifier(ClassifierMixin, BaseEstimator):
    """Private nearest-neighbour classifier with a privacy budget for every person.

    Records near the query (kernel >= tau) vote, with Gaussian noise on their number and on the votes. By default a
    shared model, trained privately once for all analysts, answers most queries. Each person is charged exactly for
    what their records contributed. A person whose budget is spent no longer takes part.

    All answers to one analyst together are (epsilon, delta)-differentially private for each person with all their
    records. This holds for any number of queries, and while records come and go. See ``docs/privacy.md``.

    Parameters
    ----------
    {parameters}
    random_state : None, int, Generator or RandomState
        None takes noise from the operating system. With a seed, answers can be reproduced and are **not private**.
    store : str, path or None
        A file, or the address of a PostgreSQL database, that keeps records, ledgers and answers durably. The first
        ``fit`` or ``partial_fit`` makes it. Later ones open it, in this process or another, and its parameters must
        agree with these. None: everything is kept in memory.
    public : array-like, a pair (X, y), or None
        Public rows that resemble the records but belong to nobody in the private data. A thousand are enough. They
        make the shared model better and cost no budget. With labels y, or a table with the label column of the schema,
        the model starts from what they say. None: the queries of the first ``predict`` are used.
    schema : Schema, dict, path or None
        A description of the columns of a table (`indknn.tables`). Then X may be a pandas, polars or Arrow frame, and
        columns are found by name. In ``fit``, X may also hold label, owner and record id. None: X holds vectors.
    shards : int, Cluster or None
        Search in this many processes on this machine, or in the shards of an `indknn.cluster.Cluster`. None: in this
        process.

    Attributes
    ----------
    budget_ : float
        B: how much each owner may spend with one analyst, in units of ρ (half of μ²).
    classes_, n_features_in_, owners_, tau_, sigma1_, sigma2_
        The values in use. Owners are texts.
    record_ids_, new_record_ids_
        Records are numbered 0, 1, 2, ... as they are added. ``record_ids_`` has the numbers of all records held,
        ``new_record_ids_`` those of the latest ``fit`` or ``partial_fit``.

    Examples
    --------
    >>> import numpy as np
    >>> from indknn import IndKNNClassifier
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(2, size=4000)
    >>> X = rng.normal(size=(4000, 8)) + 4 * y[:, None] - 2
    >>> model = IndKNNClassifier(epsilon=1.0, tau=0.5, classes=[0, 1]).fit(X, y)
    >>> answers = model.predict(X[:5])                       # spends the budget of those nearby
    >>> bool(0 < model.privacy_spent().max() <= model.budget_)
    True
    >>> model.forget([17])
    1
    """

    _engine: Engine | Store

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        *,
        max_queries: int | None = None,
        kernel: str = "cosine",
        tau: float | None = None,
        sigma2: float | None = None,
        bandwidth: float | None = None,
        accountant: str = "gdp",
        index: str = "exact",
        reuse: str | None = None,
        prior: str | None = None,
        prior_share: float = 0.9,
        expected_records: int | None = None,
        center: npt.ArrayLike | None = None,
        random_state: int | np.random.Generator | np.random.RandomState | None = None,
        classes: npt.ArrayLike | None = None,
        normalize: bool = True,
        max_records_per_query: int | None = None,
        max_records_per_round: int = 256,
        free_repeats: bool = True,
        global_epsilon: float | None = None,
        n_tables: int = 30,
        n_bits: int | None = None,
        index_seed: int = 0,
        store: str | Path | None = None,
        public: Any = None,
        schema: Any = None,
        shards: Any = None,
    ):
        for name, value in locals().copy().items():
            if name != "self":
                setattr(self, name, value)

    def fit(self, X: Any, y: Any = None, owners: Any = None, record_ids: Any = None) -> Self:
        """Replace all records by these. Record i belongs to owners[i], a text or a whole number.

        If you fit the same object again, its records are replaced, but what people have spent is kept.

        In memory you may leave out `owners`. Then each row is a person, named by its row number. This is refused once
        anything was spent with secure noise, because row 7 may now be another person. With a store, say
        owners="each-row" if every row is a new person.

        `record_ids` are your own ids. `partial_fit` can use them to replace records. X may be a memory map. It is read
        in blocks.
        """
        X, y, owners, record_ids = records_of(self._schema(), X, y, owners, record_ids)
        rows, targets = _check_records(X, y)
        names, ids = self._named(owners, len(rows)), inputs.as_record_ids(record_ids, len(rows))
        classes = self._given_classes()
        settings = self._settings(rows.shape[1], inputs.as_classes(targets if classes is None else classes))
        profile = Profile()
        records = settings.prepare(rows, targets, profile.see)
        taken = about_labels() if classes is None and not hasattr(self, "_engine") else []
        self._start(X, settings, named=not (names is None or inputs.says_each_row(names)))
        self.new_record_ids_ = self._engine.replace_all(*records, names, ids)
        tell(taken + self._advice(profile, 0))
        return self

    def partial_fit(
        self, X: Any, y: Any = None, owners: Any = None, classes: npt.ArrayLike | None = None, record_ids: Any = None
    ) -> Self:
        """Add records. The first call on an empty object needs `classes`, the public list of labels.

        An owner who was forgotten and comes back starts with what they had spent. Without `owners`, every row is a new
        person, as in `fit`. A row whose record id was given before replaces that record of the same owner.
        """
        first = not hasattr(self, "_engine")
        given = None if classes is None else inputs.as_classes(classes).tolist()
        if not first and given is not None and set(map(str, given)) != set(map(str, self.classes_.tolist())):
            raise InvalidInputError(f"classes must stay {self.classes_.tolist()}, got {given}")
        X, y, owners, record_ids = records_of(self._schema(fitted=not first), X, y, owners, record_ids)
        rows, targets = _check_records(X, y)
        names, ids = self._named(owners, len(rows)), inputs.as_record_ids(record_ids, len(rows))
        settings = self._settings(rows.shape[1], self._first_classes(classes)) if first else self._engine.settings
        if not first:
            validate_data(self, X, reset=False, skip_check_array=True)
        profile = Profile()
        records = settings.prepare(rows, targets, profile.see)
        if first:
            self._start(X, settings, named=True)
        before = self._memory.ledger.n_owners
        self.new_record_ids_ = self._engine.put(*records, names, ids)
        tell(self._advice(profile, before))
        return self

    def forget(self, owners: Any = None, *, records: Any = None) -> int:
        """Remove all records of these owners, or the records with these numbers (`record_ids_`).

        Returns how many records were removed. What an owner has spent is kept under a keyed hash of their name, so
        coming back refunds nothing. Answers and the model that were released before are differentially private and are
        kept.
        """
        check_is_fitted(self)
        if (owners is None) == (records is None):
            raise InvalidInputError("forget takes either owners or records=..., got both or neither")
        self._store_place()
        names = [] if owners is None else inputs.as_owner_list(owners)
        ids = [] if records is None else inputs.as_record_numbers(records)
        if isinstance(self._engine, Engine):
            return self._engine.forget_owners(names) + self._engine.forget_records(ids)
        return int(self._engine.forget(names, records=ids)["records"])

    def purge(self) -> None:
        """Delete all answers and the shared model. New ones are made when needed, and people pay again.

        Everybody who asks again can see the purge. So purge on a schedule, and never because one person was
        forgotten: that would show that somebody left.
        """
        check_is_fitted(self)
        self._engine.purge()

    def warm_up(self) -> Self:
        """Train the shared model now, so that the first `predict` does not have to. It uses `public` rows if given.

        It spends the budget that the first `predict` would spend. The time of the call is public, so it must not depend
        on what is in the records (rule 14).
        """
        self._check_asked()
        for _ in self._engine.train() if self._engine.settings.advised else ():
            pass
        return self

    def predict(self, X: Any, analyst: str | None = None) -> npt.NDArray[Any]:
        """Answer each row of X, in order. **This spends the budget of the people near the queries.**

        Each `analyst` has a separate ledger. The guarantee is for one analyst, so analysts must not share their
        answers. `global_epsilon` bounds what they can learn together.
        """
        self._check_asked()
        schema = self._schema(fitted=True)
        told, rows = about_queries(schema, X) if schema else [], vectors_of(X, schema)
        answers = self._engine.predict(validate_data(self, rows, reset=False, dtype=np.float64), analyst)
        tell(told + about_answers(answers))
        return answers

    def predict_proba(self, X: npt.ArrayLike, analyst: str | None = None) -> FloatArray:
        """The probability of each class for each row, in the order of `classes_`.

        The probabilities are computed from what `predict` releases anyway, the shared model and noisy votes. So this
        spends the same as `predict`, and nothing for rows that were asked before.
        """
        self._check_asked()
        rows = vectors_of(X, self._schema(fitted=True))
        return self._engine.predict_proba(validate_data(self, rows, reset=False, dtype=np.float64), analyst)

    def privacy_spent(self, owners: Any = None, *, analyst: str | None = None) -> FloatArray:
        """How much each owner has spent, as ρ. Only for the curator.

        The default is all of `owners_`. You can also name owners who were forgotten. Without `analyst`, the result is
        the sum over all analysts. To show a person their own spending, use `statement`.
        """
        check_is_fitted(self)
        return self._engine.spent(None if owners is None else inputs.as_owner_list(owners), analyst)

    def statement(self, owner: Any) -> dict[str, Any]:
        """What you may show an owner: their own spending, rounded up to 1/50 of B, for each kind of observer."""
        check_is_fitted(self)
        return statement(self._memory, inputs.as_owner_list([owner])[0])

    @property
    def guarantee_(self) -> dict[str, Any]:
        """The guarantee, for one analyst, or with `global_epsilon` for all analysts together.

        It is about everything that people spent here. So after a `fit` with a smaller epsilon it is the larger one, if
        anything was spent under it.
        """
        check_is_fitted(self)
        return guarantee(self._engine.settings, earlier=self._memory.earlier)

    @property
    def tau_(self) -> float:
        """The threshold in use. With tau=None there is none before the first `predict`."""
        tau = self._memory.predictor.tau if hasattr(self, "_engine") else None
        if tau is None:
            raise AttributeError("tau_ is chosen by the first predict, and there was none yet")
        return tau

    @property
    def owners_(self) -> npt.NDArray[Any]:
        """The owners who have records, in the order of arrival. A newcomer may take the place of a forgotten owner."""
        check_is_fitted(self)
        return inputs.as_owner_array(self._memory.ledger.owners())

    @property
    def record_ids_(self) -> IntArray:
        """The numbers of the records held."""
        check_is_fitted(self)
        return self._memory.shard.record_ids()

    def __getstate__(self) -> dict[str, Any]:
        if hasattr(self, "_engine") and self._engine.noise.secure:
            raise PrivacyError(
                "a fitted IndKNNClassifier with secure noise cannot be pickled or copied: each copy would "
                "spend everybody's budget anew. Share the one object, or give random_state for experiments."
            )
        state: dict[str, Any] = super().__getstate__()
        return state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True  # answers are noisy, and spend budget that later answers need
        tags.classifier_tags.poor_score = True  # the checks use only a few dozen records
        return tags

    def _check_asked(self) -> None:
        check_is_fitted(self)
        if self.store is not None or not isinstance(self._engine, Engine):
            self._store_place()

    @property
    def _memory(self) -> Engine:
        """The engine in memory. With a store, it is the engine that the store has read from its file."""
        return self._engine if isinstance(self._engine, Engine) else self._engine.engine

    def _settings(self, n_features: int, classes: npt.NDArray[Any]) -> Settings:
        values = {name: getattr(self, name) for name in PARAMETERS if name != "classes"}
        schema = self._schema()
        written = None if schema is None else to_plain(schema)
        return Settings.of(n_features, tuple(classes.tolist()), **values, schema=written)

    def _schema(self, *, fitted: bool = False) -> Schema | None:
        """The schema that was given. If `fitted`, the one in force, which does not change if its file changes."""
        source = self._engine.settings.schema if fitted else self.schema
        return None if source is None else read_schema(source)

    def _given_classes(self) -> Any:
        """The label set, if it was given here or in the schema."""
        schema = self._schema()
        return self.classes if self.classes is not None or schema is None else schema.classes or None

    def _start(self, X: npt.ArrayLike, settings: Settings, *, named: bool) -> None:
        """An engine under the current parameters. Nothing is changed before all of them have been accepted."""
        noise = noise_from(self.random_state)
        old = getattr(self, "_engine", None)
        if old is not None and old.noise.secure and self._memory.ledger.anything_spent():
            if not noise.secure:
                raise PrivacyError("people have spent budget here with secure noise; random_state must stay None")
            if not named:
                raise PrivacyError(
                    "people have spent budget here, and fit without owners cannot tell who is who: name the owners, "
                    "or use a new object if these are other people"
                )
        if not noise.secure and (old is None or old.noise.secure):
            tell(about_seed(self.random_state))
        self._engine = self._opened(settings, noise, old)
        validate_data(self, X, reset=True, skip_check_array=True)
        self.classes_ = settings.class_array
        self.budget_ = settings.budget
        self.sigma1_, self.sigma2_ = settings.sigma1_, settings.sigma2_

    def _named(self, owners: Any, rows: int) -> Any:
        """The checked names of the owners. None and the word "each-row" are returned unchanged."""
        if self._store_place() is not None and owners is None:
            raise InvalidInputError(inputs.NEEDS_OWNERS)
        return owners if owners is None or inputs.says_each_row(owners) else inputs.as_owners(owners, length=rows)

    def _advice(self, profile: Profile, people: int) -> list[Warning]:
        """Warnings about the given rows, which belong to `people` people. A store gives its own warnings."""
        settings = self._engine.settings
        now = self._engine.ledger.n_owners if isinstance(self._engine, Engine) else 0
        return profile.advice(settings.center_) + about_delta(settings.delta, people, now)

    def _store_place(self) -> Place | None:
        """Where the records are kept. None in memory."""
        return unchanged_place(self.store, getattr(self, "_engine", None))

    def _opened(self, settings: Settings, noise: Noise, old: Engine | Store | None) -> Engine | Store:
        """The engine in memory, or the store, which is made or opened."""
        path = self._store_place()
        if path is None:
            if isinstance(old, Engine):
                return self._with_public(old.restarted(settings, noise))
            return self._with_public(Engine(settings, noise, make_shard=shard_maker(self.shards)))
        from indknn.store import Store  # noqa: PLC0415  (an extra)

        if not noise.secure:
            raise PrivacyError("a store serves people's data and refuses seeded noise; random_state must be None")
        if old is None:
            store, made = Store.made_or_opened(path, settings, shard_maker(self.shards))
            return self._with_public(store) if made else store
        assert not isinstance(old, Engine)
        old.refuse_other(settings)
        return old

    def _with_public(self, made: Engine | Store) -> Engine | Store:
        if self.public is not None:
            X, y = self.public if _is_pair(self.public) else (self.public, None)
            rows, labels, _, _ = records_of(self._schema(), X, y)
            made.declare_public(rows, labels)
        return made

    def _first_classes(self, classes: npt.ArrayLike | None) -> npt.NDArray[Any]:
        given = self._given_classes() if classes is None else classes
        if given is None:
            raise InvalidInputError("classes must be passed on the first call to partial_fit, got None")
        return inputs.as_classes(given)


def _is_pair(public: Any) -> bool:
    """Whether this is rows and labels. A pair of two rows is not."""
    return isinstance(public, tuple) and len(public) == 2 and np.ndim(public[0]) != 1 and np.ndim(public[1]) == 1


def _check_records(X: npt.ArrayLike, y: npt.ArrayLike) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Rows and labels. Rows of numbers keep their type. A later step checks block by block that they are finite."""
    rows, targets = check_X_y(X, None if y is None else inputs.as_labels(y), dtype=_NUMBERS, ensure_all_finite=False)
    check_classification_targets(targets)
    return rows, targets


IndKNNClassifier.__doc__ = cleandoc(IndKNNClassifier.__doc__ or "").replace("{parameters}", numpydoc(PARAMETERS))
