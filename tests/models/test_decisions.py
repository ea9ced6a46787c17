"""Labels that are left open, and labels that are not equally common: post-processing that costs nothing."""

import csv

import numpy as np
import pyarrow.parquet as pq
import pytest

from helpers.commands import run
from indknn import IndKNNClassifier
from indknn.errors import InvalidInputError
from indknn.models.probabilities import Decision
from indknn.settings import Settings
from indknn.store import Store
from server.serving import INFER, application, tensor

RNG = np.random.default_rng(0)
N = 3000
Y = (RNG.random(N + 600) < 0.06).astype(int)  # a rare label
X = RNG.normal(size=(N + 600, 6)) + 1.1 * Y[:, None]
NAMES = np.array(["common", "rare"])
CLASSES = np.array(["a", "b", "c"])
Q = X[N : N + 250]  # fewer than would start a look for newcomers, which people pay for
LIKELY = np.array([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7], [0.34, 0.33, 0.33]])


def test_below_the_confidence_there_is_no_label():
    released = np.array(["a", "c", "b"])  # the third was answered before the model changed its mind
    found = Decision(min_confidence=0.4).labels(released, LIKELY, CLASSES, None)
    assert found.tolist() == ["a", "c", None]
    assert Decision(min_confidence=0.0).labels(released, LIKELY, CLASSES, None).tolist() == released.tolist()
    assert Decision(min_confidence=1.0).labels(released, LIKELY, CLASSES, None).tolist() == [None] * 3


def test_balanced_divides_by_the_released_shares():
    shares = np.array([0.8, 0.1, 0.1])
    found = Decision(class_weight="balanced")
    weighed = found.weighed(LIKELY, CLASSES, shares)
    np.testing.assert_allclose(weighed.sum(axis=1), 1.0)
    np.testing.assert_allclose(weighed[0] / weighed[0, 0], (LIKELY[0] / shares) / (LIKELY[0, 0] / 0.8))
    assert found.labels(np.array(["a", "c", "a"]), LIKELY, CLASSES, shares).tolist() == ["b", "c", "b"]
    assert np.isfinite(found.weighed(LIKELY, CLASSES, np.array([1.0, 0.0, 0.0]))).all()


def test_weights_may_be_given():
    chosen = Decision(class_weight={"b": 10})
    assert chosen.labels(np.array(["a", "c", "a"]), LIKELY, CLASSES, None).tolist() == ["b", "b", "b"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_confidence": 1.5},
        {"min_confidence": -0.1},
        {"min_confidence": float("nan")},
        {"min_confidence": "0.5"},
        {"min_confidence": True},
        {"class_weight": "heavy"},
        {"class_weight": 3},
        {"class_weight": {"z": 1.0}},
        {"class_weight": {"a": -1.0}},
    ],
)
def test_what_makes_no_sense_is_refused(wrong):
    with pytest.raises(InvalidInputError, match=next(iter(wrong))):
        Decision(**wrong).labels(np.array(["a"]), LIKELY[:1], CLASSES, None)


def twins(**more):
    """Two models with the same seed, the second with these parameters."""
    pair = (
        IndKNNClassifier(epsilon=4, classes=[0, 1], random_state=3),
        IndKNNClassifier(epsilon=4, classes=[0, 1], random_state=3, **more),
    )
    return [one.fit(X[:N], Y[:N]) for one in pair]


def test_abstaining_changes_neither_charges_nor_labels():
    plain, careful = twins(min_confidence=0.9)
    labels, found = plain.predict(Q), careful.predict(Q)
    likely = plain.predict_proba(Q).max(axis=1)
    assert careful.privacy_spent().tolist() == plain.privacy_spent().tolist()
    kept = np.array([label is not None for label in found])
    assert 0 < kept.sum() < len(kept)
    assert (found[kept].astype(int) == labels[kept]).all()
    assert likely[kept].min() >= 0.9 > likely[~kept].max()
    assert (careful.predict_proba(Q) == plain.predict_proba(Q)).all()


def test_balanced_finds_rare_labels_at_the_same_price():
    plain, balanced = twins(class_weight="balanced")
    labels, found = plain.predict(Q), balanced.predict(Q)
    assert balanced.privacy_spent().tolist() == plain.privacy_spent().tolist()
    truth = Y[N : N + 250]
    assert (found[truth == 1] == 1).mean() > (labels[truth == 1] == 1).mean() + 0.2
    assert (found == balanced.predict_proba(Q).argmax(axis=1)).all()
    shares = balanced._memory.shown_to().shares
    assert shares.sum() == pytest.approx(1.0)
    assert shares[1] == pytest.approx(0.06, abs=0.03)


