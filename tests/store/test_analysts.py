"""Analysts are declared before they ask: a misspelt name is refused, and gets no second budget."""

import json
from dataclasses import replace

import apsw
import numpy as np
import pytest

import indknn
from conftest import blobs
from helpers.commands import run
from indknn import IndKNNClassifier
from indknn.errors import InvalidInputError, PrivacyWarning, StoreError
from indknn.settings import Settings
from indknn.store import Store
from indknn.store.chain import entries
from indknn.store.verify import problems
from server.serving import INFER, application, question

X, Y = blobs(330, 3, 8)
NAMES = [f"p{i}" for i in range(300)]
PLAIN = Settings(n_features=8, classes=(0, 1, 2), tau=0.3, sigma2=0.1, max_queries=200, reuse="none")


@pytest.fixture
def path(tmp_path):
    with Store.create(tmp_path / "a.store", PLAIN) as made:
        made.add(X[:300], Y[:300], NAMES)
    return tmp_path / "a.store"


def test_a_misspelt_analyst_is_refused_with_the_nearest_name_and_nobody_pays(path):
    with Store(path) as store:
        assert store.add_analyst("alice")
        told = store.predict(X[300:], "alice").tolist()
        spent, generation = store.spent().tolist(), store.generation
        with pytest.raises(
            InvalidInputError, match=r"there is no analyst 'alcie'; did you mean 'alice'\? .*add .* alcie"
        ):
            store.predict(X[300:], "alcie")
        with pytest.raises(InvalidInputError, match=r"there is no analyst 'zoe'; indknn analysts add"):
            store.predict_proba(X[300:], "zoe")
        with pytest.raises(InvalidInputError, match=r"no analyst can be called 'alice ': take the spaces"):
            store.predict(X[300:], "alice ")
        with pytest.raises(InvalidInputError, match="without spaces around them"):
            store.add_analyst(" alice")
        assert (store.spent().tolist(), store.generation, store.analysts) == (spent, generation, ["alice"])
        assert len(store.predict(X[300:])) == 30  # without a name, as ever
    with indknn.open(path) as again:
        assert again.predict(X[300:], "alice").tolist() == told
        assert not list(problems(again))


@pytest.mark.parametrize("name", ["\x01=bob", "\x01", "\x01*", "al\x00ice", "al\nice"])
def test_no_name_is_that_of_a_ledger_of_earlier_periods(tmp_path, name):
    """What is spent under such a name is in no sum: beside it, everybody else could spend the global budget again."""
    model = IndKNNClassifier(global_epsilon=1.0, mode="votes", tau=0.3, classes=[0, 1, 2]).fit(X[:300], Y[:300], NAMES)
    with pytest.raises(InvalidInputError, match="no analyst can be called"):
        model.predict(X[300:], analyst=name)
    assert not model.privacy_spent().any()
    with pytest.raises(InvalidInputError, match="no analyst can be called"):
        Store.create(tmp_path / "b.store", replace(PLAIN, analysts={name: 0.5}))


def test_declaring_again_gives_nothing_back(path):
    with Store(path) as store:
        store.add_analyst("alice")
        store.predict(X[300:], "alice")
        spent, trail = store.spent(analyst="alice"), len(list(entries(store.db)))
        assert spent.max() > 0
        assert not store.add_analyst("alice")
        assert len(list(entries(store.db))) == trail
        store.purge()
        assert not store.add_analyst("alice")
        assert (store.spent(analyst="alice") == spent).all()
        with pytest.raises(InvalidInputError, match="answered already"):
            store.add_analyst("alice", 0.25)


def test_it_is_an_event_of_the_audit_trail_without_the_name(path):
    with Store(path) as store:
        store.add_analyst("alice")
        store.add_analyst("bob", 0.25)
        assert store.settings.analysts == {"bob": 0.25}
        told = [entry for entry in entries(store.db) if entry.kind == "analyst"]
        assert [entry.facts["analysts"] for entry in told] == [1, 2]
        assert "alice" not in json.dumps([entry.body for entry in told])
        assert not list(problems(store))
        with store._state.db:  # somebody adds a name past the trail
            store._state.db.upsert("meta", [("analysts", json.dumps(["alice", "bob", "eve"]))])
        assert "who may ask is not as the audit trail has it" in list(problems(store))


def test_a_name_that_is_written_into_the_file_is_noticed(path):
    with Store(path) as store:
        store.add_analyst("alice")
    db = apsw.Connection(str(path))
    db.execute("UPDATE meta SET value = ? WHERE name = 'analysts'", (json.dumps(["alice", "eve"]),))
    db.close()
    with pytest.raises(StoreError):
        Store(path)


