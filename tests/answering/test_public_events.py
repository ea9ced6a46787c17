"""Row 4, rule 14: forgetting somebody shows in no repeated answer; a purge does, is an event of its own, and says so."""

import inspect
import json
from contextlib import contextmanager

import numpy as np
import pytest

import indknn
from conftest import blobs
from helpers.commands import run
from indknn import IndKNNClassifier
from indknn.core.noise import SecureNoise
from indknn.engine import Engine
from indknn.settings import Settings
from indknn.store import Store
from indknn.store.chain import entries
from server.serving import INFER, application, question

X, Y = blobs(500, 3, 6)
NAMES = [f"p{i}" for i in range(400)]
Q = X[400:]
LEAVING = ["p3", "p4", "p5"]
MODES = {
    "algorithm 3": {"reuse": "none", "max_queries": 100, "tau": 0.5, "sigma2": 4.0},
    "labels": {"reuse": "labels", "max_queries": 100, "tau": 0.5, "sigma2": 4.0},
    "models": {"epsilon": 0.02},
}


@pytest.fixture(params=MODES)
def settings(request):
    """Much noise, so that an answer made anew is another one as often as not."""
    return Settings(n_features=6, classes=(0, 1, 2), **MODES[request.param])


@contextmanager
def by_engine(settings, folder):
    engine = Engine(settings, SecureNoise())
    engine.add(X[:400], Y[:400], NAMES)
    yield engine.predict, engine.forget_owners, engine.purge


@contextmanager
def by_estimator(settings, folder):
    names = ("epsilon", "max_queries", "tau", "sigma2", "reuse", "mode")
    model = IndKNNClassifier(classes=[0, 1, 2], **{name: getattr(settings, name) for name in names})
    model.fit(X[:400], Y[:400], owners=NAMES)
    yield model.predict, model.forget, model.purge


@contextmanager
def by_store(settings, folder):
    with Store.create(folder / "s.store", settings) as store:
        store.add(X[:400], Y[:400], NAMES)
        yield store.predict, store.forget, store.purge


@contextmanager
def by_command(settings, folder):
    path = folder / "s.store"
    with Store.create(path, settings) as store:
        store.add(X[:400], Y[:400], NAMES)

    def ask(queries):
        with indknn.open(path) as store:
            return store.predict(queries)

    yield ask, lambda owners: run("forget", path, *owners, code=0), lambda: run("purge", path, code=0)


@contextmanager
def by_service(settings, folder):
    def done(method, path, **options):
        response = client(method, path, **options)
        assert response.status_code == 200, response.text
        return response.json()

    def forget(owners):
        for owner in owners:  # an old client that still asks for a purge gets none
            done("DELETE", f"/v1/owners/{owner}?derived=purge")

    with Store.create(folder / "s.store", settings) as store, application(store) as client:
        store.add(X[:400], Y[:400], NAMES)
        yield (
            lambda queries: np.array(done("POST", INFER, json=question(queries))["outputs"][0]["data"]),
            forget,
            lambda: done("POST", "/v1/purge"),
        )


@pytest.mark.parametrize("road", [by_engine, by_estimator, by_store, by_command, by_service])
def test_who_asks_again_sees_a_purge_and_nobody_leaving(road, settings, tmp_path):
    with road(settings, tmp_path) as (ask, forget, purge):
        before = ask(Q)
        forget(LEAVING)
        assert (ask(Q) == before).all()
        purge()
        assert (ask(Q) != before).any()


def test_no_way_to_forget_takes_a_purge_along(tmp_path):
    for forget in (IndKNNClassifier.forget, Engine.forget_owners, Store.forget):
        assert set(inspect.signature(forget).parameters) <= {"self", "owners", "records", "record_ids"}
    assert run("forget", str(tmp_path / "s"), "p1", "--purge").exit_code == 2


def test_a_purge_says_what_everybody_can_see(tmp_path):
    plain = Settings(n_features=6, classes=(0, 1, 2), **MODES["algorithm 3"])
    with Store.create(tmp_path / "s", plain) as store, application(store) as client:
        store.add(X[:400], Y[:400], NAMES)
        said = [store.purge()["public"], client("POST", "/v1/purge").json()["public"], Store.purge.__doc__]
        said.append(client("GET", "/openapi.json").json()["paths"]["/v1/purge"]["post"]["description"])
        said.append(client("GET", "/").text)
        kinds = [entry.kind for entry in entries(store.db)]
        receipt = store.forget(["p1"])
    assert kinds[-2:] == ["purge", "purge"]
    assert "Scheduled purges" in receipt["released"]
    said += [run("purge", "--help").output, IndKNNClassifier.purge.__doc__]
    said.append(run("purge", str(tmp_path / "s")).output)
    for text in said:
        words = " ".join(text.split()).lower()
        assert "everybody who asks again can see" in words
        assert "one person" in words
    facts = json.loads(run("purge", str(tmp_path / "s"), "--json").output)
    assert facts["receipt"] == "purge"


def test_a_purge_refunds_nothing(tmp_path):
    plain = Settings(n_features=6, classes=(0, 1, 2), **MODES["algorithm 3"])
    with Store.create(tmp_path / "s", plain) as store:
        store.add(X[:400], Y[:400], NAMES)
        store.predict(Q[:20])
        spent = store.spent()
        store.purge()
        assert (store.spent() == spent).all()
        store.predict(Q[:20])
        assert (store.spent() >= spent).all()
        assert store.spent().sum() > spent.sum()
