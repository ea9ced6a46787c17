"""Numbers over HTTP: FP64 answers, intervals on request, and what is refused."""

import numpy as np
import pytest

from indknn.errors import StoreError
from indknn.settings import Settings
from indknn.store import Store
from server.serving import INFER, application, tensor


@pytest.fixture
def client(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(800, 4))
    settings = Settings(4, (), target="number", bounds=(0, 50), tau=0.3)
    with Store.create(tmp_path / "numbers.store", settings) as store:
        store.add(X, 25 + 6 * X[:, 0], "each-row")
        for _ in store.train():
            pass
        with application(store) as client:
            yield client


def asked(client, **more):
    X = np.random.default_rng(1).normal(size=(5, 4))
    return client("POST", INFER, json={"inputs": [tensor(X, "FP64")], **more})


def test_answers_are_numbers(client):
    (output,) = asked(client).json()["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == ("label", "FP64", [5])
    assert all(0.0 <= value <= 50.0 for value in output["data"])


def test_intervals_come_on_request(client):
    wanted = [{"name": "label"}, {"name": "intervals"}]
    label, ends = asked(client, outputs=wanted, parameters={"coverage": 0.5}).json()["outputs"]
    assert (ends["name"], ends["datatype"], ends["shape"]) == ("intervals", "FP64", [5, 2])
    low, high = np.array(ends["data"]).reshape(5, 2).T
    assert (low <= high).all()
    wide = np.array(asked(client, outputs=wanted).json()["outputs"][1]["data"]).reshape(5, 2)
    assert (wide[:, 0] <= low).all()
    assert (wide[:, 1] >= high).all()
    assert len(label["data"]) == 5


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"outputs": [{"name": "probabilities"}]}, "the target is a number"),
        ({"parameters": {"min_confidence": 0.5}}, "the target is a number"),
        ({"outputs": [{"name": "intervals"}], "parameters": {"coverage": 2}}, "coverage must be"),
        ({"outputs": [{"name": "intervals"}], "parameters": {"coverage": "x"}}, "coverage must be"),
    ],
)
def test_what_makes_no_sense_is_refused(client, more, words):
    response = asked(client, **more)
    assert response.status_code == 422
    assert words in response.text


def test_the_model_says_what_it_gives(client):
    told = client("GET", "/v2/models/indknn").json()
    assert [(one["name"], one["datatype"]) for one in told["outputs"]] == [("label", "FP64"), ("intervals", "FP64")]
    assert told["parameters"]["bounds"] == [0.0, 50.0]
    assert (
        client("GET", "/openapi.json").json()["components"]["schemas"]["Record"]["properties"]["label"]["type"]
        == "number"
    )


def test_records_with_numbers_are_taken(client):
    records = [{"features": [1.0, 0.0, 0.0, 0.0], "label": 30.5, "owner": "ann"}]
    assert client("POST", "/v1/records", json={"records": records}).status_code in {200, 201}


def test_intervals_wait_until_their_release_is_durable(client, monkeypatch):
    """The report card may be newer than the labels, and must be on disk before it is told (rule 2)."""
    outputs = [{"name": "label"}, {"name": "intervals"}]
    assert asked(client, outputs=outputs).status_code == 200

    def full(store):
        raise StoreError("the disk is full")

    monkeypatch.setattr(Store, "flush", full)
    assert asked(client, outputs=outputs).status_code >= 500
