"""How likely each class is: from what was released anyway, the same wherever it is asked for."""

import csv
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.model_selection import cross_val_score

from conftest import blobs
from helpers.asking import declared
from helpers.commands import run
from indknn import IndKNNClassifier
from indknn.core.releases import NoisyVotes
from indknn.errors import RequestConflictError
from indknn.models.probabilities import from_votes
from indknn.settings import Settings
from indknn.store import Store
from indknn.store.verify import problems
from server.serving import INFER, application, question, tensor

X, Y = blobs(700, 3, 5, seed=3)
RECORDS, QUERIES = X[:500], X[500:]
MODES = {"default": {}, "algorithm3": {"mode": "votes", "max_queries": 200, "tau": 0.4}}
CLASSES = ("a", "b", "c")


@pytest.fixture(params=MODES)
def store(request, tmp_path):
    settings = Settings.of(5, CLASSES, **MODES[request.param])
    with Store.create(tmp_path / "s.store", settings) as made:
        declared(made, "ann").add(RECORDS, np.array(CLASSES)[Y[:500]], [f"p{i // 2}" for i in range(500)])
        yield made


def are_probabilities(likely, n):
    return likely.shape == (n, 3) and (likely > 0).all() and np.allclose(likely.sum(axis=1), 1.0)


def test_fresh_answers_are_the_likeliest_class(store):
    # More than 64 in one request: in between the adviser may change its mind.
    labels, likely = store.predict_both(QUERIES, "ann")
    assert are_probabilities(likely, len(QUERIES))
    assert (labels == np.array(CLASSES)[likely.argmax(axis=1)]).all()
    assert likely.max() > 0.5


def test_they_cost_nothing_and_the_same_id_gives_the_same(store, tmp_path):
    labels = store.predict(QUERIES[:100], request_id="first")
    before, answers = store.spent(), store.db.execute("SELECT count(*) FROM answers").get
    assert are_probabilities(store.predict_proba(QUERIES[:100], request_id="first"), 100)  # was asked for labels only
    assert are_probabilities(store.predict_proba(QUERIES[:100]), 100)
    assert (store.spent() == before).all()
    assert store.db.execute("SELECT count(*) FROM answers").get == answers
    likely = store.predict_proba(QUERIES[50:150], request_id="second")
    store.predict(QUERIES[150:])  # the state from which probabilities follow moves on
    path = store.path
    store.close()
    with Store(path) as again:
        assert (again.predict_proba(QUERIES[50:150], request_id="second") == likely).all()
        assert (again.predict(QUERIES[:100], request_id="first") == labels).all()
        assert len(again.predict(QUERIES[50:150], request_id="second")) == 100
        with pytest.raises(RequestConflictError):
            again.predict_proba(QUERIES[:100], request_id="second")
        assert not list(problems(again))


@pytest.mark.parametrize("scoring", ["roc_auc", "neg_log_loss"])
@pytest.mark.filterwarnings("ignore::indknn.PrivacyWarning")
def test_scikit_learns_scores_work(scoring):
    rows, labels = blobs(600, 2, 5, seed=4)
    found = cross_val_score(IndKNNClassifier(random_state=0, classes=(0, 1)), rows, labels, cv=3, scoring=scoring)
    assert found.min() > {"roc_auc": 0.9, "neg_log_loss": -0.6}[scoring]  # a guess has 0.5 and -0.69


@pytest.mark.parametrize("votes", [[-900, -100, -500], [5, 3, 1], [0, 0, 7], [10**12, 3, -4], [-1, -2, -(10**9)]])
@pytest.mark.parametrize("scale", [1, 400, 10**9])
def test_whatever_the_noise_the_order_of_votes_is_kept(votes, scale):
    likely = from_votes(NoisyVotes(scale, np.array(votes)), 3)
    assert np.isclose(likely.sum(), 1.0)
    assert likely.argmax() == np.argmax(votes)
    assert (np.diff(likely[np.argsort(votes)]) >= 0).all()


