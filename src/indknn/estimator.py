"""Ind-KNN as a scikit-learn estimator: what classes and numbers have in common, and the classifier."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, Unpack

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, check_X_y, validate_data

from indknn.answering.requests import checked_analyst
from indknn.answering.trainer import TrainingLine
from indknn.cluster import shard_maker
from indknn.core import advice, inputs
from indknn.core.noise import Noise, noise_from
from indknn.engine import Engine, new_ledger
from indknn.errors import InvalidInputError, PrivacyError, PrivacyWarning, meant
from indknn.estimator_parameters import ClassifierParameters, declared
from indknn.ledger.figures import guarantee, statement, training_words
from indknn.ledger.promises import wanted
from indknn.models.explanation import Explanation
from indknn.models.probabilities import PLAIN, Decision
from indknn.place import Place, unchanged_place
from indknn.published import document, write_model
from indknn.settings import PARAMETERS, Settings, TargetName
from indknn.tables.infer import Outside, about_queries
from indknn.tables.schema import Schema, read_schema, records_of, to_plain, vectors_of
from indknn.types import FloatArray, Given, IntArray

if TYPE_CHECKING:
    from indknn.store import Store


NUMBERS = [np.dtype(kind) for kind in ("f8", "f4", "f2", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")]
"""Types of numbers that are used without conversion. Any other type is converted to the first."""

_MANY_CLONES = 2
"""One clone is what a pipeline or a meta-estimator makes to leave the original as it is. A second one has a twin."""
_LONGEST = 60


class IndKNN(BaseEstimator):
    """What classes and numbers have in common: records, people, ledgers and answers."""

    _engine: Engine | Store
    _target: ClassVar[TargetName]
    _defaults: ClassVar[dict[str, Any]]
    store: Any
    public: Any
    schema: Any
    shards: Any
    analysts: Any
    verbose: bool | None
    random_state: Any

    if TYPE_CHECKING:

        def _checked(self, X: npt.ArrayLike, y: npt.ArrayLike) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
            """Rows and targets."""

        def _label_set(self, targets: npt.NDArray[Any]) -> tuple[Any, ...]:
            """The label set, if it was given, or else that of these targets. Numbers have none."""

    def _keep(self, **given: Any) -> None:
        """Keep the parameters as they were given, as scikit-learn wants it."""
        for name in given.keys() - self._defaults.keys():
            raise TypeError(f"{type(self).__name__}() got an unexpected keyword argument {name!r}")
        for name, default in self._defaults.items():
            setattr(self, name, given.get(name, default))

    def fit(
        self,
        X: Any,
        y: Any = None,
        owners: Any = None,
        record_ids: Any = None,
        *,
        epsilons: Any = None,
        expires: Any = None,
    ) -> Self:
        """Replace all records by these. Record i belongs to owners[i], a text or a whole number.

        If you fit the same object again, its records are replaced, but what people have spent is kept.

        In memory you may leave out `owners`. Then each row is a person, named by its row number. This is refused once
        anything was spent with secure noise, because row 7 may now be another person. With a store, say
        owners="each-row" if every row is a new person.

        `record_ids` are your own ids. `partial_fit` can use them to replace records. `expires` are dates from which
        records take no further part. `epsilons` are promises for the owners of single rows that are smaller than
        ``epsilon``, NaN where there is none. X may be a memory map. It is read in blocks.
        """
        return self._take(None, Given(X, y, owners, record_ids, expires, epsilons))

    def _take(self, classes: tuple[Any, ...] | None, given: Given) -> Self:
        """Add records, the first ones with this label set. None: they take the place of all others."""
        first, instead = not hasattr(self, "_engine"), classes is None
        schema = self._schema(fitted=not (first or instead))
        outside = Outside(schema)
        given = records_of(schema, given, outside.take, whole=True)
        rows, targets = self._checked(given.X, given.y)
        names, ids = self._named(given.owners, len(rows)), inputs.as_record_ids(given.record_ids, len(rows))
        if first or instead:
            settings = self._settings(rows.shape[1], self._label_set(targets) if classes is None else classes)
        else:
            settings = self._engine.settings
            validate_data(self, given.X, reset=False, skip_check_array=True)
        profile = advice.Profile()
        vectors, labels = settings.prepare(rows, targets, profile.see)
        nameless = names is None or inputs.says_each_row(names)
        people = inputs.Numbered(np.arange(len(rows))) if nameless else names
        ledger = new_ledger(settings) if first else self._memory.ledger
        wanted(settings, ledger, people, inputs.as_epsilons(given.epsilons, len(rows)))  # or nothing is changed
        warnings = self._about_labels() if first and instead else []
        if first or instead:
            self._start(given.X, settings, named=not (instead and nameless))
        before = 0 if instead else self._memory.ledger.n_owners
        put = self._engine.replace_all if instead else self._engine.put
        self._newest = _as_range(put(given._replace(X=vectors, y=labels, owners=names, record_ids=ids)))
        now = self._engine.ledger.n_owners if isinstance(self._engine, Engine) else 0  # a store gives its own warnings
        warnings += profile.advice(settings.center_) + advice.about_delta(settings.delta, before, now)
        advice.tell(warnings + outside.notes())
        return self

    def forget(self, owners: Any = None, *, records: Any = None, record_ids: Any = None) -> int:
        """Remove all records of these owners, or single records: by their numbers (`record_ids_`), or by your own ids.

        Returns how many records were removed. What an owner has spent is kept under a keyed hash of their name, so
        coming back refunds nothing. Answers and the model that were released before are differentially private and are
        kept.
        """
        check_is_fitted(self)
        if sum(given is not None for given in (owners, records, record_ids)) != 1:
            raise InvalidInputError("forget takes one of owners, records=... and record_ids=..., got several or none")
        self._store_place()
        names = [] if owners is None else inputs.as_owner_list(owners)
        ids = [] if record_ids is None else inputs.as_owner_list(record_ids, what="record id")
        numbers = inputs.as_record_numbers(records)
        if isinstance(self._engine, Engine):
            return self._engine.forget_owners(names) + self._engine.forget_records(numbers, ids)
        return int(self._engine.forget(names, records=numbers, record_ids=ids)["records"])

    def lower(self, owner: Any, epsilon: float) -> None:
        """Promise an owner who has records a smaller epsilon than everybody's, from now on. It is never raised again.

        If they have spent more already, the promise is what they have spent, and nothing further is learned.
        """
        check_is_fitted(self)
        self._store_place()
        (name,) = inputs.as_owner_list([owner])
        self._engine.lower(name, epsilon)

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
        """Answer each row of X, in order. **This spends people's budget.**

        By default the first call trains the shared model. Everybody who has records pays for it, at most `model_share`
        of their budget. Then only people who vote pay, those near queries about which the model is unsure.

        Each `analyst` has a separate ledger. The guarantee is for one analyst, so analysts must not share their
        answers. `global_epsilon` bounds what they can learn together.
        """
        self._check_asked(analyst)
        schema = self._schema(fitted=True)
        warnings, rows = about_queries(schema, X) if schema else [], vectors_of(X, schema)
        queries, decision = validate_data(self, rows, reset=False, dtype=np.float64), self._decision(analyst)
        if decision is PLAIN:
            answers = self._engine.predict(queries, analyst)
        else:
            answers, _ = self._memory.decide(decision, *self._engine.predict_both(queries, analyst), analyst)
        advice.tell(warnings + (advice.about_answers(answers) if self._target == "class" else []))
        return answers

    def explain(self, X: Any, analyst: str | None = None) -> list[Explanation]:
        """Which columns moved the answer of the shared model, for each row of X. **Nobody is charged.**

        ``lead`` is the lead of the label over the next likely one, in logits. It is the sum of ``average``, the lead at
        the average public row, and of what each column adds, ``columns``. Votes of near people are not in it.
        """
        self._check_asked()
        schema = self._schema(fitted=True)
        rows = validate_data(self, vectors_of(X, schema), reset=False, dtype=np.float64)
        return self._memory.explain(rows, analyst, None if schema is None else schema.parts)

    def export(self, path: str | Path, *, with_queries: bool = False) -> None:
        """Write the shared model to a file, ``.json`` or ``.onnx``, with the ε and δ that hold for it.

        It may be published. If no `public` rows were given, it may hold queries. Then it needs `with_queries`.
        """
        self._check_asked()
        if isinstance(self._engine, Engine):
            made = document(self._engine, with_queries=with_queries)
        else:
            made = self._engine.publish(with_queries=with_queries)
        write_model(made, path)

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
        self._engine.renew_if_due()  # so that it does not show whether anybody came since the last period
        return statement(self._memory, inputs.as_owner_list([owner])[0])

    @property
    def guarantee_(self) -> dict[str, Any]:
        """The guarantee, for one analyst, or with `global_epsilon` for all analysts together.

        It is about everything that people spent here. So after a `fit` with a smaller epsilon it is the larger one, if
        anything was spent under it.
        """
        check_is_fitted(self)
        periods = self._memory.ledger.period + 1
        return guarantee(self._engine.settings, earlier=self._memory.earlier, periods=periods)

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

    @property
    def new_record_ids_(self) -> IntArray:
        """The numbers of the records of the latest ``fit`` or ``partial_fit``."""
        check_is_fitted(self)
        newest = self._newest
        return np.arange(newest.start, newest.stop) if isinstance(newest, range) else newest

    def __getstate__(self) -> dict[str, Any]:
        if hasattr(self, "_engine") and self._engine.noise.secure:
            raise PrivacyError(
                f"a fitted {type(self).__name__} with secure noise cannot be pickled or copied: each copy would "
                "spend everybody's budget anew. Share the one object, or give random_state for experiments."
            )
        state: dict[str, Any] = super().__getstate__()
        return state

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        """The parameters that differ from their defaults, in short. Nothing about records."""
        defaults = {name: p.default for name, p in signature(type(self).__init__).parameters.items()}
        given = {name: _short(value) for name, value in self.get_params(deep=False).items()}
        differing = (f"{name}={text}" for name, text in given.items() if text != _short(defaults[name]))
        return f"{type(self).__name__}({', '.join(differing)})"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """What a notebook shows: the same line."""
        return {"text/plain": repr(self)}

    def __sklearn_clone__(self) -> Self:
        """A clone, as scikit-learn makes it. The second one is warned about: model selection makes many."""
        clone: Self = super().__sklearn_clone__()
        self._clones = getattr(self, "_clones", 0) + 1
        if self._clones == _MANY_CLONES and self.random_state is None and self.store is None:
            advice.tell(advice.about_clones())
        return clone

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True  # answers are noisy, and spend budget that later answers need
        return tags

    def _check_asked(self, analyst: str | None = None) -> None:
        check_is_fitted(self)
        if self.store is not None or not isinstance(self._engine, Engine):
            self._store_place()
        if analyst is None or not isinstance(self._engine, Engine):  # a store knows its analysts
            return
        known = [*self._analysts()] if self.analysts is not None else sorted(self._engine.predictor.told)
        if analyst in known:
            return
        hint = meant(analyst, known)
        if self.analysts is not None:
            raise InvalidInputError(f"there is no analyst {analyst!r}{hint or ';'} analysts= names {known}")
        advice.tell([PrivacyWarning(f"analyst {analyst!r} is new, with a new budget{hint}")] if hint else [])

    def _analysts(self) -> dict[str, float | None]:
        """Who may ask, with their smaller ε, or None for the full one."""
        names = [self.analysts] if isinstance(self.analysts, str) else self.analysts or ()
        given = names if isinstance(names, Mapping) else dict.fromkeys(names)
        return {str(checked_analyst(name)): epsilon for name, epsilon in given.items()}

    @property
    def _memory(self) -> Engine:
        """The engine in memory. With a store, it is the engine that the store has read from its file."""
        return self._engine if isinstance(self._engine, Engine) else self._engine.engine

    def _settings(self, n_features: int, classes: tuple[Any, ...]) -> Settings:
        values = {name: value for name, value in self.get_params(deep=False).items() if name in PARAMETERS}
        values |= {"target": self._target, "classes": classes}
        schema = self._schema()
        written = None if schema is None else to_plain(schema)
        given = {} if self.store is not None else self._analysts()
        less = {name: epsilon for name, epsilon in given.items() if epsilon is not None}
        if schema is not None and schema.bounds is not None and self._target == "number":
            values["bounds"] = values["bounds"] or schema.bounds
        return Settings.of(n_features, **values, schema=written, analysts=less)

    def _schema(self, *, fitted: bool = False) -> Schema | None:
        """The schema that was given. If `fitted`, the one in force, which does not change if its file changes."""
        source = self._engine.settings.schema if fitted else self.schema
        return None if source is None else read_schema(source)

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
            advice.tell(advice.about_seed(self.random_state))
        if old is None and self.store is None:  # a store says so itself
            advice.tell(advice.about_parameters(settings.delta, settings.classes, settings.expected_records))
        self._engine = self._opened(settings, noise, old)
        line = TrainingLine(training_words(settings), self.verbose)
        self._memory.predictor.watch = None if self.verbose is False else line
        validate_data(self, X, reset=True, skip_check_array=True)
        self.budget_ = settings.budget
        self.sigma1_, self.sigma2_ = settings.sigma1_, settings.sigma2_

    def _named(self, owners: Any, rows: int) -> Any:
        """The checked names of the owners. None and the word "each-row" are returned unchanged."""
        if self._store_place() is not None and owners is None:
            raise InvalidInputError(inputs.NEEDS_OWNERS)
        return owners if owners is None or inputs.says_each_row(owners) else inputs.as_owners(owners, length=rows)

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
            for name, epsilon in self._analysts().items():
                store.add_analyst(name, epsilon)
            return self._with_public(store) if made else store
        assert not isinstance(old, Engine)
        old.refuse_other(settings)
        return old

    def _with_public(self, made: Engine | Store) -> Engine | Store:
        if self.public is not None:
            X, y = self.public if _is_pair(self.public) else (self.public, None)
            rows, labels, *_ = records_of(self._schema(), Given(X, y))
            made.declare_public(rows, labels)
        return made

    def _decision(self, analyst: str | None) -> Decision:
        return PLAIN

    def _about_labels(self) -> list[Warning]:
        return []


class IndKNNClassifier(ClassifierMixin, IndKNN):
    """Private nearest-neighbour classifier with a privacy budget for every person.

    By default the first query trains a shared model, privately and once for all analysts. Everybody pays for their own
    gradient, at most ``model_share`` of the budget. The model answers alone where it is sure. Elsewhere records near
    the query (kernel >= tau) vote, with Gaussian noise. ``mode="votes"`` is the paper's way: votes alone. Each person
    is charged exactly for what their records contributed. A person whose budget is spent no longer takes part.

    All answers to one analyst together are (epsilon, delta)-differentially private for each person with all their
    records. This holds for any number of queries, and while records come and go. See ``docs/privacy.md``.

    Parameters
    ----------
    {parameters}
    class_weight : "balanced", dict or None
        "balanced" treats all labels as equally common: probabilities are divided by how common each label is, by the
        noisy counts that people paid for with the shared model. A dict gives a weight for each label. It costs nothing.
    min_confidence : float or None
        ``predict`` answers None where the label has a smaller probability than this. It costs nothing, and charges are
        the same as without it.
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
    analysts : list of names, dict from names to epsilons, or None
        Who may ask, besides the analyst without a name. A number gives that analyst less than ``epsilon``. None: in
        memory any name may ask. A store knows the analysts who were declared (``Store.add_analyst``).
    verbose : bool or None
        Whether to show on stderr how far a training of the shared model is. None: on a terminal or in a notebook, if
        it takes longer than two seconds.

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
    >>> answers = model.predict(X[:5])                       # trains the shared model: everybody pays
    >>> bool(0 < model.privacy_spent().max() <= model.budget_)
    True
    >>> model.forget([17])
    1
    """

    _target = "class"

    def __init__(self, epsilon: float = 1.0, delta: float = 1e-5, **named: Unpack[ClassifierParameters]):
        self._keep(epsilon=epsilon, delta=delta, **named)

    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        owners: Any = None,
        classes: npt.ArrayLike | None = None,
        record_ids: Any = None,
        *,
        expires: Any = None,
        epsilons: Any = None,
    ) -> Self:
        """Add records. The first call on an empty object needs `classes`, the public list of labels.

        An owner who was forgotten and comes back starts with what they had spent. Without `owners`, every row is a new
        person, as in `fit`. A row whose record id was given before replaces that record of the same owner.
        """
        first = not hasattr(self, "_engine")
        given = self._given_classes() if first and classes is None else classes
        named = None if given is None else inputs.as_classes(given).tolist()
        if first and named is None:
            raise InvalidInputError("classes must be passed on the first call to partial_fit, got None")
        if not first and named is not None and set(map(str, named)) != set(map(str, self.classes_.tolist())):
            raise InvalidInputError(f"classes must stay {self.classes_.tolist()}, got {named}")
        labels = tuple(named) if first and named is not None else ()
        return self._take(labels, Given(X, y, owners, record_ids, expires, epsilons))

    def predict_proba(self, X: npt.ArrayLike, analyst: str | None = None) -> FloatArray:
        """The probability of each class for each row, in the order of `classes_`.

        The probabilities are computed from what `predict` releases anyway, the shared model and noisy votes. So this
        spends the same as `predict`, and nothing for rows that were asked before.
        """
        self._check_asked(analyst)
        rows, decision = vectors_of(X, self._schema(fitted=True)), self._decision(analyst)
        labels, likely = self._engine.predict_both(validate_data(self, rows, reset=False, dtype=np.float64), analyst)
        return likely if decision.class_weight is None else self._memory.decide(decision, labels, likely, analyst)[1]

    @property
    def classes_(self) -> npt.NDArray[Any]:
        """The labels, sorted."""
        check_is_fitted(self, "_engine")
        return self._engine.settings.class_array

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # the checks use only a few dozen records
        return tags

    def _checked(self, X: npt.ArrayLike, y: npt.ArrayLike) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Rows and labels. Rows of numbers keep their type. A later step checks block by block that they are finite."""
        given = None if y is None else inputs.as_labels(y)
        rows, targets = check_X_y(X, given, dtype=NUMBERS, ensure_all_finite=False)
        check_classification_targets(targets)
        return rows, targets

    def _label_set(self, targets: npt.NDArray[Any]) -> tuple[Any, ...]:
        classes = self._given_classes()
        return tuple(inputs.as_classes(targets if classes is None else classes).tolist())

    def _about_labels(self) -> list[Warning]:
        return advice.about_labels() if self._given_classes() is None else []

    def _decision(self, analyst: str | None) -> Decision:
        """How labels follow from probabilities. What cannot be decided is refused before anybody is charged."""
        if self.min_confidence is None and self.class_weight is None:
            return PLAIN
        decision = Decision(self.min_confidence, self.class_weight)
        self._memory.refuse_unfit(decision, analyst)
        return decision

    def _given_classes(self) -> Any:
        """The label set, if it was given here or in the schema."""
        schema = self._schema()
        return self.classes if self.classes is not None or schema is None else schema.classes or None


def _as_range(numbers: IntArray) -> IntArray | range:
    """The same numbers, without an array if they follow each other, as those of a first fit do."""
    if len(numbers) and (np.diff(numbers) == 1).all():
        return range(int(numbers[0]), int(numbers[-1]) + 1)
    return numbers


def _short(value: Any) -> str:
    """A value in at most one short line: a table by its size, a long text by its beginning."""
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and shape:
        return f"<{type(value).__name__} of {' x '.join(map(str, shape))}>"
    if _is_pair(value):
        return f"({', '.join(map(_short, value))})"
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else f"<{type(value).__name__}: {text[: _LONGEST // 2]}...>"


def _is_pair(public: Any) -> bool:
    """Whether this is rows and labels. A pair of two rows is not."""
    return isinstance(public, tuple) and len(public) == 2 and np.ndim(public[0]) != 1 and np.ndim(public[1]) == 1


declared(IndKNNClassifier, ClassifierParameters, "target", "bounds")
