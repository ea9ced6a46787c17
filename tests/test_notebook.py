"""What a notebook shows of an estimator and a store, and what model selection on private rows is told."""

import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from conftest import blobs
from indknn import IndKNNClassifier
from indknn.errors import PrivacyWarning
from indknn.settings import Settings
from indknn.store import Store

X, Y = blobs(120, 3, 4)
OPTIONS = {"tau": 0.3, "classes": [0, 1, 2], "reuse": "none"}
ADD_UP = "every clone of this estimator starts with new budgets"


def test_the_repr_is_one_short_line_without_people():
    big = IndKNNClassifier(
        epsilon=0.5, public=(np.zeros((1000, 4)), np.zeros(1000)), center=np.zeros(400), classes=[0, 1, 2]
    )
    shown = repr(big)
    assert shown == (
        "IndKNNClassifier(center=<ndarray of 400>, classes=[0, 1, 2], epsilon=0.5, "
        "public=(<ndarray of 1000 x 4>, <ndarray of 1000>))"
    )
    assert repr(IndKNNClassifier()) == "IndKNNClassifier()"
    schema = {"columns": {f"c{i}": {"kind": "number", "bounds": [0, 1]} for i in range(200)}}
    assert len(repr(IndKNNClassifier(schema=schema))) < 120
    fitted = IndKNNClassifier(**OPTIONS).fit(X, Y)
    assert fitted._repr_mimebundle_(include=None, exclude=None) == {"text/plain": repr(fitted)}  # no diagram of 39 KB
    assert "120" not in repr(fitted)


def test_the_repr_of_a_store_says_where_it_is_and_what_it_promises(tmp_path):
    with Store.create(tmp_path / "a.store", Settings(4, (0, 1, 2), epsilon=0.5)) as store:
        store.add(X, Y, [f"p{i}" for i in range(120)])
        assert repr(store) == f"Store('{store.path}', epsilon=0.5, delta=1e-05, mode='model')"
    assert repr(store).endswith("mode='model', closed)")


def test_model_selection_on_private_rows_is_warned_about_once():
    searched = GridSearchCV(IndKNNClassifier(**OPTIONS), {"tau": [0.2, 0.3]}, cv=2)
    pipeline = make_pipeline(FunctionTransformer(), IndKNNClassifier(**OPTIONS))
    for select in (
        lambda: cross_val_score(IndKNNClassifier(**OPTIONS), X, Y, cv=3),
        lambda: searched.fit(X, Y),
        lambda: cross_val_score(pipeline, X, Y, cv=3),
    ):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            select()
        assert [ADD_UP in str(one.message) for one in told if one.category is PrivacyWarning] == [True]
        assert any("indknn tune" in str(one.message) for one in told)


@pytest.mark.parametrize("more", [{"random_state": 0}, {"store": "people.store"}])
def test_clones_that_start_no_new_budget_are_not(more):
    model = IndKNNClassifier(**OPTIONS, **more)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            clone(model)


def test_a_single_clone_is_nothing_to_warn_about():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert clone(IndKNNClassifier(**OPTIONS)).get_params()["tau"] == 0.3