def test_who_was_answered_before_there_were_declarations_may_go_on(path):
    """Stores that were made earlier have no list."""
    with Store(path) as store:
        store.add_analyst("alice")
        store.predict(X[300:], "alice")
        with store.changing() as change:
            change.state.db.delete("meta", [("analysts",)])
            change.state.analysts = set()
            indknn.store.chain.append(change.state.db, "fold")
    with Store(path) as again:
        assert again.analysts == ["alice"]
        assert len(again.predict(X[:5], "alice")) == 5
        with pytest.raises(InvalidInputError, match="did you mean 'alice'"):
            again.check_analyst("alicia")


def test_the_command_adds_and_lists_them(path, tmp_path):
    np.savez(tmp_path / "q.npz", X=X[300:])
    ask = ["predict", path, tmp_path / "q.npz", "-o", tmp_path / "a.csv", "--analyst"]
    assert "alice may ask" in run("analysts", "add", path, "alice", code=0).output
    assert "nothing is given back" in run("analysts", "add", path, "alice", code=0).output
    run("analysts", "add", path, "bob", "--epsilon", "0.25", code=0)
    refused = run(*ask, "alcie", code=2).stderr
    assert "indknn: there is no analyst 'alcie'; did you mean 'alice'? indknn analysts add" in refused
    assert not (tmp_path / "a.csv").exists()  # nothing was begun
    run(*ask, "Alice ", code=2)
    run(*ask, "alice", code=0)
    rows = json.loads(run("analysts", "list", path, "--json", code=0).stdout)
    assert [(row["analyst"], row["epsilon"], row["answers"]) for row in rows] == [("alice", 1.0, 30), ("bob", 0.25, 0)]
    assert "alice                   epsilon = 1, 30 answers" in run("analysts", "list", path, code=0).output


def test_a_key_that_may_ask_declares_its_name(path):
    run("keys", "create", path, "--role", "analyst", "--name", "carol", code=0)
    run("keys", "create", path, "--role", "curator", "--name", "dan", code=0)
    with Store(path) as store:
        assert store.analysts == ["carol"]
        assert not list(problems(store))


def test_a_key_from_a_server_declares_its_name_too(path):
    with Store(path) as store, application(store, roles=["admin"]) as client:
        admin = client.keys["admin"]
        made = client("POST", "/v1/keys", admin, json={"role": "analyst", "name": "carol"}).json()
        client("POST", "/v1/keys", admin, json={"role": "auditor", "name": "dan"})
        refused = client("POST", "/v1/keys", admin, json={"role": "analyst", "name": "eve", "max_queries": -1})
        assert refused.status_code == 422
        assert store.analysts == ["carol"]
        assert "carol" in {row["name"] for row in client("GET", "/v1/analysts", admin).json()["analysts"]}
        assert client("POST", INFER, made["key"], json=question(X[300:302])).status_code == 200
        assert not list(problems(store))


def test_in_memory_a_name_that_is_like_another_is_warned_about():
    """Nobody but this program can ask it, and all is lost when it ends. So a new name is allowed, but not in silence."""
    model = IndKNNClassifier(tau=0.3, classes=[0, 1, 2], reuse="none").fit(X[:300], Y[:300], NAMES)
    model.predict(X[300:], analyst="alice")
    model.predict(X[300:], analyst="bob")
    with pytest.warns(PrivacyWarning, match=r"analyst 'alcie' is new, with a new budget; did you mean 'alice'\?"):
        model.predict(X[300:], analyst="alcie")
    model.predict(X[300:], analyst="alcie")  # once


def test_an_estimator_with_a_list_of_analysts_answers_nobody_else(tmp_path):
    options = {"tau": 0.3, "classes": [0, 1, 2], "reuse": "none"}
    for where in (None, tmp_path / "b.store"):
        model = IndKNNClassifier(**options, analysts={"alice": None, "bob": 0.25}, store=where)
        model.fit(X[:300], Y[:300], NAMES)
        assert len(model.predict(X[300:], analyst="alice")) == len(model.predict(X[300:])) == 30
        for ask in (model.predict, model.predict_proba):
            with pytest.raises(InvalidInputError, match=r"there is no analyst 'alcie'; did you mean 'alice'\?"):
                ask(X[300:], analyst="alcie")
        assert model._memory.ledger.budget_of("bob") < model._memory.ledger.budget_of("alice")
    model._engine.close()
    again = IndKNNClassifier(**options, analysts=["carol"], store=where).partial_fit(X[300:], Y[300:], NAMES[:30])
    assert again._engine.analysts == ["alice", "bob", "carol"]  # the store keeps the others
    again._engine.close()