def test_more_noise_makes_less_sure():
    sure = [from_votes(NoisyVotes(scale, np.array([900, 50, 50])), 3)[0] for scale in (1, 100, 300, 1000)]
    assert sure == sorted(sure, reverse=True)
    assert sure[0] > 0.9
    assert sure[-1] < 0.5


# The command


@pytest.mark.parametrize("ending", ["csv", "npz", "parquet"])
def test_the_command_writes_them_beside_the_labels(store, tmp_path, ending):
    path, out = store.path, tmp_path / f"answers.{ending}"
    store.close()
    np.savez(tmp_path / "q.npz", X=QUERIES)
    for _ in range(2):  # a rerun gives the same
        told = run("predict", str(path), str(tmp_path / "q.npz"), "-o", str(out), "--proba")
        assert told.exit_code == 0, told.output
        if ending == "csv":
            with out.open() as file:
                header, *lines = csv.reader(file)
            columns = dict(zip(header, zip(*lines, strict=True), strict=True))
        elif ending == "parquet":
            columns = pq.read_table(out).to_pydict()
        else:
            with np.load(out) as npz:
                columns = {"y": npz["y"], **dict(zip([f"p_{c}" for c in npz["classes"]], npz["proba"].T, strict=True))}
        assert list(columns) == [*(["row"] if ending != "npz" else []), "y", "p_a", "p_b", "p_c"]
        likely = np.array([columns[f"p_{c}"] for c in CLASSES], dtype=float).T
        assert are_probabilities(likely, len(QUERIES))
        assert [CLASSES[i] for i in likely.argmax(axis=1)] == list(columns["y"])
    with Store(path) as again:
        assert again.db.execute("SELECT count(*) FROM answers WHERE label >= 0").get == len(QUERIES)


# Over HTTP


def asked(client, outputs, name=None, **parameters):
    body = {**question(QUERIES[:3], name), "inputs": [tensor(QUERIES[:3], "FP64")], "outputs": outputs}
    return client("POST", INFER, json={**body, "parameters": parameters})


def test_they_are_an_output_of_their_own(store):
    with application(store) as client:
        first = asked(client, [{"name": "probabilities"}, {"name": "label"}], "k")
        likely, label = first.json()["outputs"]
        assert (likely["name"], likely["datatype"], likely["shape"]) == ("probabilities", "FP64", [3, 3])
        rows = np.array(likely["data"]).reshape(3, 3)
        assert are_probabilities(rows, 3)
        assert [CLASSES[i] for i in rows.argmax(axis=1)] == label["data"]
        assert asked(client, [{"name": "probabilities"}, {"name": "label"}], "k").text == first.text
        assert [o["name"] for o in asked(client, []).json()["outputs"]] == ["label"]
        assert store.db.execute("SELECT count(*) FROM answers WHERE label >= 0").get == 3
        named = [(o["name"], o["datatype"], o["shape"]) for o in client("GET", "/v2/models/indknn").json()["outputs"]]
        assert named == [("label", "BYTES", [-1]), ("probabilities", "FP64", [-1, 3])]
        for wrong in ([{"name": "probabilities"}] * 2, [{"name": ["label"]}], [{}], ["label"]):
            response = asked(client, wrong)
            assert (response.status_code, response.json()["code"]) == (422, "invalid_input")


def test_they_come_as_bytes_too(store):
    with application(store) as client:
        plain = asked(client, [{"name": "probabilities"}], "k").json()["outputs"][0]["data"]
        outputs = [{"name": "label"}, {"name": "probabilities", "parameters": {"binary_data": True}}]
        response = asked(client, outputs, "k")
        length = int(response.headers["inference-header-content-length"])
        label, likely = json.loads(response.content[:length])["outputs"]
        assert "data" in label
        assert likely["parameters"] == {"binary_data_size": 72}
        assert np.frombuffer(response.content[length:], "<f8").tolist() == plain
