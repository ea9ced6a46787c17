"""A durable store whose records say numbers: read back, repeated, through a draft and a schema."""

import numpy as np
import pytest

from golden.transcripts import Replayed
from indknn.errors import InvalidInputError
from indknn.settings import Settings
from indknn.store import Store
from indknn.store.verify import problems
from indknn.tables import Number, Schema

BOUNDS = (0.0, 50.0)
MODES = {"votes": {"mode": "votes", "tau": 0.3}, "model": {"mode": "model", "model_share": 0.5, "tau": 0.3}}


def people(n, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    return X, 25 + 6 * X[:, 0] + rng.normal(size=n), [f"p{i}" for i in range(n)]


def made(path, **options):
    given = {"n_features": 4, "classes": (), "target": "number", "bounds": BOUNDS, "max_queries": 100, **options}
    return Store.create(path, Settings(**given), noise=Replayed())


@pytest.mark.parametrize("mode", MODES)
def test_a_store_that_was_closed_goes_on_as_it_was(tmp_path, mode):
    Q = people(60, seed=1)[0]
    with made(tmp_path / "one.store", **MODES[mode]) as store:
        store.add(*people(500))
        first = store.predict(Q[:30], request_id="one")
        shown = None if store.engine.predictor.model is None else store.engine.predictor.model.shown
        spent = store.spent()
    assert first.dtype == np.float64
    assert ((first >= 0.0) & (first <= 50.0)).all()
    with Store(tmp_path / "one.store", noise=Replayed()) as store:
        assert (store.predict(Q[:30], request_id="one") == first).all()
        assert (store.predict(Q[:30]) == first).all()
        assert (store.spent() == spent).all()
        if shown is not None:
            again = store.engine.predictor.model.shown
            assert (
                again.scores(store.settings.quantise(Q, "Q").values)[0]
                == shown.scores(store.settings.quantise(Q, "Q").values)[0]
            ).all()
        later = store.predict(Q[30:])
        assert len(later) == 30
        assert not list(problems(store))


def test_answers_about_residuals_are_the_same_after_a_restart(tmp_path):
    """The residuals of records follow from the shown model, so they are there again after it was read back."""
    Q, found = people(40, seed=1)[0], []
    for restart in (False, True):
        path = tmp_path / f"{restart}.store"
        store = made(path, **MODES["model"], sigma2=0.02)
        store.add(*people(400))
        store.predict(Q[:1])
        noise = store.engine.noise
        if restart:
            store.close()
            store = Store(path, noise=noise)
        found.append((store.predict(Q).tolist(), store.spent().tolist(), store.engine.predictor.adviser().asked))
        store.close()
    assert found[0] == found[1]
    assert found[0][2] > 0


def test_what_is_about_classes_is_refused(tmp_path):
    with made(tmp_path / "one.store", mode="votes", tau=0.3) as store:
        store.add(*people(50))
        Q = people(3, seed=1)[0]
        for asked in (
            lambda: store.predict_proba(Q),
            lambda: store.predict(Q, min_confidence=0.5),
            lambda: store.predict(Q, class_weight="balanced"),
        ):
            with pytest.raises(InvalidInputError, match="the target is a number"):
                asked()
        with pytest.raises(InvalidInputError, match="needs the shared model"):
            store.predict_interval(Q)
        with pytest.raises(InvalidInputError, match="y must be numbers"):
            store.add(Q, ["a", "b", "c"], ["x", "y", "z"])
        with pytest.raises(InvalidInputError, match="finite number"):
            store.add(Q, [1.0, np.nan, 2.0], ["x", "y", "z"])


def test_intervals_of_classes_are_refused(tmp_path):
    settings = Settings(2, ("a", "b"), tau=0.3)
    with Store.create(tmp_path / "one.store", settings) as store:
        store.add([[1.0, 0.0]], ["a"], ["ann"])
        with pytest.raises(InvalidInputError, match="intervals are for numbers"):
            store.predict_interval([[1.0, 0.0]])


def test_a_draft_takes_its_width_from_the_first_records(tmp_path):
    settings = Settings(1, (), target="number", bounds=BOUNDS, mode="votes", tau=0.3)
    with Store.create(tmp_path / "one.store", settings, draft=True) as store:
        store.add(*people(40))
        assert store.settings.n_features == 4
        assert store.settings.classes == ()
        assert len(store.predict(people(2, seed=1)[0])) == 2


def test_a_schema_may_say_that_the_label_is_a_number(tmp_path):
    schema = Schema({"age": Number(bounds=(0, 100))}, label="hours", owner="name", bounds=(0, 90))
    table = {"age": [20, 50, 70], "hours": [10.0, 40.5, 95.0], "name": ["a", "b", "c"]}
    with Store.create(tmp_path / "one.store", Settings(1, (), tau=0.3, mode="votes"), draft=True) as store:
        store.adopt(schema)
        assert store.settings.bounds == (0.0, 90.0)
        with pytest.warns(UserWarning, match="1 of 3 numbers were outside"):
            store.add(table)
        labels = store.engine.shard.labels_of(store.engine.shard.slots())
        assert store.settings.target_.decode(labels).round(3).tolist() == [10.0, 40.5, 90.0]


def test_public_rows_may_have_numbers(tmp_path):
    with made(tmp_path / "one.store", **MODES["model"]) as store:
        X, y, _ = people(80, seed=5)
        store.declare_public(X, y)
        store.add(*people(300))
        assert len(store.predict(people(5, seed=1)[0])) == 5