def test_shares_follow_from_releases_alone():
    """They are of the noisy count, so they stay when everybody who has the rare label is forgotten."""
    model = IndKNNClassifier(epsilon=4, classes=[0, 1], random_state=3, class_weight="balanced").fit(X[:N], Y[:N])
    model.predict(X[N : N + 5])
    before = model._memory.shown_to().shares
    model.forget(np.flatnonzero(Y[:N]))
    model.predict(X[N + 5 : N + 10])
    assert (model._memory.shown_to().shares == before).all()


@pytest.mark.parametrize("more", [{"mode": "votes", "class_weight": "balanced"}, {"class_weight": {7: 2.0}}])
def test_what_cannot_be_decided_is_refused_before_anybody_is_charged(more):
    model = IndKNNClassifier(tau=0.4, classes=[0, 1], random_state=0, **more).fit(X[:300], Y[:300])
    for ask in (model.predict, model.predict_proba):
        with pytest.raises(InvalidInputError, match="class_weight"):
            ask(X[N : N + 1])
    assert not model.privacy_spent().any()


def test_from_a_store_and_the_command_line(tmp_path):
    path = tmp_path / "s.store"
    with Store.create(path, Settings.of(6, ("common", "rare"), epsilon=4.0)) as store:
        store.add(X[:N], NAMES[Y[:N]], [f"p{i}" for i in range(N)])
        store.predict(Q)
        before = store.spent().tolist()
        found = store.predict(Q, min_confidence=0.9)
        weighed = store.predict(Q, class_weight="balanced")
        assert store.spent().tolist() == before  # the same queries again
        assert None in found.tolist()
        assert (weighed == "rare").sum() > (store.predict(Q) == "rare").sum()
    np.savez(tmp_path / "q.npz", X=Q)
    for name in ("a.csv", "a.npz", "a.parquet"):
        run("predict", path, tmp_path / "q.npz", "-o", tmp_path / name, "--min-confidence", 0.9, code=0)
    with (tmp_path / "a.csv").open() as file:
        rows = [row[-1] for row in csv.reader(file)][1:]
    assert rows == ["" if label is None else label for label in found]
    assert np.load(tmp_path / "a.npz")["y"].tolist() == rows
    assert pq.read_table(tmp_path / "a.parquet")["y"].to_pylist() == found.tolist()
    run("predict", path, tmp_path / "q.npz", "-o", tmp_path / "b.csv", "--class-weight", "balanced", "--proba", code=0)
    with (tmp_path / "b.csv").open() as file:
        told = [row[1] for row in csv.reader(file)][1:]
    assert told == weighed.tolist()
    with Store(path) as store:
        assert store.spent().tolist() == before


def asked(client, n=200, **parameters):
    return client("POST", INFER, json={"inputs": [tensor(Q[:n], "FP64")], "parameters": parameters})


def test_over_http(tmp_path):
    with Store.create(tmp_path / "s.store", Settings.of(6, (0, 1), epsilon=4.0)) as store:
        store.add(X[:N], Y[:N], [f"p{i}" for i in range(N)])
        with application(store) as client:
            for wrong in ({"class_weight": {"7": 2}}, {"class_weight": "heavy"}, {"min_confidence": "high"}):
                assert asked(client, 1, **wrong).status_code == 422
            early = asked(client, 1, class_weight="balanced")  # training goes on beside the answers, and is not done
            assert (early.status_code, "not trained yet" in early.text) == (422, True)
            assert not store.spent().any()
        for _ in store.train():
            pass
        plain, expected = store.predict(Q[:200]), store.predict(Q[:200], min_confidence=0.9)
        before, weighed = store.spent().tolist(), store.predict(Q[:200], class_weight="balanced")
        with application(store) as client:
            (told,) = asked(client, min_confidence=0.9).json()["outputs"]
            assert told["datatype"] == "BYTES"
            assert told["data"] == ["" if label is None else str(label) for label in expected]
            assert asked(client, class_weight="balanced").json()["outputs"][0]["data"] == weighed.tolist()
            assert asked(client, class_weight={"1": 1e9}).json()["outputs"][0]["data"] == [1] * 200
            assert asked(client).json()["outputs"][0]["data"] == plain.tolist()
        assert store.spent().tolist() == before
